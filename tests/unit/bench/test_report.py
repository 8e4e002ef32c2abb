from __future__ import annotations

from itertools import pairwise

import pytest

from headway.bench.figures import Wanted
from headway.bench.report import notes, report, result_name
from unit.bench.test_figures import of, outcome

WANTED = Wanted(metrics=("ttft", "itl"), percentiles=(90, 99.9))


def shown(result: dict[str, object]) -> dict[str, str]:
    """The report's lines with a label, by it."""
    lines = report(result, WANTED)
    return {label.strip(): value.strip() for label, _, value in (x.partition(":") for x in lines)}


def test_a_report_has_vllms_labels_and_the_figures() -> None:
    lines = shown(of(outcome(0.5, 0.75), wanted=WANTED) | {"request_rate": 2.0})
    assert lines["Successful requests"] == "1"
    assert lines["Request rate configured (RPS)"] == "2.00"
    assert lines["Mean TTFT (ms)"] == "500.00"
    assert lines["P90 ITL (ms)"] == "250.00"
    assert lines["P99.9 ITL (ms)"] == "250.00"
    assert lines["Max lateness (ms)"] == "0.00"
    assert "Cached input tokens" not in lines
    assert "Mean TPOT (ms)" not in lines


def test_what_was_not_measured_is_a_dash() -> None:
    assert shown(of(outcome(0.5), wanted=WANTED))["Mean ITL (ms)"] == "–"


def test_classes_are_a_table_with_a_row_for_each_metric() -> None:
    outcomes = [outcome(0.5, name="short"), outcome(2.0, 2.5, name="a-long-one")]
    result = of(*outcomes, wanted=WANTED)
    result["classes"] = {
        name: of(*outcomes, wanted=WANTED, class_name=name) for name in ("short", "a-long-one")
    }
    lines = report(result, WANTED)
    at = next(index for index, line in enumerate(lines) if "By class" in line)
    table = [line.split() for line in lines[at + 1 : at + 6]]
    assert table[0] == [
        "class",
        "completed",
        "failed",
        "ms",
        "Mean",
        "Median",
        "Std",
        "P90",
        "P99.9",
    ]
    assert table[1][:5] == ["short", "1", "0", "TTFT", "500.0"]
    assert table[2][:5] == ["short", "1", "0", "ITL", "–"]
    assert table[4][:5] == ["a-long-one", "1", "0", "ITL", "500.0"]
    ends = [
        line.rindex(cells[-1]) + len(cells[-1])
        for line, cells in zip(lines[at + 1 :], table, strict=False)
    ]
    assert all(a == b for a, b in pairwise(ends))


def noted(*outcomes, shared: bool = False, frame: int = 0):  # type: ignore[no-untyped-def]
    result = of(*outcomes) | {"frame_tokens": frame}
    return notes(result, shared_prefixes=shared)


def test_a_clean_run_has_no_notes() -> None:
    assert noted(outcome(1.0, 2.0, 3.0, 4.0, tokens=4, prompt=3)) == []


def test_each_thing_that_spoils_a_run_is_noted() -> None:
    good = {"tokens": 4, "prompt": 3}
    [late] = noted(outcome(1.0, sent=0.2, due=0.0, **good))
    assert late.startswith("the client was late: one request in a hundred was sent 200 ms or more")
    [wrong] = noted(outcome(1.0, tokens=4, prompt=5))
    assert wrong.startswith("1 prompts were not of the length")
    [short] = noted(outcome(1.0, tokens=2, prompt=3))
    assert short == "1 answers were shorter than asked for"
    [counted] = noted(outcome(*[1.0] * 4, prompt=3))
    assert counted.startswith("the server does not tell the usage")
    [failed] = noted(outcome(1.0, **good), outcome(error="gone"), outcome(error="gone"))
    assert failed == "failed, 2 times: gone"


def test_what_the_load_was_is_noted_where_it_matters() -> None:
    result = of(outcome(1.0, tokens=4, prompt=3)) | {"frame_tokens": 0}
    signs = {
        "first_concurrency": 1.0, "last_concurrency": 50.0, "first_ttft_ms": 90.0,
        "last_ttft_ms": 9000.0, "arrival_rate": 4.0, "served_rate": 2.0, "refused_share": 0.0,
        "queue_grows": True,
    }  # fmt: skip
    [note] = notes(result | {"saturated": True, "saturation": signs}, shared_prefixes=False)
    assert "a queue that grows" in note
    assert "from 1.0 to 50.0, the median TTFT from 90 to 9000 ms; 4.00 requests/s came" in note
    assert notes(result | {"saturated": False, "saturation": signs}, shared_prefixes=False) == []
    refusing = signs | {"refused_share": 0.5, "last_ttft_ms": None, "queue_grows": False}
    [note] = notes(result | {"saturated": True, "saturation": refusing}, shared_prefixes=False)
    assert note == (
        "the server did not keep up; it refused 50% of the requests, and the latencies are those "
        "of the others; 4.00 requests/s came, and 2.00 were served"
    )
    trace = {
        "name": "t", "requests": 1000, "rate_scale": 20.0, "length_scale": 1.0,
        "cut_inputs": 7, "cut_outputs": 0, "lengthened_inputs": 0,
    }  # fmt: skip
    assert notes(result | {"traces": [trace]}, shared_prefixes=True) == [
        "the trace t was scaled: rate times 20, 7 of 1,000 prompts cut"
    ]
    longer = trace | {"cut_inputs": 0, "lengthened_inputs": 2}
    assert notes(result | {"traces": [longer], "frame_tokens": 7}, shared_prefixes=True) == [
        "the trace t was scaled: rate times 20, 2 of 1,000 prompts lengthened to 8 tokens, the "
        "fewest that a text has there"
    ]
    plain = trace | {"rate_scale": 1.0, "cut_inputs": 0}
    assert notes(result | {"traces": [plain]}, shared_prefixes=True) == []
    [made_up] = notes(result | {"made_up_answers": 3}, shared_prefixes=True)
    assert made_up.startswith("3 prompts hold made-up answers")


def test_lateness_is_noted_only_where_it_matters() -> None:
    fast = outcome(0.1, sent=0.02, due=0.0, tokens=4, prompt=3)
    assert len(noted(fast)) == 1
    slow = outcome(9.0, sent=0.02, due=0.0, tokens=4, prompt=3)
    assert noted(slow) == []


def test_cached_tokens_are_noted_where_nothing_should_be_cached() -> None:
    hit = outcome(1.0, tokens=4, prompt=3)
    hit.cached_tokens = 2
    [note] = noted(hit)
    assert note.startswith("2 prompt tokens were in the server's prefix cache")
    assert noted(hit, shared=True) == noted(hit, frame=2) == []


def test_many_kinds_of_error_are_cut_short() -> None:
    found = noted(
        outcome(1.0, tokens=4, prompt=3), *(outcome(error=f"e{index}") for index in range(9))
    )
    assert len(found) == 6
    assert found[-1] == "and 4 other errors"


@pytest.mark.parametrize(
    ("load", "limit", "name"),
    [("infqps", None, "openai-infqps"), ("mixed", 8, "openai-mixed-concurrency8")],
)
def test_a_files_name_is_made_as_vllm_does(load: str, limit: int | None, name: str) -> None:
    assert result_name("openai", load, limit) == name
