from __future__ import annotations

import pytest

from headway.core.params import SamplingParams
from headway.errors import InvalidRequest


def test_the_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_p) == (16, 1.0, 1.0)
    assert (params.top_k, params.min_p, params.min_tokens) == (0, 0.0, 0)
    assert (params.seed, params.stop, params.stop_token_ids) == (None, (), ())
    assert not params.ignore_eos


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("min_tokens", 17),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        pytest.param("temperature", 10**400, id="temperature-huge"),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 1.5),
        ("seed", 2**63),
        ("stop", ""),
        ("stop", [""]),
        ("stop", 5),
        ("stop", ["a"] * 65),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["1"]),
        ("stop_token_ids", 3),
        ("ignore_eos", 1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", float("nan")),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 0.0099),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", float("inf")),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {-5: 1.0}),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: "x"}),
        ("logit_bias", [5]),
        pytest.param("logit_bias", dict.fromkeys(range(1025), 1.0), id="logit_bias-many"),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", [True]),
        ("allowed_token_ids", 5),
        pytest.param("allowed_token_ids", list(range(10_001)), id="allowed_token_ids-many"),
        pytest.param("stop", ["x" * 1025], id="stop-long"),
        ("bad_words", [""]),
        ("bad_words", "word"),
        ("bad_words", ["a"] * 1025),
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("logprobs", -2),
        ("logprobs", True),
        ("prompt_logprobs", 1.5),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
    assert field in str(caught.value)


def test_one_stop_string_is_a_list_of_one_and_lists_become_tuples() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[3]).stop_token_ids == (3,)
    hash(SamplingParams(stop=["a"]))


def test_none_is_no_stop_at_all() -> None:
    params = SamplingParams(stop=None, stop_token_ids=None)  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == ((), ())


def test_greedy_is_temperature_0() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=0.01).greedy


def test_several_greedy_completions_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="n: 2 greedy completions are all the same"):
        SamplingParams(n=2, temperature=0)
    assert SamplingParams(n=2).n == 2


def test_tokens_and_biases_are_kept_as_sorted_copies() -> None:
    biases = {7: 1.0, 3: -1}
    params = SamplingParams(allowed_token_ids=[9, 2, 9], logit_bias=biases)
    assert params.allowed_token_ids == (2, 9)
    assert list(params.logit_bias or ()) == [3, 7]
    biases[1] = 0.0
    assert 1 not in (params.logit_bias or ())
    assert SamplingParams(logit_bias={}).logit_bias is None


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_a_penalty_looks_at_the_output(field: str) -> None:
    assert SamplingParams(**{field: 0.5}).penalises_output
    assert not SamplingParams().penalises_output
