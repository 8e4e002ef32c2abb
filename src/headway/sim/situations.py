"""Random configurations and requests for trials: small, so that everything happens soon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headway.core.acceptance import Door
from headway.core.kv_cache import KVCacheManager
from headway.core.params import SamplingParams
from headway.core.policies import POLICIES
from headway.core.preemption import Mode
from headway.core.scheduler import Scheduler
from headway.metrics import Costs

__all__ = ["Arrival", "Setup", "compose", "guess", "random_arrival", "random_setup"]

_VOCAB = 40
_PREFIXES = [[(7 * i + 3 * k) % _VOCAB for i in range(40)] for k in range(3)]
_COSTS = [None, Costs(1e-3, 1e-4), Costs(1e-4, 1e-3)]
_POLICY_OPTIONS: Mapping[str, Callable[[Random], dict[str, Any]]] = {
    "fcfs": lambda _: {},
    "priority": lambda r: {"aging_s": r.choice([0.0, 3.0, 30.0])},
    "sjf": lambda r: {"aging_tokens_per_s": r.choice([0.0, 1.0, 100.0])},
    "lpm": lambda r: {"aging_tokens_per_s": r.choice([0.0, 1.0, 100.0])},
    "deadline": lambda r: {"default_s": r.choice([1.0, 10.0])},
    "fair": lambda r: {"weights": r.choice([{}, {"a": 2.0}])},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The configuration of one trial; the names are those of the collaborators' arguments."""

    num_blocks: int = 12
    block_size: int = 4
    width: int = 4
    budget: int = 16
    max_model_len: int = 48
    vocab_size: int = _VOCAB
    policy: str = "fcfs"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    watermark: float = 0.0
    caching: bool = True
    reserve: bool = True
    chunked: bool = True
    threshold: int = 0
    skip_ahead: int = 0
    sharing: bool = True
    preempt_for_priority: bool = True
    mode: Mode = "recompute"
    max_preemptions: int = 8
    swap_slots: int = 0
    max_reqs: int | None = None
    max_tokens: int | None = None
    max_logprobs: int = -1
    costs: Costs | None = None
    depth: int = 1
    """Most plans in flight."""
    fault_rate: float = 0.0
    """Share of the steps that fail, and of the results that hold NaN logits."""
    num_drafts: int = 0
    """Most drafts that are proposed for a request; 0: none ever are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request to come, of `params.n` samples."""

    prompt: Sequence[int]
    params: SamplingParams
    priority: int = 0
    tenant: str = ""
    salt: str | None = None
    deadline_s: float | None = None
    queue_timeout_s: float | None = None


def compose(setup: Setup) -> tuple[KVCacheManager, Door, Scheduler]:
    """A scheduler, with the two of its parts that a test looks at."""
    kv = KVCacheManager(
        num_blocks=setup.num_blocks,
        block_size=setup.block_size,
        enable_prefix_caching=setup.caching,
        watermark=setup.watermark,
        reserve_full_prompt=setup.reserve,
        hash_secret=7,
    )
    door = Door(
        max_model_len=setup.max_model_len,
        vocab_size=setup.vocab_size,
        max_logprobs=setup.max_logprobs,
        max_num_queued_reqs=setup.max_reqs,
        max_num_queued_tokens=setup.max_tokens,
    )
    scheduler = Scheduler(
        kv=kv,
        policy=POLICIES[setup.policy](**setup.policy_options),
        door=door,
        max_num_batched_tokens=setup.budget,
        max_num_seqs=setup.width,
        enable_chunked_prefill=setup.chunked,
        long_prefill_token_threshold=setup.threshold,
        max_skip_ahead=setup.skip_ahead,
        in_batch_prefix_sharing=setup.sharing,
        preempt_for_priority=setup.preempt_for_priority,
        preemption_mode=setup.mode,
        max_preemptions=setup.max_preemptions,
        num_swap_slots=setup.swap_slots,
    )
    return kv, door, scheduler


def random_setup(random: Random) -> Setup:
    num_blocks, block_size = random.randint(5, 20), random.choice([2, 4])
    length = min(num_blocks * block_size, 48)
    width, chunked = random.randint(1, 6), random.random() < 0.7
    budget, threshold = width + random.randint(0, 20), random.choice([0, 3])
    if not chunked:
        budget, threshold = max(budget, length), 0
    policy = random.choice(sorted(POLICIES))
    return Setup(
        num_blocks=num_blocks,
        block_size=block_size,
        width=width,
        budget=budget,
        max_model_len=length,
        policy=policy,
        policy_options=_POLICY_OPTIONS[policy](random),
        watermark=random.choice([0.0, 0.1, 0.3]),
        caching=random.random() < 0.6,
        reserve=random.random() < 0.5,
        chunked=chunked,
        threshold=threshold,
        skip_ahead=random.choice([0, 0, 2]),
        sharing=random.random() < 0.6,
        preempt_for_priority=random.random() < 0.7,
        mode=random.choice(["recompute", "swap", "auto"]),
        max_preemptions=random.choice([0, 1, 8]),
        swap_slots=random.randint(0, 12),
        max_reqs=random.choice([None, 4]),
        max_tokens=random.choice([None, None, 60]),
        costs=random.choice(_COSTS),
        depth=random.randint(1, 2),
        fault_rate=random.choice([0.0, 0.0, 0.0, 0.03, 0.3]),
        num_drafts=random.choice([0, 0, 2, 9]),
    )


def guess(right: Sequence[int], most: int, salt: tuple[int, ...]) -> list[int]:
    """Drafts where the tokens to come are the `right` ones: none, or up to `most`, all of them
    right, or the first few, or none. The same for the same `salt`."""
    number = hash(salt)
    count, number = number % (most + 1), number // 64
    num_right = number % (2 * count + 1)  # more often than not all
    return [token if i < num_right else token + 1 for i, token in enumerate(right[:count])]


def random_arrival(random: Random, setup: Setup, chats: Sequence[Sequence[int]] = ()) -> Arrival:
    """`chats`: known tokens of earlier requests; a prompt may go on from some of them."""
    own = [random.randrange(_VOCAB) for _ in range(random.randint(1, 4))]
    room = setup.max_model_len - len(own) - 1
    before = random.choice(chats) if chats and random.random() < 0.2 else random.choice(_PREFIXES)
    max_tokens = random.choice([0, 1, 2, 6, 12, 30, None])
    stops = random.random() < 0.3
    return Arrival(
        prompt=[*before[: min(random.randint(0, 20), room)], *own],
        params=SamplingParams(
            max_tokens=max_tokens,
            min_tokens=0 if max_tokens is None else min(max_tokens, random.choice([0, 0, 3])),
            stop_token_ids=[3, 4] if stops else [],
            prompt_logprobs=random.choice([None, None, None, 0]),
            n=random.choice([1, 1, 1, 1, 2, 3]),
        ),
        priority=random.randint(0, 3) if setup.policy == "priority" else 0,
        tenant=random.choice("ab"),
        salt=random.choice([None, None, None, "s"]),
        deadline_s=random.choice([None, 1.0, 30.0]) if setup.policy == "deadline" else None,
        queue_timeout_s=random.choice([None, None, 5.0]),
    )
