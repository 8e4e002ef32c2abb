"""The format of a recording, and what is said of a file that is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.errors import InvalidRecording
from headway.record.compare import steps
from headway.record.lines import Recording, block_hashes
from headway.record.recorder import RecordingFile
from recorded import RecordedEngine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "recording"
    engine = RecordedEngine(path)
    engine.add("a", [1, 2, 3, 4, 5])
    engine.run()
    engine.add("b", [1, 2])
    engine.step()
    engine.close()
    return path


def test_a_chain_of_hashes_is_the_same_everywhere() -> None:
    first, second = block_hashes([1, 2, 3, 4, 5], 2)
    assert first == "34fb5c825de7ca4aea6e712f19d439c1"
    assert block_hashes([1, 2, 3, 4], 2) == [first, second]
    assert block_hashes([3, 4], 2, first) == [second]
    assert block_hashes([3, 4], 2) != [second]
    assert block_hashes([1], 2) == []


def test_what_has_not_ended_is_told_at_the_end(path: Path) -> None:
    *_, last = Recording(path)
    assert [(end.number, end.reason, end.num_output_tokens) for end in last.unfinished] == [
        (2, "", 1)
    ]


def damage(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> Recording:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    return Recording(path)


def edited(line: bytes, **fields: object) -> bytes:
    return json.dumps(json.loads(line) | fields).encode() + b"\n"


def test_another_version_is_refused(path: Path) -> None:
    with pytest.raises(InvalidRecording, match="line 1: version: 2; this Headway reads 1"):
        damage(path, lambda lines: [edited(lines[0], version=2, config={"new": 1}), *lines[1:]])


def test_another_file_is_refused(path: Path) -> None:
    for text in (b"", b"hello\n", b'{"kind":"plan"}\n'):
        path.write_bytes(text)
        with pytest.raises(InvalidRecording, match="line 1: kind: "):
            Recording(path)


def test_an_unknown_option_is_refused(path: Path) -> None:
    """An option that this version does not know would be left out of the replay in silence."""
    config = json.loads(path.read_bytes().splitlines()[0])["config"] | {"new_rule": 1}
    with pytest.raises(InvalidRecording, match=r"line 1: config: .*new_rule"):
        damage(path, lambda lines: [edited(lines[0], config=config), *lines[1:]])


def test_a_cut_line_is_named(path: Path) -> None:
    recording = damage(path, lambda lines: [*lines[:4], lines[4][:20]])
    with pytest.raises(InvalidRecording, match="line 5: kind: the recording is cut within"):
        list(recording)
    cut = list(Recording(path, cut_ok=True))
    assert len(cut) == 3
    assert len(list(steps(cut))) == 1


def test_a_missing_end_is_named(path: Path) -> None:
    recording = damage(path, lambda lines: lines[:-1])
    count = len(path.read_bytes().splitlines())
    with pytest.raises(InvalidRecording, match=f"line {count + 1}: kind: the recording is cut"):
        list(recording)
    assert len(list(Recording(path, cut_ok=True))) == count - 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"time_s": "soon"}, "time_s"),
        ({"chunks": [[1, 2]]}, r"chunks\[0\]"),
        ({"kind": "dance"}, "kind"),
    ],
)
def test_a_wrong_field_is_named(path: Path, fields: dict[str, object], field: str) -> None:
    recording = damage(path, lambda lines: [*lines[:2], edited(lines[2], **fields), *lines[3:]])
    with pytest.raises(InvalidRecording, match=f"line 3: {field}: ") as caught:
        list(recording)
    assert caught.value.line == 3


def test_a_missing_field_is_named(path: Path) -> None:
    recording = damage(path, lambda lines: [*lines[:2], b'{"kind":"plan","step":1}\n'])
    with pytest.raises(InvalidRecording, match="line 3: time_s: "):
        list(recording)


def test_lines_after_the_end_are_refused(path: Path) -> None:
    recording = damage(path, lambda lines: [*lines, lines[-1]])
    with pytest.raises(InvalidRecording, match="follows the end"):
        list(recording)


def test_a_full_disk_ends_the_recording_and_not_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = RecordedEngine(tmp_path / "recording")

    class Full:
        def write(self, text: bytes) -> None:
            raise OSError("no space left")

        def close(self) -> None:
            pass

    assert isinstance(engine.file, RecordingFile)
    engine.file._file.close()
    monkeypatch.setattr(engine.file, "_file", Full())
    engine.add("a", [1, 2, 3])
    engine.run()
    engine.close()
    assert engine.reasons == {"a": "length"}
    assert caplog.text.count("the recording ends here") == 1
