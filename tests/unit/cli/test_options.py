from __future__ import annotations

from dataclasses import fields

import pytest

from headway.cli.options import SAMPLING_FLAGS, engine_options, sampling_options
from headway.cli.parser import build_parser
from headway.core.params import SamplingParams
from headway.errors import InvalidConfig, InvalidRequest


def test_every_sampling_option_reaches_the_params_and_no_other_does() -> None:
    args = build_parser().parse_args(
        [
            "generate", "hello",
            "--max-tokens", "9", "--min-tokens", "2", "--temperature", "0.5", "--top-p", "0.9",
            "--top-k", "7", "--min-p", "0.1", "--presence-penalty", "1", "--frequency-penalty",
            "-1", "--repetition-penalty", "1.5", "--logit-bias", "5=-100", "--logit-bias", "6=2.5",
            "--allowed-token-id", "5", "--allowed-token-id", "6", "--bad-word", "darn",
            "--stop", "a", "--stop", "b", "--stop-token-id", "8", "--ignore-eos", "--seed", "3",
            "--include-stop-str-in-output", "--no-skip-special-tokens",
        ]
    )  # fmt: skip
    given = sampling_options(args)
    assert SamplingParams(**given) == SamplingParams(
        max_tokens=9,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.5,
        logit_bias={5: -100.0, 6: 2.5},
        allowed_token_ids=[5, 6],
        bad_words=["darn"],
        stop=["a", "b"],
        stop_token_ids=[8],
        ignore_eos=True,
        seed=3,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
    )
    assert set(given) == set(SAMPLING_FLAGS)
    assert "seed" not in engine_options(args)


def test_all_that_makes_sense_for_one_answer_in_text_can_be_asked_for() -> None:
    names = {item.name for item in fields(SamplingParams)}
    assert names - set(SAMPLING_FLAGS) == {"n", "logprobs", "prompt_logprobs", "structured_outputs"}


def test_what_is_not_given_is_left_to_the_command() -> None:
    assert sampling_options(build_parser().parse_args(["chat"])) == {}


@pytest.mark.parametrize("bias", ["5", "x=1", "5=y"])
def test_a_bias_of_another_form_is_a_usage_error(
    bias: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["generate", "x", "--logit-bias", bias])
    assert f"invalid ID=BIAS value: '{bias}'" in capsys.readouterr().err


def test_a_bias_given_twice_is_refused() -> None:
    args = build_parser().parse_args(
        ["generate", "x", "--logit-bias", "5=1", "--logit-bias", "5=2"]
    )
    with pytest.raises(InvalidRequest, match="logit_bias: a token is given twice"):
        sampling_options(args)


@pytest.mark.parametrize("command", ["chat", "serve"])
def test_the_model_may_be_given_with_or_without_its_flag_and_not_both(command: str) -> None:
    parser = build_parser()
    for argv in ([command, "org/name"], [command, "--model", "org/name"]):
        assert engine_options(parser.parse_args(argv))["model"] == "org/name"
    assert engine_options(parser.parse_args([command])) == {}
    with pytest.raises(InvalidConfig, match="model: a is given, and b as well"):
        engine_options(parser.parse_args([command, "--model", "a", "b"]))
