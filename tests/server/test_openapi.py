"""The OpenAPI document: valid, complete, and true of what the server does (Schemathesis).

`HEADWAY_FUZZ=1000` tries as many bodies an operation; without it a few are tried.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings

from server.anything import AnythingEngine
from server.serving import TIMEOUT_S, serving
from waiting import in_time

with warnings.catch_warnings():  # its dependencies'
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import definitions
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        negative_data_rejection,
        response_schema_conformance,
        status_code_conformance,
    )


def no_server_error(
    context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> bool | None:
    """Of a body that asks to wait for a moment only, "waited too long" is the right answer."""
    if response.status_code in (503, 529) and "waited too long" in response.text:
        return None
    return not_a_server_error(context, response, case)


CHECKS = [
    no_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
POSTS = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
]
GETS = [
    "/v1/models",
    "/v1/models/{name}",
    "/tokenizer_info",
    "/version",
    "/health",
    "/ready",
    "/metrics",
]
MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
MAX_EXAMPLES = int(os.environ.get("HEADWAY_FUZZ", "8"))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    engine = AnythingEngine()
    with serving(engine.engine, engine.model) as url:
        yield url
        assert in_time(lambda: engine.kv.num_used == 0)


@pytest.fixture(scope="module")
def document(url: str) -> dict[str, Any]:
    document = httpx.get(f"{url}/openapi.json", timeout=TIMEOUT_S).json()
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def test_the_document_is_openapi_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert list(definitions.OPENAPI_31_VALIDATOR.iter_errors(document)) == []


def test_every_path_is_in_it(document: dict[str, Any]) -> None:
    assert {path: set(item) for path, item in document["paths"].items()} == {
        **{path: {"post"} for path in POSTS},
        **{path: {"get"} for path in GETS},
    }


def test_a_field_that_must_ask_for_nothing_says_so(document: dict[str, Any]) -> None:
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert fields["suffix"] == {"enum": [None]}
    assert fields["spaces_between_special_tokens"] == {"enum": [None, True]}


def test_items_that_are_decoded_apart_are_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    _, items = schemas["ResponsesRequest"]["properties"]["input"]["anyOf"]
    names = [re.split(r"[/.]", each["$ref"])[-1] for each in items["items"]["anyOf"]]
    assert names == ["MessageItem", "FunctionCallItem", "FunctionCallOutputItem", "ReasoningItem"]
    assert schemas["FunctionCallItem"]["properties"]["type"] == {"enum": ["function_call"]}
    assert "CustomTool" in str(schemas["MessagesRequest"]["properties"]["tools"])
    assert "CustomTool" in str(schemas["CountTokensRequest"]["properties"]["tools"])


@pytest.mark.parametrize("path", GETS)
def test_what_is_got_is_as_described(
    url: str, document: dict[str, Any], session: requests.Session, path: str
) -> None:
    operation = schemathesis.openapi.from_dict(document)[path]["GET"]
    case = operation.Case(path_parameters={"name": "the-model"} if "{" in path else {})
    case.validate_response(case.call(base_url=url, session=session), checks=CHECKS[:4])


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", POSTS)
def test_bodies_of_all_kinds_are_answered_as_described(
    url: str,
    document: dict[str, Any],
    session: requests.Session,
    path: str,
    mode: schemathesis.GenerationMode,
) -> None:
    operation = schemathesis.openapi.from_dict(document)[path]["POST"]

    @settings(
        max_examples=MAX_EXAMPLES,
        deadline=None,
        derandomize="HEADWAY_FUZZ" not in os.environ,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        response = case.call(base_url=url, session=session, timeout=TIMEOUT_S)
        case.validate_response(response, checks=CHECKS)

    check()
    assert httpx.get(f"{url}/health", timeout=TIMEOUT_S).status_code == 200
