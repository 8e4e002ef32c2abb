"""An engine timed without a server: exact on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.bench.limits import Limits
from headway.bench.offline import (
    Batch,
    random_prompts,
    rate_lines,
    rates,
    rates_at_best,
    run_batch,
)
from headway.clock import VirtualClock
from headway.engine.outputs import NewRequest, OutputDelta
from headway.errors import HeadwayError


class Scripted:
    """An engine whose steps take a second and give these tokens: by step, request → how many."""

    def __init__(self, *steps: dict[int, int], error: str | None = None) -> None:
        self.clock = VirtualClock()
        self.added: list[NewRequest] = []
        self._steps = list(steps)
        self._error = error

    @property
    def has_work(self) -> bool:
        return bool(self._steps)

    def add(self, new: Sequence[NewRequest]) -> None:
        self.added += new

    def step(self) -> list[OutputDelta]:
        self.clock.advance(1.0)
        return [
            OutputDelta(self.added[index].request_id, "", (0,) * count, error=self._error)
            for index, count in self._steps.pop(0).items()
        ]


def run(engine: Scripted, prompts: Sequence[Sequence[int]], output_len: int) -> Batch:
    return run_batch(engine, prompts, output_len, engine.clock.now)


def test_the_prefill_ends_with_the_last_first_token() -> None:
    engine = Scripted({0: 1}, {0: 1, 1: 1}, {}, {0: 2, 1: 1}, {1: 2})
    batch = run(engine, [[5] * 30, [6] * 30], 4)
    assert (batch.prefill_s, batch.decode_s, batch.total_s) == (2.0, 3.0, 5.0)
    assert batch.prefill_tokens_per_s == 30
    assert (batch.num_decoded_tokens, batch.decode_tokens_per_s) == (5, pytest.approx(5 / 3))
    assert batch.output_tokens_per_s == 8 / 5


def test_requests_are_greedy_and_go_past_the_end() -> None:
    engine = Scripted({0: 2})
    run(engine, [[7, 8]], 2)
    [request] = engine.added
    assert list(request.prompt_token_ids) == [7, 8]
    params = request.params
    assert (params.max_tokens, params.temperature, params.ignore_eos) == (2, 0.0, True)


def test_an_engine_that_fails_or_ends_early_is_not_measured() -> None:
    with pytest.raises(HeadwayError, match="a request failed: NaN"):
        run(Scripted({0: 1}, error="NaN"), [[1]], 1)
    with pytest.raises(HeadwayError, match="3 output tokens, and not 4 for each of 1"):
        run(Scripted({0: 1}, {0: 2}), [[1]], 4)


def test_one_token_has_no_decode() -> None:
    batch = run(Scripted({0: 1}), [[1, 2]], 1)
    assert batch.decode_tokens_per_s is None
    assert rates([batch])["decode_tokens_per_s"] is None
    assert rates_at_best(batch, Limits(0.5, 0.0))["decode_tokens_per_s"] is None


def test_rates_of_several_runs_are_medians() -> None:
    def batch(seconds: float) -> Batch:
        return Batch(1, 10, 5, 4, prefill_s=seconds, total_s=2 * seconds)

    found = rates([batch(1.0), batch(10.0), batch(2.0)])
    assert found == {
        "output_tokens_per_s": 1.25,
        "prefill_tokens_per_s": 5.0,
        "decode_tokens_per_s": 2.0,
    }


def test_the_best_rates_are_of_the_same_work() -> None:
    batch = Batch(2, 60, 8, 5, prefill_s=2.0, total_s=5.0)
    assert rates_at_best(batch, Limits(prefill_s=1.0, decode_s=3.0)) == {
        "output_tokens_per_s": 2.0,
        "prefill_tokens_per_s": 60.0,
        "decode_tokens_per_s": 2.0,  # of 6: the first of each comes with its prompt
    }


def test_a_table_shows_shares_of_the_limit() -> None:
    found = {"output_tokens_per_s": 50.0, "decode_tokens_per_s": None}
    assert [line.split() for line in rate_lines(found, {"output_tokens_per_s": 200.0})] == [
        ["tokens/s", "measured", "limit", "share"],
        ["output", "50.0", "200.0", "25", "%"],
    ]
    assert [line.split() for line in rate_lines(found, None)] == [
        ["tokens/s", "measured"],
        ["output", "50.0"],
    ]


@pytest.mark.parametrize(("vocab_size", "low", "high"), [(49_152, 1000, 30_000), (64, 16, 64)])
def test_prompts_are_all_different_and_of_plain_tokens(
    vocab_size: int, low: int, high: int
) -> None:
    prompts = random_prompts(20, 50, vocab_size=vocab_size, seed=1)
    assert {len(prompt) for prompt in prompts} == {50}
    assert len(set(prompts)) == 20
    assert all(low <= token < high for prompt in prompts for token in prompt)
    assert not set(prompts) & set(random_prompts(20, 50, vocab_size=vocab_size, seed=2))
