from __future__ import annotations

import httpx
import openai
import pytest

from headway import __version__
from headway.server.api.models import card
from server.fake_engine import FakeEngine, FakeModel
from server.serving import CREATED, MODEL

CARD = {
    "id": MODEL,
    "object": "model",
    "created": CREATED,
    "owned_by": "headway",
    "max_model_len": 100,
    "headway": {"exact": True, "exactness": "promised: as if", "sampling_defaults": {}},
}


def test_the_models_are_the_one_that_is_served(client: httpx.Client) -> None:
    assert client.get("/v1/models").json() == {"object": "list", "data": [CARD]}
    assert client.get(f"/v1/models/{MODEL}").json() == CARD


def test_openai_python_lists_the_models(openai_client: openai.OpenAI) -> None:
    assert [model.id for model in openai_client.models.list()] == [MODEL]
    assert openai_client.models.retrieve(MODEL).created == CREATED


@pytest.mark.parametrize("name", ["other", "org/other"])
def test_another_model_is_not_found(client: httpx.Client, name: str) -> None:
    response = client.get(f"/v1/models/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_the_models_own_sampling_defaults_are_shown() -> None:
    model = FakeModel()
    model.sampling_defaults = {"temperature": 0.25, "top_k": 64}
    assert card(model, MODEL).headway.sampling_defaults == {"temperature": 0.25, "top_k": 64}


def test_the_version_is_ours(client: httpx.Client) -> None:
    assert client.get("/version").json() == {"version": __version__}


def test_a_slash_too_many_is_forgiven(client: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 2}
    response = client.post("/v1/completions/", json=body, follow_redirects=True)
    assert response.json()["choices"][0]["text"] == "lo"
    assert client.get("/health/", follow_redirects=True).status_code == 200


def test_head_and_options_are_answered(client: httpx.Client) -> None:
    assert client.head("/health").status_code == 200
    assert client.head("/v1/models").content == b""
    response = client.options("/v1/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_an_unknown_path_answers_in_the_shape_of_its_api(client: httpx.Client) -> None:
    assert client.get("/v1/nothing").json()["error"]["type"] == "invalid_request_error"
    answer = client.get("/v1/messages/nothing").json()
    assert (answer["type"], answer["error"]["type"]) == ("error", "not_found_error")


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_health_is_the_life_of_the_step_loop(
    client: httpx.Client, engine: FakeEngine, path: str
) -> None:
    assert client.get(path).status_code == 200
    engine.is_alive = False
    assert client.get(path).status_code == 503
