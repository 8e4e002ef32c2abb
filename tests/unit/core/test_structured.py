from __future__ import annotations

from typing import Any

import pytest

from headway.core.params import SamplingParams
from headway.core.request import Request
from headway.core.structured import StructuredOutputs
from headway.errors import InvalidRequest

END, DOT = 9, 5


class Anything:
    """A constraint that nobody asks."""

    def allowed(self, output_ids: object) -> bytes:
        raise AssertionError


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "structured_outputs: holds nothing"),
    "two kinds": ({"regex": "a", "choice": ["a"]}, "structured_outputs: holds regex and choice"),
    "json type": ({"json": 3}, "structured_outputs.json: must be a string"),
    "no JSON": ({"json": {"a": object()}}, "structured_outputs.json: is no JSON"),
    "NaN": ({"json": {"const": float("nan")}}, "structured_outputs.json: is no JSON"),
    "empty regex": ({"regex": " "}, "structured_outputs.regex: is empty"),
    "choice type": ({"choice": "ab"}, "structured_outputs.choice: must be a list of strings"),
    "choice items": ({"choice": [1]}, "structured_outputs.choice: must be a list of strings"),
    "no choice": ({"choice": []}, "structured_outputs.choice: is empty"),
    "empty choice": ({"choice": ["a", ""]}, "structured_outputs.choice: is empty, or holds"),
    "json_object": ({"json_object": 1}, "structured_outputs.json_object: must be true or false"),
    "large json": ({"json": " " * 2 + "1" * (1 << 20)}, "structured_outputs.json: has 1,048,578"),
    "large regex": ({"regex": "a" * 70_000}, "structured_outputs.regex: has 70,000 bytes"),
    "large choice": ({"choice": ["a" * 600_000] * 2}, "structured_outputs.choice: has 1,200,000"),
    "surrogate": ({"regex": "\ud800"}, "structured_outputs.regex: holds half of a surrogate"),
    "space of a regex": (
        {"regex": "a", "disable_any_whitespace": True},
        "structured_outputs.disable_any_whitespace: is about JSON",
    ),
    "two spaces": (
        {"json_object": True, "disable_any_whitespace": True, "whitespace_pattern": " "},
        "structured_outputs.whitespace_pattern: cannot go with",
    ),
    "own path": ({"json": "", "path": "text.format"}, "text.format: is empty"),
}


@pytest.mark.parametrize(("asked", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_is_refused_by_name(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        StructuredOutputs(**asked)
    assert str(raised.value).startswith(message)


def test_the_same_thing_is_equal_and_keeps_the_order_of_properties() -> None:
    schema = {"properties": {"b": {}, "a": {}}}
    one, other = StructuredOutputs(json=schema, path="x"), StructuredOutputs(json=schema)
    assert one == other
    assert hash(one) == hash(other)
    assert one != StructuredOutputs(json={"properties": {"a": {}, "b": {}}})
    assert one.json == '{"properties": {"b": {}, "a": {}}}'
    assert StructuredOutputs(choice=["a"]).choice == ("a",)


def test_what_says_what_is_allowed_goes_alone() -> None:
    with pytest.raises(InvalidRequest, match=r"^allowed_token_ids: cannot go with structured_out"):
        SamplingParams(
            allowed_token_ids=[1], structured_outputs=StructuredOutputs(json_object=True)
        )
    with pytest.raises(InvalidRequest, match=r"^structured_outputs: must be StructuredOutputs"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def constrained(**params: Any) -> Request:
    return Request(
        "r",
        [1, 2],
        SamplingParams(stop_token_ids=[DOT], **params),
        arrival_s=0.0,
        eos_token_ids=(END,),
        constraint=Anything(),
    )


def test_the_end_of_a_constrained_output_ends_it_and_is_suppressed_where_it_is_ignored() -> None:
    request = constrained(ignore_eos=True, min_tokens=2)
    assert request.stop_token_ids == {DOT, END}
    assert request.sample_at(2).suppressed == (DOT, END)
    request.token_ids += [7, 8]
    assert request.sample_at(4).suppressed == (END,)
    assert constrained().sample_at(2).suppressed == ()


def test_a_constraint_is_given_the_output_and_rules_drafts_out() -> None:
    request = constrained()
    request.token_ids += [7, 8]
    assert request.sample_at(4).output_ids == (7, 8)
    assert not request.draws_alike
