"""`headway bench offline` and `bench latency`: an engine without a server, timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from headway.bench.limits import Limits
from headway.core.params import SamplingParams
from headway.engine.outputs import NewRequest, OutputDelta
from headway.errors import HeadwayError
from headway.workload import PLAIN_TOKENS, TrafficClass, Workload

__all__ = [
    "Batch",
    "Steps",
    "ordinary_tokens",
    "random_prompts",
    "rates",
    "rate_lines",
    "rates_at_best",
    "run_batch",
]


class Steps(Protocol):
    """An `EngineCore`, or what stands for one."""

    @property
    def has_work(self) -> bool: ...
    def add(self, new: Sequence[NewRequest]) -> None: ...
    def step(self) -> list[OutputDelta]: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that arrived at once, and how long they took; seconds from their arrival.

    The prefill lasts until every request has its first token; the tokens that others get
    meanwhile are not told apart. The rest is the decode.
    """

    num_prompts: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_decoded_tokens: int
    """Output tokens after the prefill."""
    prefill_s: float
    total_s: float

    @property
    def decode_s(self) -> float:
        return self.total_s - self.prefill_s

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.total_s

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.num_prompt_tokens / self.prefill_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        """None where the prefill gave all tokens."""
        return self.num_decoded_tokens / self.decode_s if self.num_decoded_tokens else None


def ordinary_tokens(vocab_size: int) -> tuple[int, int]:
    """Ids to make prompts of, the second excluded: plain text, as far as can be known."""
    return PLAIN_TOKENS if vocab_size >= PLAIN_TOKENS[1] else (vocab_size // 4, vocab_size)


def random_prompts(count: int, length: int, *, vocab_size: int, seed: int) -> list[tuple[int, ...]]:
    """Of `length` random tokens each, all different, so that none is found in a prefix cache."""
    kind = TrafficClass(name="offline", num_prompts=count, input_len=length, output_len=1)
    workload = Workload(classes=(kind,), seed=seed, token_ids=ordinary_tokens(vocab_size))
    return [item.token_ids for item in workload.items()]


def run_batch(
    steps: Steps, prompts: Sequence[Sequence[int]], output_len: int, now: Callable[[], float]
) -> Batch:
    """Completes all prompts, greedily and past the end of sequence.

    Raises HeadwayError where a request fails or ends early, and what the engine refuses.
    """
    params = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
    requests = [
        NewRequest(f"bench-{index}", prompt, params) for index, prompt in enumerate(prompts)
    ]
    begin = now()
    steps.add(requests)
    to_begin = {request.request_id for request in requests}
    prefill_end = begin
    num_tokens = at_prefill_end = 0
    while steps.has_work:
        deltas = steps.step()
        for delta in deltas:
            if delta.error is not None:
                raise HeadwayError(f"a request failed: {delta.error}")
            num_tokens += len(delta.token_ids)
        if to_begin:
            to_begin -= {delta.request_id for delta in deltas if delta.token_ids}
            prefill_end, at_prefill_end = now(), num_tokens
    if num_tokens != output_len * len(prompts):
        raise HeadwayError(
            f"there were {num_tokens} output tokens, and not {output_len} for each of "
            f"{len(prompts)} prompts"
        )
    return Batch(
        num_prompts=len(prompts),
        num_prompt_tokens=sum(map(len, prompts)),
        num_output_tokens=num_tokens,
        num_decoded_tokens=num_tokens - at_prefill_end,
        prefill_s=prefill_end - begin,
        total_s=now() - begin,
    )


def rates(batches: Sequence[Batch]) -> dict[str, float | None]:
    """Tokens per second, the median of some runs of the same."""
    decoded = [each.decode_tokens_per_s for each in batches]
    known = [value for value in decoded if value is not None]
    return {
        "output_tokens_per_s": median(each.output_tokens_per_s for each in batches),
        "prefill_tokens_per_s": median(each.prefill_tokens_per_s for each in batches),
        "decode_tokens_per_s": median(known) if known else None,
    }


def rates_at_best(batch: Batch, least: Limits) -> dict[str, float | None]:
    """The same, were the work of `batch` done in the `least` time. All its prompts would then be
    computed before anything is decoded."""
    decoded = batch.num_output_tokens - batch.num_prompts
    return {
        "output_tokens_per_s": batch.num_output_tokens / least.total_s,
        "prefill_tokens_per_s": batch.num_prompt_tokens / least.prefill_s,
        "decode_tokens_per_s": decoded / least.decode_s if decoded else None,
    }


def rate_lines(
    found: Mapping[str, float | None], best: Mapping[str, float | None] | None
) -> list[str]:
    """A table: what was measured, what is possible, and the share."""
    lines = [
        f"{'tokens/s':<10}{'measured':>10}" + ("" if best is None else f"{'limit':>10}{'share':>8}")
    ]
    for name, value in found.items():
        if value is None:
            continue
        line = f"{name.removesuffix('_tokens_per_s'):<10}{value:>10.1f}"
        most = None if best is None else best[name]
        if most is not None:
            line += f"{most:>10.1f}{100 * value / most:>6.0f} %"
        lines.append(line)
    return lines
