"""Small faults for the core, each with the seed of a trial that finds it.

`old` must stand in the file exactly once, so that the list stays true. The seed belongs to the
trials as they are now: `python tests/mutations/run.py --search` finds the seeds anew.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MUTATIONS", "Mutation"]


class Mutation(NamedTuple):
    rule: str
    """The rule that it breaks."""
    file: str
    """In src/headway/core/."""
    old: str
    new: str
    seed: int
    """Of a trial that finds it."""


MUTATIONS = [
    # One step: who gets what.
    Mutation("S2", "scheduler.py", "            left -= 1", "            left -= 0", 0),
    Mutation("S2", "step.py", "self.budget_left -= num_tokens", "pass", 0),
    Mutation(
        "S2",
        "admission.py",
        'if len(self._roster.running) >= self._width:\n            return "width"',
        'if len(self._roster.running) > self._width:\n            return "width"',
        0,
    ),
    Mutation(
        "S3",
        "roster.py",
        "self.running[request] = None",
        "self.running = {request: None, **self.running}",
        1,
    ),
    Mutation(
        "S4",
        "step.py",
        "min(wanted, self.longest_chunk, self.budget_left)",
        "min(wanted, self.budget_left)",
        0,
    ),
    Mutation(
        "S4",
        "request.py",
        "self.num_wanted_tokens = max(self.num_prompt_tokens, num_tokens - 1)",
        "self.num_wanted_tokens = max(self.num_prompt_tokens, num_tokens)",
        2,
    ),
    Mutation("S6", "policy.py", "return running[-1]", "return running[0]", 6),
    Mutation("S6", "policy.py", "return max(running, key", "return min(running, key", 3),
    Mutation("S6", "step.py", "self.budget_left += chunk.num_tokens", "pass", 3),
    Mutation(
        "S6",
        "step.py",
        "request.num_pending -= chunk.sample is not None\n        return chunk",
        "return chunk",
        3,
    ),
    Mutation("S6", "kv_cache.py", "if num_valid_tokens is not None:", "if False:", 881),
    Mutation("S7", "admission.py", 'if "memory" in step.preemptions:', "if False:", 18),
    Mutation(
        "S8",
        "admission.py",
        "if reason := self._kv.held_up_by(",
        "if reason := False and self._kv.held_up_by(",
        1,
    ),
    Mutation(
        "S9",
        "admission.py",
        "head.num_skips >= self._max_skip_ahead",
        "head.num_skips > self._max_skip_ahead",
        19,
    ),
    Mutation("S9", "admission.py", "head.num_skips += 1", "pass", 170),
    Mutation("S10", "acceptance.py", "min(room, asked)", "asked", 3),
    Mutation(
        "S11",
        "step.py",
        "token_ids = tuple(known[start:end])",
        "token_ids = tuple(known[start : end - 1]) + tuple(known[-1:])",
        0,
    ),
    Mutation(
        "S11",
        "step.py",
        "samples = end == len(known) + request.num_pending < request.max_total_tokens",
        "samples = end == len(known) + request.num_pending",
        0,
    ),
    Mutation(
        "S11",
        "kv_cache.py",
        "num_tokens = min(request.num_computed_tokens, len(request.token_ids))",
        "num_tokens = len(request.token_ids)",
        20,
    ),
    Mutation(
        "S11",
        "scheduler.py",
        "if not request.quiet_until_computed or end >= request.max_total_tokens:",
        "if not request.quiet_until_computed:",
        2,
    ),
    Mutation(
        "S12",
        "policy.py",
        "return waiting.priority < self._level(running)",
        "return waiting.priority <= self._level(running)",
        27,
    ),
    Mutation("S12", "policy.py", "r.sequence), reverse=True)", "r.sequence))", 432),
    Mutation(
        "S12",
        "policy.py",
        "return (request.priority + request.arrival_s / self._aging_s,)",
        "return (request.priority - request.arrival_s / self._aging_s,)",
        9,
    ),
    Mutation(
        "S12",
        "preemption.py",
        "num_needed -= self._kv.num_freed_by(victim, hit)",
        "num_needed -= len(victim.held.blocks)",
        1519,
    ),
    Mutation(
        "S13",
        "policies.py",
        "insort(self._in_time, request, key=lambda r: (*r.rank, r.sequence))",
        "insort(self._in_time, request, key=_arrival)",
        119,
    ),
    Mutation(
        "S13",
        "policies.py",
        "return (0, 0, request.sequence)",
        "return (2, 0, request.sequence)",
        26,
    ),
    Mutation(
        "S13",
        "policy.py",
        "return (1, length + request.arrival_s * self._aging)",
        "return (1, -length + request.arrival_s * self._aging)",
        24,
    ),
    Mutation(
        "S13",
        "policies.py",
        "insort(self._queues[tenant], request, key=_arrival)",
        "self._queues[tenant].append(request)",
        54,
    ),
    # Drafts.
    Mutation(
        "S14",
        "scheduler.py",
        "request.num_computed_tokens += num_gained - 1",
        "request.num_computed_tokens += chunk.num_drafts",
        3,
    ),
    Mutation("S14", "scheduler.py", "self._kv.drop_rejected(request)", "pass", 5),
    Mutation(
        "S14",
        "scheduler.py",
        "tokens = (*result.accepted.get(index, ()), token_id)",
        "tokens = (*result.accepted.get(index, ())[:-1], token_id)",
        3,
    ),
    Mutation(
        "S14",
        "scheduler.py",
        "if token in stops), len(tokens))",
        "if token in stops), max(1, len(tokens) - 1))",
        3,
    ),
    Mutation(
        "S14",
        "scheduler.py",
        "next((i for i, token in enumerate(tokens, 1) if token in stops), len(tokens))",
        "len(tokens)",
        8,
    ),
    Mutation(
        "S14",
        "scheduler.py",
        "tokens = (*result.accepted.get(index, ()), token_id)",
        "tokens = (*chunk.token_ids[1 : 2 + len(result.accepted.get(index, ()))], token_id)",
        3,
    ),
    Mutation(
        "S14",
        "scheduler.py",
        "            self._admission.admit_waiting(step)\n"
        "            if drafts:\n"
        "                give_drafts(step, self._kv, roster.running, drafts)\n",
        "            give_drafts(step, self._kv, roster.running, drafts)\n"
        "            self._admission.admit_waiting(step)\n",
        3,
    ),
    Mutation("S14", "scheduler.py", "elif not self._drafts_in_flight:", "else:", 10),
    Mutation("S14", "step.py", "self.budget_left -= len(drafts)", "pass", 3),
    Mutation(
        "S14",
        "drafting.py",
        "request.max_total_tokens - 1 - chunk.end",
        "request.max_total_tokens - chunk.end",
        3,
    ),
    Mutation(
        "S14",
        "drafting.py",
        "            step.add_drafts(request, guessed[:most])",
        "            request.token_ids += guessed[:most]\n"
        "            request.num_computed_tokens += most\n"
        "            kv.commit(request)\n"
        "            request.num_computed_tokens -= most\n"
        "            del request.token_ids[-most:]\n"
        "            step.add_drafts(request, guessed[:most])",
        3,
    ),
    Mutation("S14", "drafting.py", "        and not chunk.follows_in_flight\n", "", 10),
    Mutation("S14", "drafting.py", "return request.draws_alike and", "return", 3),
    Mutation("S14", "drafting.py", "kv.expect(other)", "pass", 3),
    Mutation(
        "S14",
        "kv_cache.py",
        "room = held.promised + max(0, spare - self.watermark_blocks)",
        "room = held.promised + spare",
        15,
    ),
    Mutation(
        "S14", "kv_cache.py", "        if spare < 0:\n            return held.num_slots\n", "", 3
    ),
    Mutation(
        "S16",
        "scheduler.py",
        "self._num_steps += 1",
        "type(self)._steps = self._num_steps = getattr(self, '_steps', 0) + 1",
        0,
    ),
    # Blocks and the prefix cache.
    Mutation(
        "K2",
        "prefix_cache.py",
        "salt = request.cache_salt",
        "salt = None",
        1,
    ),
    Mutation(
        "K3",
        "kv_cache.py",
        "most = (len(request.token_ids) - 1) // self.block_size",
        "most = len(request.token_ids) // self.block_size",
        3,
    ),
    Mutation(
        "K3",
        "kv_cache.py",
        "return self.enable_prefix_caching and not request.wants_prompt_rows",
        "return self.enable_prefix_caching",
        0,
    ),
    Mutation("K3", "step.py", "request.num_prompt_rows += len(rows)", "pass", 0),
    Mutation(
        "K4",
        "kv_cache.py",
        "if self._cache.forget(block):",
        "if block in self._cache.blocks:",
        19,
    ),
    Mutation("K4", "block_pool.py", "free[block] = None\n", "pass\n", 0),
    Mutation(
        "K6",
        "kv_cache.py",
        "num_new + self._num_revived(hit) > self._pool.num_free",
        "num_new > self._pool.num_free",
        1139,
    ),
    Mutation(
        "K6",
        "block_pool.py",
        "refs[block] += 1",
        "refs[block] = 1",
        1,
    ),
    Mutation(
        "K7",
        "kv_cache.py",
        "spare < self.watermark_blocks and not idle",
        "spare < self.watermark_blocks",
        2,
    ),
    Mutation("K7", "kv_cache.py", 'return "watermark" if', 'return "watermark" if False and', 3),
    Mutation("K8", "kv_cache.py", "self._promised += more\n", "pass\n", 0),
    Mutation("K8", "kv_cache.py", "self._promised -= held.promised\n", "pass\n", 3),
    # Preemption.
    Mutation(
        "P1",
        "policy.py",
        "request.rank = tuple(-part for part in rank)",
        "request.rank = (*(-part for part in rank[:-1]), rank[-1])",
        9,
    ),
    Mutation(
        "P1",
        "preemption.py",
        "            state = RequestState.PREEMPTED\n            victim.num_computed_tokens = 0",
        "            state = RequestState.PREEMPTED",
        3,
    ),
    Mutation(
        "P2",
        "step.py",
        "swap_in.slots[swap_in.num_hits :],",
        "swap_in.slots[: len(swap_in.slots) - swap_in.num_hits],",
        20,
    ),
    Mutation(
        "P2",
        "roster.py",
        "            request.swapped = ()\n        num_looked",
        "            pass\n        num_looked",
        54,
    ),
    Mutation("P2", "preemption.py", "victim.swapped = slots\n", "victim.swapped = slots[:1]\n", 3),
    Mutation("P2", "roster.py", "self.swap.give_back(request.swapped)\n", "pass\n", 54),
    Mutation(
        "P2",
        "preemption.py",
        "step.copies_out += zip(victim.held.blocks, slots, strict=False)",
        "step.copies_out += zip(victim.held.blocks[1:], slots, strict=False)",
        20,
    ),
    Mutation(
        "P4",
        "preemption.py",
        "request.num_memory_preemptions >= self._max_preemptions",
        "request.num_memory_preemptions > self._max_preemptions",
        3,
    ),
    Mutation(
        "P4",
        "preemption.py",
        "[r for r in running if r is request or not r.held.reserved]",
        "list(running)",
        39,
    ),
    Mutation(
        "P4",
        "kv_cache.py",
        "            self._reserved -= held.promised\n        if num_valid",
        "            pass\n        if num_valid",
        5,
    ),
    Mutation("P5", "step.py", "self.recomputed_tokens -= _recomputed(request, chunk)", "pass", 881),
    # Acceptance and faults.
    Mutation(
        "A1",
        "acceptance.py",
        "return 0 if request.index else request.num_prompt_tokens",
        "return request.num_prompt_tokens",
        0,
    ),
    Mutation(
        "A1",
        "acceptance.py",
        "if limit is None or queued + new <= limit:",
        "if limit is None or queued < limit:",
        2,
    ),
    Mutation("A2", "roster.py", "self._expiring[0][0] <= now", "self._expiring[0][0] < now", 8),
    Mutation(
        "A2",
        "roster.py",
        "if request.state is RequestState.WAITING:\n                self.end(",
        "if not request.finished:\n                self.end(",
        5,
    ),
    Mutation(
        "A3",
        "isolation.py",
        "self._kv.forget_written(chunk.block_table, chunk.start, chunk.end)",
        "pass",
        19,
    ),
    Mutation("A3", "isolation.py", "self._kv.poison(step.plan.zero_blocks)", "pass", 6),
    Mutation(
        "A3",
        "scheduler.py",
        "self._kv.poison(chunk.block_table)\n            if request",
        "if request",
        228,
    ),
    Mutation("A3", "scheduler.py", "        self._isolation.clear(request)", "        pass", 6),
    Mutation(
        "A3",
        "isolation.py",
        "for _, block in step.plan.copies_in:\n                self._kv.forget(block)",
        "pass",
        148,
    ),
    Mutation(
        "A3", "isolation.py", "request.num_pending -= chunk.sample is not None\n", "pass\n", 5
    ),
    Mutation("A3", "isolation.py", "self._roster.swap.give_back(request.swapped)", "pass", 154),
]
