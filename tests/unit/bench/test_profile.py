"""Stacks, looked at from outside."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from headway.bench.profile import Profile, note, profiled


def frame_in(module: str, inner: str = "") -> FrameType:
    """The frame of a function of `module`, which may have called one of `inner`."""
    frames: list[FrameType] = []
    here: dict[str, Any] = {"__name__": module}
    below: dict[str, Any] = {"__name__": inner or module, "look": lambda: frames.append(_caller())}
    exec("def leaf():\n    look()", below)
    here["leaf"] = below["leaf"]
    exec("def work():\n    leaf()", here)
    here["work"]()
    return frames[0]


def _caller() -> FrameType:
    return sys._getframe(2)


def test_a_stack_counts_for_the_innermost_function_of_ours() -> None:
    profile = Profile()
    note(profile, frame_in("headway.core.scheduler"), 0.5)
    note(profile, frame_in("headway.runtime.torch.model", inner="torch.nn.functional"), 1.0)
    note(profile, frame_in("headway.runtime.sampler"), 0.25)
    assert profile.phases == {"schedule": 0.5, "execute": 1.25}
    assert profile.places == {
        "core.scheduler.leaf": 0.5,
        "runtime.torch.model.work": 1.0,
        "runtime.sampler.leaf": 0.25,
    }


def test_others_and_those_that_wait_do_not_count() -> None:
    profile = Profile()
    note(profile, frame_in("json.decoder"), 1.0)
    event, seen = threading.Event(), threading.Event()

    def wait() -> None:
        seen.set()
        event.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    seen.wait()
    while True:  # until it does wait
        assert thread.ident is not None
        frame = sys._current_frames()[thread.ident]
        if frame.f_code.co_name == "wait" and frame.f_code.co_filename.endswith("threading.py"):
            break
    note(profile, frame, 1.0)
    event.set()
    thread.join()
    assert not profile.phases


def test_lines_are_shares_the_largest_first() -> None:
    profile = Profile()
    profile.phases.update(execute=3.0, schedule=1.0)
    profile.places.update({f"f{index}": float(index) for index in range(5)})
    lines = [line.split() for line in profile.lines(most=2)]
    assert lines == [
        ["phase", "share"],
        ["execute", "75.0%"],
        ["schedule", "25.0%"],
        ["function", "share"],
        ["f4", "100.0%"],
        ["f3", "75.0%"],
    ]


def test_work_of_other_threads_is_seen_while_it_lasts() -> None:
    before = sys.getswitchinterval()
    work: dict[str, Any] = {"__name__": "headway.core.made_up", "go": True}
    exec("def spin():\n    while go: pass", work)
    thread = threading.Thread(target=work["spin"])
    with profiled(0.001) as profile:
        thread.start()
        while not profile.phases.get("schedule"):
            pass
        work["go"] = False
        thread.join()
    assert profile.places["core.made_up.spin"] > 0
    assert sys.getswitchinterval() == before
