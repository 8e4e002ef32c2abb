from __future__ import annotations

from collections.abc import Iterator

import anthropic
import httpx
import openai
import pytest

from server.anything import AnythingEngine
from server.fake_engine import FakeEngine
from server.serving import TIMEOUT_S, serving


@pytest.fixture(scope="session")
def fake_server() -> Iterator[tuple[FakeEngine, str]]:
    engine = FakeEngine()
    with serving(engine, engine.model) as url:
        yield engine, url


@pytest.fixture
def engine(fake_server: tuple[FakeEngine, str]) -> FakeEngine:
    fake_server[0].reset()
    return fake_server[0]


@pytest.fixture
def client(engine: FakeEngine, fake_server: tuple[FakeEngine, str]) -> Iterator[httpx.Client]:
    # Not verifying saves reading the system's certificates each time; nothing here is encrypted.
    with httpx.Client(base_url=fake_server[1], timeout=TIMEOUT_S, verify=False) as client:
        yield client


@pytest.fixture
def openai_client(
    engine: FakeEngine, fake_server: tuple[FakeEngine, str]
) -> Iterator[openai.OpenAI]:
    url = f"{fake_server[1]}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture
def claude(
    engine: FakeEngine, fake_server: tuple[FakeEngine, str]
) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=fake_server[1], api_key="none", max_retries=0, timeout=TIMEOUT_S
    ) as client:
        yield client


@pytest.fixture(scope="module")
def anything() -> AnythingEngine:
    return AnythingEngine()


@pytest.fixture(scope="module")
def anything_client(anything: AnythingEngine) -> Iterator[httpx.Client]:
    with (
        serving(anything.engine, anything.model) as url,
        httpx.Client(base_url=url, timeout=TIMEOUT_S) as client,
    ):
        yield client
