from __future__ import annotations

import numpy as np
import pytest

from headway.errors import InvalidRequest
from headway.llm.prompts import ParsedPrompt, as_conversations, as_prompts, parse_prompt

MESSAGE = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ("Hi", 1),
        (["Hi", "there"], 2),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
        ({"prompt": "Hi"}, 1),
        ([{"prompt": "Hi"}, [4]], 2),
        (np.array([1, 2, 3]), 1),
        ([np.int64(1), np.int64(2)], 1),
        ((text for text in ("a", "b")), 2),
        ([], 0),
        (None, 1),
        (b"Hi", 1),
    ],
)
def test_one_prompt_is_a_list_of_one(prompts: object, count: int) -> None:
    assert len(as_prompts(prompts)) == count


def test_text_tokens_and_dicts_are_understood() -> None:
    assert parse_prompt("Hi") == ParsedPrompt("Hi", None)
    assert parse_prompt(np.array([1, 2])) == ParsedPrompt(None, [1, 2])
    assert parse_prompt({"prompt": "Hi", "cache_salt": "s"}) == ParsedPrompt("Hi", None, "s")
    both = {"prompt": "Hi", "prompt_token_ids": [1]}
    assert parse_prompt(both) == ParsedPrompt(None, [1])
    assert parse_prompt({"prompt": "Hi", "prompt_token_ids": None}) == ParsedPrompt("Hi", None)


@pytest.mark.parametrize(
    ("field", "prompt"),
    [
        ("prompts", None),
        ("prompts", 5),
        ("prompts", b"Hi"),
        ("prompts", [1.7]),
        ("prompts", ["1"]),
        ("prompts", [True]),
        ("prompts", {}),
        ("prompts", {"prompt": "Hi", "multi_modal_data": 1}),
        ("prompts", {"prompt": {"prompt": "Hi"}}),
        ("cache_salt", {"prompt": "Hi", "cache_salt": 5}),
    ],
)
def test_anything_else_is_refused_by_field(field: str, prompt: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_prompt(prompt)
    assert caught.value.field == field


def test_one_conversation_is_a_list_of_one() -> None:
    assert as_conversations([MESSAGE]) == [[MESSAGE]]
    assert as_conversations([[MESSAGE], [MESSAGE]]) == [[MESSAGE], [MESSAGE]]


@pytest.mark.parametrize("messages", [MESSAGE, None, "Hi", [None], ["Hi"]])
def test_what_is_no_conversation_is_refused(messages: object) -> None:
    with pytest.raises(InvalidRequest, match="messages: must be a list of messages"):
        as_conversations(messages)
