"""A load against a scripted server, on virtual time: every figure is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.bench.figures import Wanted
from headway.bench.serving import Load, Measured, Server, measure
from headway.errors import HeadwayError
from headway.workload import (
    AtOnce,
    ClosedLoop,
    Constant,
    Poisson,
    Trace,
    TrafficClass,
    Turns,
    Workload,
)
from scripted_server import (
    MODELS,
    Asked,
    Piece,
    Reply,
    ScriptedServer,
    completion,
    free_url,
    token,
    usage,
)
from virtual_loop import run_virtually

WANTED = Wanted(metrics=("ttft", "tpot", "itl", "e2el"), percentiles=(99,))


def workload(count: int = 4, **fields: object) -> Workload:
    kind = {"input_len": 5, "output_len": 3, "arrivals": Constant(1.0), "name": "a", **fields}
    return Workload(classes=(TrafficClass(num_prompts=count, **kind),))


def load(work: Workload | None = None, **fields: object) -> Load:
    options = {"seeds": (0,), "text": False, "wanted": WANTED, **fields}
    return Load(workload=work or workload(), **options)


def run(
    answer: Callable[[Asked], Reply],
    what: Load,
    *,
    kind: str = "completions",
    said: list[str] | None = None,
    **options: object,
) -> tuple[Measured, list[Asked]]:
    async def work() -> tuple[Measured, list[Asked]]:
        async with ScriptedServer(answer).serving() as scripted:
            endpoint = "/v1/completions" if kind == "completions" else "/v1/chat/completions"
            server = Server(base_url=scripted.url, kind=kind, endpoint=endpoint, **options)
            say = (said if said is not None else []).append
            measured = await measure(server, what, say=say)
            return measured, scripted.asked

    return run_virtually(work())


def steady(asked: Asked) -> Reply:
    if asked.path == "/v1/models":
        return MODELS
    return completion(0.3, [0.1, 0.2], prompt=len(asked.body["prompt"]))


def test_every_figure_of_a_steady_server() -> None:
    measured, asked = run(steady, load())
    result = measured.result
    assert measured.model == "the-model"
    assert (result["completed"], result["failed"]) == (4, 0)
    for key in ("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms"):
        assert result[key] == pytest.approx(300)
    assert result["mean_tpot_ms"] == pytest.approx(150)
    assert result["mean_itl_ms"] == pytest.approx(150)
    assert result["p99_itl_ms"] == pytest.approx(200)
    assert result["mean_e2el_ms"] == pytest.approx(600)
    assert result["duration"] == pytest.approx(3.6)
    assert result["output_throughput"] == pytest.approx(12 / 3.6)
    assert result["max_lateness_ms"] == pytest.approx(0)
    assert result["token_counts"] == "usage"
    sent = [each for each in asked if each.path == "/v1/completions"]
    assert [each.at_s for each in sent] == pytest.approx([0, 1, 2, 3])
    bodies = [tuple(each.body["prompt"]) for each in sent]
    assert bodies == [item.token_ids for item in workload().items()]
    assert all(each.body["max_tokens"] == 3 and each.body["stream"] for each in sent)


def test_the_server_is_believed_about_tokens_that_came_together() -> None:
    def speculative(asked: Asked) -> Reply:
        return completion(0.3, [0.4], prompt=5, extra=3)

    measured, _ = run(speculative, load(), model="m")
    assert measured.result["total_output_tokens"] == 4 * 5
    assert measured.result["mean_itl_ms"] == pytest.approx(400)
    assert measured.result["mean_tpot_ms"] == pytest.approx(100)
    assert measured.result["tokens_per_chunk"] == 2.5


def test_without_usage_chunks_are_counted_and_it_is_said() -> None:
    def silent(asked: Asked) -> Reply:
        return Reply((Piece(0.1, token()), Piece(0.1, token(finish="stop")), Piece(0, "[DONE]")))

    measured, _ = run(silent, load(), model="m")
    assert measured.result["total_output_tokens"] == 8
    assert measured.result["token_counts"] == "chunks"
    assert measured.result["total_cached_tokens"] is None
    assert measured.result["short_outputs"] == 4


def test_each_way_to_fail_is_counted_and_spoils_nothing() -> None:
    replies = [
        completion(0.3, [0.1], prompt=5),
        Reply(status=500, body={"error": {"message": "out of memory"}}),
        Reply((Piece(0.1, token()), Piece(5.0, token(), cut=True))),
        Reply((Piece(0.2, token()), Piece(0.1, {"error": {"message": "it died"}}))),
        Reply((Piece(0.4, "[DONE]"),)),
        completion(0.5, [0.1], prompt=5),
    ]
    pending = iter(replies)
    measured, _ = run(lambda _: next(pending), load(workload(len(replies))), model="m")
    result = measured.result
    assert (result["completed"], result["failed"]) == (2, 4)
    assert result["mean_ttft_ms"] == pytest.approx(400)
    assert result["total_output_tokens"] == 4
    errors = result["error_counts"]
    assert sum(errors.values()) == 4
    assert {"HTTP 500: out of memory", "it died", "the answer has no token"} < set(errors)
    assert measured.details["errors"][2] in errors
    after = measured.details["failed_after"]
    assert [each is None for each in after] == [True, False, False, False, False, True]
    assert after[1:5] == pytest.approx([0.0, 5.1, 0.3, 0.4])


def test_classes_are_reported_apart() -> None:
    work = Workload(
        classes=(
            TrafficClass(
                name="short", num_prompts=3, input_len=4, output_len=1, arrivals=Constant(1.0)
            ),
            TrafficClass(name="long", num_prompts=1, input_len=50, output_len=1),
        )
    )

    def by_length(asked: Asked) -> Reply:
        return completion(0.01 * len(asked.body["prompt"]), [], prompt=1)

    measured, _ = run(by_length, load(work), model="m")
    classes = measured.result["classes"]
    assert classes["short"]["mean_ttft_ms"] == pytest.approx(40)
    assert classes["long"]["mean_ttft_ms"] == pytest.approx(500)
    assert (classes["short"]["completed"], classes["long"]["completed"]) == (3, 1)
    assert measured.result["mean_ttft_ms"] == pytest.approx((3 * 40 + 500) / 4)


def test_seeds_are_run_one_after_the_other_and_pooled() -> None:
    work = workload(2, arrivals=AtOnce())
    measured, asked = run(steady, load(work, seeds=(1, 2)), model="m")
    assert measured.result["completed"] == 4
    assert measured.result["duration"] == pytest.approx(1.2)
    assert [each.at_s for each in asked] == pytest.approx([0, 0, 0.6, 0.6])
    assert len({tuple(each.body["prompt"]) for each in asked}) == 4


def test_users_and_a_limit_of_all() -> None:
    work = workload(4, arrivals=ClosedLoop(2))
    _, asked = run(steady, load(work), model="m")
    assert [each.at_s for each in asked] == pytest.approx([0, 0, 0.6, 0.6])
    _, asked = run(steady, load(work, max_concurrency=1), model="m")
    assert [each.at_s for each in asked] == pytest.approx([0, 0.6, 1.2, 1.8])


def test_warm_ups_do_not_count_and_give_the_server_nothing_to_remember() -> None:
    measured, asked = run(steady, load(workload(2, arrivals=AtOnce()), num_warmups=2), model="m")
    assert measured.result["completed"] == 2
    prompts = [tuple(each.body["prompt"]) for each in asked]
    assert len(set(prompts)) == 4
    assert prompts[2:] == [item.token_ids for item in workload(2).items()]
    with pytest.raises(HeadwayError, match="a warm-up request failed: HTTP 400: no"):
        run(lambda _: Reply(status=400, body={"error": "no"}), load(num_warmups=1), model="m")


def chat_server(asked: Asked) -> Reply:
    """Its template takes 7 tokens, and each word is one."""
    text = asked.body["messages"][0]["content"]
    count = 7 + len(text.split()) - 1
    if not asked.body.get("stream"):
        return Reply(body={"choices": [], "usage": {"prompt_tokens": count}})
    chunks = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]},
        usage(count, 1),
    ]
    return Reply((*(Piece(0.1, chunk) for chunk in chunks), Piece(0, "[DONE]")))


def test_text_is_fitted_to_the_servers_tokenizer() -> None:
    work = workload(3, input_len=(20, 30))
    measured, asked = run(chat_server, load(work, text=True), kind="chat", model="m")
    asked_for = [len(item.token_ids) for item in work.items()]
    assert measured.details["input_lens"] == asked_for
    assert measured.result["wrong_input_lens"] == 0
    assert measured.result["frame_tokens"] == 7
    assert measured.result["mean_ttft_ms"] == pytest.approx(200)
    assert asked[-1].body["max_completion_tokens"] == 3


TALK = {"turns": Turns(count=3, input_len=4, pause_s=0.5), "input_len": 20}


def telling(prompt: int, ids: list[int] | None, texts: list[str]) -> Reply:
    """An answer of some chunks, with its tokens if there are any."""
    chunks = [token(text) for text in texts]
    if ids is not None:
        for chunk, each in zip(chunks, ids, strict=True):
            chunk["choices"][0]["token_ids"] = [each]
    chunks[-1]["choices"][0]["finish_reason"] = "length"
    events = [*chunks, usage(prompt, len(texts)), "[DONE]"]
    return Reply(tuple(Piece(0.1, event) for event in events))


@pytest.mark.parametrize("tells", [True, False])
def test_a_conversation_goes_on_from_the_servers_own_tokens(tells: bool) -> None:
    def answer(asked: Asked) -> Reply:
        prompt = asked.body["prompt"]
        ids = [len(prompt), 2, 3] if tells else None
        return telling(len(prompt), ids, ["a", "b", "c"])

    work = workload(1, **TALK)
    measured, asked = run(answer, load(work), model="m")
    items = work.items()
    first = list(items[0].token_ids)
    second, third = (each.body["prompt"] for each in asked[1:])
    if tells:
        assert second == [*first, 20, 2, 3, *items[1].own_ids]
        assert third == [*second, 27, 2, 3, *items[2].own_ids]
    else:
        assert (second, third) == (list(items[1].token_ids), list(items[2].token_ids))
    assert all(each.body["return_token_ids"] for each in asked)
    assert measured.result["made_up_answers"] == (0 if tells else 2)
    assert measured.details["input_lens"] == [20, 27, 34]
    assert measured.result["wrong_input_lens"] == 0
    assert [each.at_s for each in asked] == pytest.approx([0, 1.0, 2.0])


def test_token_ids_are_asked_for_only_where_a_turn_needs_them() -> None:
    _, asked = run(steady, load(), model="m")
    assert not any("return_token_ids" in each.body for each in asked)


def test_a_conversation_in_text_goes_on_from_the_answer() -> None:
    def answer(asked: Asked) -> Reply:
        count = len(asked.body["prompt"].split()) - 1
        if not asked.body.get("stream"):
            return Reply(body={"usage": {"prompt_tokens": count}})
        return telling(count, None, [" yes", " no"])

    measured, asked = run(answer, load(workload(1, **TALK), text=True), model="m")
    first, second, third = (each.body["prompt"] for each in asked if each.body.get("stream"))
    assert second.startswith(first + " yes no ")
    assert third.startswith(second + " yes no ")
    assert len(third.split()) - 1 == 20 + 2 * (2 + 4)
    assert (measured.result["wrong_input_lens"], measured.result["made_up_answers"]) == (0, 0)


def test_a_chat_goes_on_in_messages() -> None:
    def answer(asked: Asked) -> Reply:
        if not asked.body.get("stream"):
            return chat_server(asked)
        chunk = {"choices": [{"delta": {"content": "Hm."}, "finish_reason": "stop"}]}
        return Reply((Piece(0.1, chunk), Piece(0, usage(99, 1)), Piece(0, "[DONE]")))

    measured, asked = run(answer, load(workload(1, **TALK), text=True), kind="chat", model="m")
    messages = [each.body["messages"] for each in asked if each.body.get("stream")]
    assert [[each["role"] for each in sent] for sent in messages] == [
        ["user"],
        ["user", "assistant", "user"],
        ["user", "assistant", "user", "assistant", "user"],
    ]
    assert messages[2][:3] == messages[1]
    assert messages[1][1]["content"] == "Hm."
    assert len(messages[0][0]["content"].split()) == 1 + 20 - 7
    assert len(messages[1][2]["content"].split()) == 1 + 4
    # The server says 99, and of the first alone it is known that this is wrong.
    assert measured.result["wrong_input_lens"] == 1


def test_warm_ups_send_no_later_turns() -> None:
    _, asked = run(steady, load(workload(2, **TALK), num_warmups=2), model="m")
    assert [len(each.body["prompt"]) for each in asked[:2]] == [20, 20]
    assert len(asked) == 2 + 6


def test_a_class_can_have_fields_of_its_own() -> None:
    work = workload(1, body={"priority": 1, "user": "a"})
    _, [asked] = run(steady, load(work), model="m", extra_body={"user": "all", "top_k": 3})
    assert [asked.body[name] for name in ("priority", "user", "top_k")] == [1, "a", 3]


def test_bodies_beyond_what_memory_should_hold_are_made_as_they_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, before = run(steady, load(), model="m")
    monkeypatch.setattr("headway.bench.serving._MADE_BEFORE_BYTES", 100)
    measured, after = run(steady, load(), model="m")
    assert [each.body for each in after] == [each.body for each in before]
    assert measured.result["max_lateness_ms"] == pytest.approx(0)


class OneAtATime:
    """Answers one request after the other, each a second after it began on it."""

    def __init__(self) -> None:
        self.free_s = 0.0

    def __call__(self, asked: Asked) -> Reply:
        self.free_s = max(self.free_s, asked.at_s) + 1.0
        return completion(self.free_s - asked.at_s, [], prompt=5)


@pytest.mark.parametrize(
    ("arrivals", "saturated"),
    [(Poisson(0.7), False), (Poisson(2.0), True), (ClosedLoop(30), None), (AtOnce(), None)],
)
def test_a_load_that_is_too_much_says_so(arrivals: object, saturated: bool | None) -> None:
    work = workload(60, arrivals=arrivals, output_len=1)
    measured, _ = run(OneAtATime(), load(work), model="m")
    assert measured.result["saturated"] is saturated
    if saturated:
        signs = measured.result["saturation"]
        assert signs["served_rate"] == pytest.approx(1.0, abs=0.1)
        assert signs["arrival_rate"] == pytest.approx(2.0, abs=0.1)


def test_a_trace_that_is_changed_meanwhile_does_not_cost_the_measurement(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-01-01 00:00:00,5,3\n2024-01-01 00:00:01,9,3\n"
    )

    def answer(asked: Asked) -> Reply:
        path.unlink(missing_ok=True)
        return steady(asked)

    work = Workload(traces=(Trace(name="t", path=str(path), max_input_len=6),))
    measured, _ = run(answer, load(work), model="m")
    [trace] = measured.result["traces"]
    assert (trace["requests"], trace["cut_inputs"]) == (2, 1)


def test_it_waits_for_a_server_that_is_not_ready_as_long_as_it_is_told() -> None:
    calls = iter([Reply(status=503, body={}), Reply(status=503, body={}), MODELS])

    def late(asked: Asked) -> Reply:
        return next(calls) if asked.path == "/v1/models" else steady(asked)

    measured, asked = run(late, load(), ready_check_timeout_s=5.0)
    assert measured.model == "the-model"
    assert [each.at_s for each in asked[:3]] == pytest.approx([0, 1, 2])
    with pytest.raises(HeadwayError, match="/v1/models answers 503"):
        run(lambda _: Reply(status=503, body={}), load(), ready_check_timeout_s=1.5)


def test_a_run_in_which_all_fails_is_an_error_with_the_first_reason() -> None:
    with pytest.raises(HeadwayError, match="all 4 requests failed; the first: HTTP 404: no such"):
        run(lambda _: Reply(status=404, body={"error": "no such model"}), load(), model="m")


def test_a_server_that_is_not_there_is_told_with_what_to_do() -> None:
    async def work() -> None:
        server = Server(base_url=await free_url(), kind="completions", endpoint="/v1/completions")
        await measure(server, load(), say=lambda _: None)

    with pytest.raises(HeadwayError, match=r"no server answers at http://127.*--base-url"):
        run_virtually(work())


@pytest.mark.parametrize("body", [{"data": []}, {"models": 1}, 5])
def test_a_list_of_models_that_is_none(body: object) -> None:
    with pytest.raises(HeadwayError, match="/v1/models"):
        run(lambda _: Reply(body=body), load())


def test_headers_go_with_every_request() -> None:
    _, asked = run(steady, load(), headers={"Authorization": "Bearer key"})
    assert {each.headers["authorization"] for each in asked} == {"bearer key"}


def test_the_time_a_request_takes_is_not_lost_to_a_slow_clock() -> None:
    measured, _ = run(steady, load(), model="m")
    assert all(math.isfinite(value) for value in measured.details["ttfts"])
    assert measured.details["start_times"] == pytest.approx([0, 1, 2, 3])
