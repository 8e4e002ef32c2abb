"""What is said of trials before their figures are believed."""

from __future__ import annotations

from headway.bench.cautions import cautions, saturated_rounds
from headway.bench.trials import Trial

PLAIN = {"failed": 0, "completed": 5, "saturated": False, "median_ttft_ms": 100.0}


def trials(variant: str, *rounds: dict[str, object]) -> list[Trial]:
    return [
        Trial(
            variant=variant,
            round=index,
            seed=0,
            result={**PLAIN, **each},
            details={},
            samples=(),
        )
        for index, each in enumerate(rounds)
    ]


def test_where_all_was_as_asked_for_nothing_is_said() -> None:
    assert cautions(trials("a", {}, {"saturated": None}, {"p99_lateness_ms": 9.0})) == []


def test_all_saturated_variants_are_in_one_sentence_and_the_first() -> None:
    found = cautions(
        [
            *trials("a", {"saturated": True, "short_outputs": 1}, {}),
            *trials("b", {}, {}),
            *trials("c", {"saturated": True}, {"saturated": True}),
        ]
    )
    assert found[0].startswith(
        "The load saturated the server: a (in 1 of 2 rounds); c (in 2 of 2 rounds). "
    )
    assert found[1:] == ["a: answers that were shorter than asked for: 1."]


def test_what_a_load_was_not_is_said_once_a_variant_over_all_rounds() -> None:
    found = cautions(
        trials(
            "a",
            {"failed": 2, "completed": 3, "error_counts": {"HTTP 429: full": 2}},
            {"failed": 1, "completed": 4, "error_counts": {"it was lost": 1}},
            {"p99_lateness_ms": 40.0, "wrong_input_lens": 2, "made_up_answers": 3},
            {"p99_lateness_ms": 30.0, "wrong_input_lens": 1, "short_outputs": 4},
        )
    )
    assert found == [
        "a: 3 of 20 requests failed, most with: HTTP 429: full.",
        "a: the client was late in 2 of 4 rounds (one request in a hundred by 40 ms or more), so "
        "the load was not quite what was asked for.",
        "a: answers that were shorter than asked for: 4.",
        "a: prompts that were not of the length asked for, as the server counts: 3.",
        "a: prompts that hold made-up answers where the server's own should stand: 3.",
    ]


def test_rounds_that_cannot_tell_are_not_called_steady() -> None:
    assert saturated_rounds(trials("a", {"saturated": None}, {"saturated": None})) == "–"
    assert saturated_rounds(trials("a", {"saturated": None}, {"saturated": True})) == "1 of 2"
