from __future__ import annotations

import httpx
import openai
import pytest

from server.fake_engine import FakeEngine
from server.serving import CREATED, MODEL

CARD = {
    "id": MODEL,
    "object": "model",
    "created": CREATED,
    "owned_by": "headway",
    "max_model_len": 100,
    "headway": {"exact": True, "exactness": "promised: as if"},
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


def test_health_is_the_life_of_the_step_loop(client: httpx.Client, engine: FakeEngine) -> None:
    assert client.get("/health").status_code == 200
    engine.is_alive = False
    assert client.get("/health").status_code == 503
