from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import EngineArgs
from headway.core.params import SamplingParams
from headway.core.plan import ChunkError, TokenLogprobs
from headway.engine.outputs import NewRequest, OutputDelta, fan_out
from headway.errors import (
    EngineDead,
    HeadwayError,
    InvalidConfig,
    InvalidRequest,
    ModelNotFound,
    QueueFull,
    RequestTooLarge,
    UnsupportedModel,
)
from headway.server.process.messages import (
    Abort,
    Add,
    Failure,
    Frames,
    Refused,
    Start,
    Stepped,
    decode_from_engine,
    decode_to_engine,
    pack,
)

PARAMS = SamplingParams(
    max_tokens=None,
    temperature=0.5,
    stop=["a", "b"],
    logit_bias={5: -1.5},
    allowed_token_ids=[5, 6],
    bad_words=["no"],
    logprobs=3,
    seed=-(2**63),
)


def body(message: bytearray) -> bytes:
    (frame,) = Frames().feed(bytes(message))
    return frame


@given(st.lists(st.text(max_size=300), max_size=8), st.data())
def test_messages_come_out_whole_however_the_socket_cuts_them(
    names: list[str], data: st.DataObject
) -> None:
    stream = b"".join(pack(Abort(name)) for name in names)
    frames, received = Frames(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        received += [decode_to_engine(frame) for frame in frames.feed(stream[:cut])]
        stream = stream[cut:]
    assert received == [Abort(name) for name in names]


def test_requests_arrive_as_they_were_and_share_what_they_shared() -> None:
    new = fan_out(
        [
            NewRequest("a", [1, 2, 3], SamplingParams(n=3, seed=1, prompt_logprobs=0)),
            NewRequest("b", [4], PARAMS, 7, "salt", 0, "tenant", 1.5, 2.5),
        ]
    )
    add = decode_to_engine(body(pack(Add.of(3, new))))
    assert isinstance(add, Add)
    assert add.ticket == 3
    assert add.new_requests() == new
    assert (len(add.prompts), len(add.params)) == (2, 3)
    prompts = {id(item.prompt_token_ids) for item in add.new_requests()}
    assert len(prompts) == 2


def test_options_and_deltas_arrive_as_they_were() -> None:
    args = EngineArgs(model="a", kv_cache_memory="2GiB", seed=5)
    assert decode_to_engine(body(pack(Start(args)))) == Start(args)
    logprobs = TokenLogprobs(5, -0.5, 1, ((5, -0.5), (6, -1.5)))
    deltas = [
        OutputDelta("a", "é", (5,), None, None, 3, None, (logprobs,), (logprobs,)),
        OutputDelta(
            "b", "", (), "stop", "word", error=ChunkError("why", ("bad_words", "min_tokens"))
        ),
    ]
    assert decode_from_engine(body(pack(Stepped(deltas, [])))) == Stepped(deltas, [])


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("stop", "is empty"),
        RequestTooLarge("prompt", "is long: 9"),
        InvalidConfig("port", "is taken"),
        QueueFull("full", 2.5),
        QueueFull("full", None),
        EngineDead("gone"),
        ModelNotFound("none"),
        UnsupportedModel("odd"),
    ],
)
def test_an_error_is_raised_on_this_side_as_on_that(error: HeadwayError) -> None:
    refused = decode_from_engine(body(pack(Refused(1, Failure.of(error)))))
    assert isinstance(refused, Refused)
    raised = refused.failure.error()
    assert type(raised) is type(error)
    assert str(raised) == str(error)
    assert vars(raised) == vars(error)


def test_an_error_that_nobody_foresaw_is_told_with_its_name() -> None:
    assert str(Failure.of(KeyError("x")).error()) == "KeyError: 'x'"


def test_a_number_of_more_than_64_bits_does_not_go() -> None:
    with pytest.raises(OverflowError):
        pack(Add.of(1, [NewRequest("a", [2**64], SamplingParams())]))
