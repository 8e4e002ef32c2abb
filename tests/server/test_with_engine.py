"""The server over the real engine."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import httpx
import pytest

from headway.server.settings import ServerSettings
from headway.server.watch.telemetry import Telemetry
from server.serving import TIMEOUT_S, abandoned_request, serving
from server.tiny_engine import ALPHABET, TinyEngine
from waiting import in_time

PROMPT = ALPHABET[:40]


@pytest.fixture
def tiny(request: pytest.FixtureRequest) -> TinyEngine:
    """With the options that a test may give as its parameter."""
    return TinyEngine(**getattr(request, "param", {}))


@pytest.fixture
def client(tiny: TinyEngine) -> Iterator[httpx.Client]:
    with (
        serving(tiny.engine, tiny.model) as url,
        httpx.Client(base_url=url, timeout=TIMEOUT_S) as client,
    ):
        yield client
        tiny.gate.set()


def post(client: httpx.Client, **body: object) -> httpx.Response:
    defaults = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12}
    return client.post("/v1/completions", json=defaults | body)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def streamed(response: httpx.Response) -> str:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


def test_text_and_tokens_streamed_or_not_are_one_answer(client: httpx.Client) -> None:
    text = text_of(post(client))
    assert len(text) == 12
    assert text_of(post(client, prompt=list(range(40)))) == text
    assert streamed(post(client, stream=True)) == text


def test_a_repeated_prompt_is_found_in_the_cache(client: httpx.Client) -> None:
    details = [post(client).json()["usage"]["prompt_tokens_details"] for _ in range(2)]
    assert details == [{"cached_tokens": 0}, {"cached_tokens": 32}]


def assert_idle(client: httpx.Client) -> None:
    metrics = client.get("/metrics").text
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert f'headway:{name}{{engine="0",model_name="the-model"}} 0.0' in metrics


def test_a_stop_string_ends_the_answer_and_is_no_part_of_it(
    client: httpx.Client, tiny: TinyEngine
) -> None:
    text = text_of(post(client, max_tokens=30))
    assert tiny.ended.get(timeout=TIMEOUT_S).finish_reason == "length"
    assert_idle(client)
    stop = text[10:12]
    choice = post(client, max_tokens=30, stop=[stop]).json()["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert tiny.ended.get(timeout=TIMEOUT_S).finish_reason == "stop"
    assert_idle(client)


def test_many_clients_at_once_get_what_each_gets_alone(
    client: httpx.Client, tiny: TinyEngine
) -> None:
    bodies = [
        {"prompt": ALPHABET[: 3 + 2 * i], "max_tokens": 5 + i, "stream": i % 2 == 0}
        for i in range(20)
    ]
    alone = [text_of(post(client, **body | {"stream": False})) for body in bodies]

    def ask(body: dict[str, object]) -> str:
        response = post(client, **body)
        return streamed(response) if body["stream"] else text_of(response)

    tiny.hold()
    with ThreadPoolExecutor(len(bodies)) as pool:
        futures = [pool.submit(ask, body) for body in bodies]
        tiny.wait_for(len(bodies))
        tiny.gate.set()
        assert [future.result(TIMEOUT_S) for future in futures] == alone
    assert max(tiny.batch_sizes) > 1


def test_several_prompts_in_one_request_get_what_each_gets_alone(client: httpx.Client) -> None:
    prompts = [ALPHABET[:5], ALPHABET[10:30], ALPHABET[:40]]
    alone = [text_of(post(client, prompt=prompt)) for prompt in prompts]
    choices = post(client, prompt=prompts).json()["choices"]
    assert [choice["text"] for choice in choices] == alone


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers(client: httpx.Client) -> None:
    response = post(client, prompt=[1] * 128)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert error["message"].count("128") == 2


@pytest.mark.parametrize("tiny", [{"max_num_queued_reqs": 2}], indirect=True)
def test_more_prompts_than_may_ever_wait_are_too_many(client: httpx.Client) -> None:
    error = post(client, prompt=[[1]] * 3).json()["error"]
    assert error["code"] == "request_too_large"
    assert "max_num_queued_reqs (2)" in error["message"]


@pytest.mark.parametrize("tiny", [{"max_num_queued_reqs": 1}], indirect=True)
def test_one_more_than_may_wait_is_429(client: httpx.Client, tiny: TinyEngine) -> None:
    tiny.hold()
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(post, client)
        assert tiny.executor.entered.wait(TIMEOUT_S)
        two_more = {pool.submit(post, client) for _ in range(2)}
        done, waiting = wait(two_more, TIMEOUT_S, return_when=FIRST_COMPLETED)
        tiny.gate.set()
        assert [future.result().status_code for future in done] == [429]
        assert [future.result(TIMEOUT_S).status_code for future in waiting] == [200]
        assert running.result(TIMEOUT_S).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"), [("prompt", [61]), ("prompt", [-1]), ("prompt", [[]]), ("prompt", "")]
)
def test_a_prompt_that_is_no_prompt_is_refused(
    client: httpx.Client, field: str, value: object
) -> None:
    response = post(client, **{field: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize("stream", [False, True])
def test_the_blocks_of_a_client_that_goes_away_are_free(
    client: httpx.Client, tiny: TinyEngine, stream: bool
) -> None:
    tiny.hold()
    with abandoned_request(client, {"prompt": PROMPT, "max_tokens": 80, "stream": stream}):
        assert tiny.executor.entered.wait(TIMEOUT_S)
    tiny.engine.aborted.get(timeout=TIMEOUT_S)
    tiny.gate.set()
    assert tiny.ended.get(timeout=TIMEOUT_S).finish_reason == "abort"
    assert in_time(lambda: tiny.kv.num_used == 0)
    assert_idle(client)


def test_clients_that_go_at_once_are_in_no_further_plan(
    client: httpx.Client, tiny: TinyEngine
) -> None:
    tiny.hold()
    body: dict[str, object] = {"prompt": PROMPT, "max_tokens": 80, "stream": True}
    with contextlib.ExitStack() as clients:
        for _ in range(20):
            clients.enter_context(abandoned_request(client, body))
        tiny.wait_for(20)
        assert tiny.executor.entered.wait(TIMEOUT_S)
    for _ in range(20):  # while the step is held: none waits for it to end
        tiny.engine.aborted.get(timeout=TIMEOUT_S)
    tiny.gate.set()
    reasons = [tiny.ended.get(timeout=TIMEOUT_S).finish_reason for _ in range(20)]
    assert reasons == ["abort"] * 20
    assert text_of(post(client, max_tokens=1))
    assert len(tiny.batch_sizes) == 2, "the step that was held, and that of the next request"
    assert in_time(lambda: tiny.kv.num_used == 0)


@pytest.fixture
def watched(tiny: TinyEngine) -> Iterator[httpx.Client]:
    """Of a server that takes, and gives, ids of requests."""
    telemetry = Telemetry(ServerSettings(), now=time.monotonic, epoch_s=0.0)
    telemetry.model_opened(tiny.model.name, by_tenant=False)
    with (
        serving(tiny.engine, tiny.model, wrap=lambda app: telemetry.wrap(app, ())) as url,
        httpx.Client(base_url=url, timeout=TIMEOUT_S) as client,
    ):
        yield client
        tiny.gate.set()


def test_a_request_id_may_come_again_while_its_request_is_being_aborted(
    watched: httpx.Client, tiny: TinyEngine
) -> None:
    text = text_of(post(watched))
    tiny.hold()
    body: dict[str, object] = {"prompt": PROMPT, "max_tokens": 80, "stream": True}
    with abandoned_request(watched, body, "Host: x\r\nX-Request-Id: mine\r\n"):
        tiny.wait_for(1)
        assert tiny.executor.entered.wait(TIMEOUT_S)
    tiny.engine.aborted.get(timeout=TIMEOUT_S)
    with ThreadPoolExecutor(1) as pool:
        again = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12}
        headers = {"X-Request-Id": "mine"}
        asked = pool.submit(watched.post, "/v1/completions", json=again, headers=headers)
        tiny.wait_for(1)  # its step, in which the first has a part, has not ended
        tiny.gate.set()
        response = asked.result(TIMEOUT_S)
    assert text_of(response) == text
    assert response.headers["X-Request-Id"] == "mine"
    assert in_time(lambda: tiny.kv.num_used == 0)
    assert_idle(watched)


def test_a_request_that_fails_its_step_ends_alone(client: httpx.Client, tiny: TinyEngine) -> None:
    prompt = ALPHABET[:20]
    good = text_of(post(client, prompt=prompt))
    unused = next(token for token in range(61) if ALPHABET[token] not in prompt + good)
    tiny.executor.poison = unused
    tiny.hold()
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(post, client, prompt=prompt)
        bad = pool.submit(post, client, prompt=[unused])
        tiny.wait_for(2)
        tiny.gate.set()
        response = bad.result(TIMEOUT_S)
        assert response.status_code == 500
        assert "a bad token" in response.json()["error"]["message"]
        assert text_of(other.result(TIMEOUT_S)) == good
