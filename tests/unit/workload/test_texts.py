from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.workload import Text

KEYS = st.text("ab/0", min_size=1, max_size=6)


@settings(deadline=None, max_examples=50)
@given(KEYS, st.integers(0, 40), st.integers(0, 40), st.integers(0, 60_000))
def test_a_shorter_text_begins_a_longer_one_of_its_key(
    key: str, length: int, more: int, low: int
) -> None:
    ids = range(low, low + 5000)
    whole = Text(key, length + more, ids).token_ids
    assert len(whole) == length + more
    assert Text(key, length, ids).token_ids == whole[:length]
    assert all(token in ids for token in whole)


def test_texts_of_different_keys_are_different() -> None:
    drawn = {tuple(Text(f"a/{index}", 8, range(190)).token_ids) for index in range(2000)}
    assert len(drawn) == 2000


def test_all_tokens_are_equally_likely_to_both_ends() -> None:
    counts = Counter(Text("x", 60_000, range(7, 13)).token_ids)
    assert sorted(counts) == [7, 8, 9, 10, 11, 12]
    # Five standard deviations of a binomial distribution.
    assert all(abs(count - 10_000) < 5 * (10_000 * 5 / 6) ** 0.5 for count in counts.values())


def test_a_text_is_the_same_on_every_machine_and_version() -> None:
    drawn = Text("0/a/prompt 0", 4, range(1000, 30_000)).token_ids
    assert drawn == [14956, 6092, 25891, 12779]
