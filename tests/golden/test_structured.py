"""Outputs of the default model, held to schemas, expressions and grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from headway import LLM, RequestOutput, SamplingParams, StructuredOutputs

TEXT, WHOLE = {"type": "string", "maxLength": 12}, {"type": "integer", "minimum": 0, "maximum": 99}
NUMBER, FLAG = {"type": "number", "minimum": -5, "maximum": 5}, {"type": "boolean"}


def record(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required or properties),
        "additionalProperties": False,
    }


def items(schema: Any, least: int = 1, most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": least, "maxItems": most}


_TREE = {"$ref": "#/$defs/t"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "record": record(name=TEXT, age=WHOLE),
    "optional": record("name", name=TEXT, age=WHOLE, city=TEXT),
    "nested": record(person=record(first=TEXT, last=TEXT), at=record(x=NUMBER, y=NUMBER)),
    "list": items(TEXT),
    "list of records": items(record(name=TEXT, count=WHOLE), 2, 2),
    "tuple": {"type": "array", "prefixItems": [TEXT, WHOLE], "items": False, "minItems": 2},
    "enum": {"enum": ["red", 7, None, {"a": [1]}]},
    "const": record(kind={"const": "point"}, x=NUMBER),
    "any of": {"anyOf": [record(a=WHOLE), record(b=items(FLAG))]},
    "one of": {"oneOf": [record(k={"const": "a"}, v=WHOLE), record(k={"const": "b"}, v=TEXT)]},
    "all of": {"allOf": [record("a", a=WHOLE, b=True), {"properties": {"b": FLAG}}]},
    "reference": {"$ref": "#/$defs/p", "$defs": {"p": record(x=WHOLE, y=WHOLE)}},
    "tree": {
        **_TREE,
        "$defs": {"t": record("v", v=WHOLE, next={"anyOf": [_TREE, {"type": "null"}]})},
    },
    "nullable": record(note={"type": ["string", "null"], "maxLength": 8}, done=FLAG),
    "pattern": record(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    "format": record(day={"type": "string", "format": "date"}, id={"format": "uuid"}),
    "lengths": {"type": "string", "minLength": 3, "maxLength": 9},
    "multiple": record(price={"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9}),
    "map": {"type": "object", "additionalProperties": WHOLE, "maxProperties": 2},
    "unicode": record(**{"naïve ключ": {"enum": ["ja", "日本"]}}),
    "empty object": record(),
}
EXPRESSIONS = {
    "date": r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])",
    "sentence": r"The [a-z]{2,12} is [a-z]{2,12}\.",
    "phone": r"\+\d{2} \d{3} \d{4,6}",
    "path": r"(/[a-z]{1,8}){1,4}",
    "colour": r"#[0-9a-f]{6}",
    "lines": r"(- [A-Za-z ]{3,20}\n){3}",
}
CHOICES = ["positive", "negative", "neither nor"]
SUM = 'start: NUMBER (SIGN NUMBER){1,3} "=" NUMBER\nNUMBER: /[0-9]{1,3}/\nSIGN: / [-+] /\n'
SUM_EXPRESSION = r"\d{1,3}( [-+] \d{1,3}){1,3}=\d{1,3}"


def follows(schema: dict[str, Any]) -> Callable[[str], bool]:
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    return lambda text: validator.is_valid(json.loads(text))


def matches(expression: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(expression, text, re.ASCII) is not None


CASES: dict[str, tuple[StructuredOutputs, Callable[[str], bool]]] = {
    **{name: (StructuredOutputs(json=s), follows(s)) for name, s in SCHEMAS.items()},
    **{name: (StructuredOutputs(regex=e), matches(e)) for name, e in EXPRESSIONS.items()},
    "choice": (StructuredOutputs(choice=CHOICES), CHOICES.__contains__),
    "object": (
        StructuredOutputs(json_object=True),
        lambda text: isinstance(json.loads(text), dict),
    ),
    "grammar": (StructuredOutputs(grammar=SUM), matches(SUM_EXPRESSION)),
}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "top_p": 0.95, "seed": 11},
}


def params(name: str, how: str, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=48, structured_outputs=CASES[name][0], **SAMPLING[how], **more)


@pytest.fixture(scope="module")
def llm(model_path: Path) -> LLM:
    return LLM(str(model_path), num_kv_blocks=120, max_num_seqs=24, debug_invariants=True)


@pytest.fixture(scope="module")
def outputs(llm: LLM) -> dict[tuple[str, str], RequestOutput]:
    """All at once, in few blocks: each sampled, and every third greedy too."""
    asked = [(name, "sampled") for name in CASES]
    asked += [(name, "greedy") for name in list(CASES)[::3]]
    prompts = [f"Here is an example of what we call {name}: " for name, _ in asked]
    results = llm.generate(prompts, [params(*item) for item in asked], use_tqdm=False)
    return dict(zip(asked, results, strict=True))


def test_every_output_that_ended_is_what_was_asked_for(
    outputs: dict[tuple[str, str], RequestOutput],
) -> None:
    ended = 0
    for (name, how), result in outputs.items():
        [output] = result.outputs
        assert result.error is None, name
        assert output.finish_reason in ("stop", "length")
        if output.finish_reason == "stop":
            ended += 1
            assert CASES[name][1](output.text), (name, how, output.text)
    assert ended >= 0.9 * len(outputs)


@pytest.mark.parametrize("name", ["record", "path"])
@pytest.mark.parametrize("how", SAMPLING)
def test_an_output_is_the_same_alone(
    llm: LLM, outputs: dict[tuple[str, str], RequestOutput], name: str, how: str
) -> None:
    beside = outputs[name, how]
    [alone] = llm.generate([beside.prompt_token_ids], params(name, how), use_tqdm=False)
    if llm.config.kernels is not None:
        assert alone.outputs[0].token_ids == beside.outputs[0].token_ids


def test_what_is_cut_is_the_beginning_of_what_would_have_been(
    llm: LLM, outputs: dict[tuple[str, str], RequestOutput]
) -> None:
    whole = outputs["record", "greedy"]
    cut = SamplingParams(
        max_tokens=5, temperature=0.0, structured_outputs=CASES["record"][0], ignore_eos=True
    )
    [result] = llm.generate([whole.prompt_token_ids], cut, use_tqdm=False)
    assert result.outputs[0].finish_reason == "length"
    assert whole.outputs[0].text.startswith(result.outputs[0].text)
