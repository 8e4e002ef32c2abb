from __future__ import annotations

import itertools

import pytest

from headway.cli.conversation import Answer, Conversation, Turn
from headway.core.params import SamplingParams
from headway.errors import InvalidRequest, RequestTooLarge
from unit.cli.fake_chat import FakeModel


def conversation(
    model: FakeModel,
    *,
    system: str | None = None,
    max_model_len: int = 100,
    seed: int | None = None,
) -> Conversation:
    """Its clock goes on by a second whenever it is looked at."""
    seconds = itertools.count()
    return Conversation(
        model,
        SamplingParams(max_tokens=None, seed=seed),
        max_model_len=max_model_len,
        system=system,
        now=lambda: float(next(seconds)),
    )


def test_each_question_comes_after_all_that_was_said() -> None:
    model = FakeModel(["Hello", " Ada"], ["Blue"])
    talk = conversation(model, system="Be kind")
    assert list(talk.ask("I am Ada")) == ["Hello", " Ada", ""]
    assert "".join(talk.ask("The sky?")) == "Blue"
    assert model.asked[1] == [
        ("system", "Be kind"),
        ("user", "I am Ada"),
        ("assistant", "Hello Ada"),
        ("user", "The sky?"),
    ]
    assert talk.messages[-1] == {"role": "assistant", "content": "Blue"}


def test_an_answer_tells_what_it_took() -> None:
    talk = conversation(FakeModel(["a", "b", "c"]))
    list(talk.ask("one two three"))
    # The clock: 0 at the start, then 1, 2, 3 at the three tokens.
    assert talk.answer == Answer(4, 2, 3, 1.0, 2.0, "stop", None)
    assert talk.answer.tokens_per_s == 1.0
    list(conversation(FakeModel(["alone"])).ask("x"))


@pytest.mark.parametrize("steps", [[], ["alone"]])
def test_too_few_tokens_have_no_speed(steps: list[str]) -> None:
    talk = conversation(FakeModel(steps))
    list(talk.ask("x"))
    assert talk.answer is not None
    assert talk.answer.tokens_per_s is None


def test_an_answer_that_is_left_keeps_what_was_said_and_ends_the_request() -> None:
    model = FakeModel(["Once", " upon", " a"], ["Yes"])
    talk = conversation(model)
    pieces = talk.ask("A story")
    assert [next(pieces), next(pieces)] == ["Once", " upon"]
    pieces.close()
    assert talk.turns == (Turn("A story", "Once upon"),)
    assert (model.closed, talk.answer and talk.answer.finish_reason) == (1, "abort")
    list(talk.ask("Go on"))
    assert model.asked[1][1] == ("assistant", "Once upon")


def test_a_question_without_an_answer_is_not_kept() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    model = FakeModel([interrupt], ["Yes"])
    talk = conversation(model)
    with pytest.raises(KeyboardInterrupt):
        next(talk.ask("lost"))
    assert talk.turns == ()
    list(talk.ask("kept"))
    assert model.asked[1] == [("user", "kept")]


def test_an_empty_answer_is_an_answer() -> None:
    talk = conversation(FakeModel([]))
    list(talk.ask("x"))
    assert talk.turns == (Turn("x", ""),)


def test_asking_again_replaces_the_answer_once_there_is_one() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    model = FakeModel(["first"], [interrupt], ["second"])
    talk = conversation(model)
    list(talk.ask("x"))
    with pytest.raises(KeyboardInterrupt):
        next(talk.retry())
    assert talk.turns == (Turn("x", "first"),)
    list(talk.retry())
    assert talk.turns == (Turn("x", "second"),)
    assert model.asked == [[("user", "x")]] * 3


def test_a_seed_is_the_first_answers_and_the_next_take_the_next() -> None:
    model = FakeModel(["a"], ["b"], ["c"])
    talk = conversation(model, seed=7)
    list(talk.ask("x"))
    list(talk.retry())
    list(talk.ask("y"))
    assert [params.seed for params in model.params] == [7, 8, 9]


def test_turns_can_be_taken_back_and_forgotten() -> None:
    talk = conversation(FakeModel(["1"], ["2"], ["3"]), system="Count")
    for text in ("a", "b", "c"):
        list(talk.ask(text))
    assert talk.undo() == Turn("c", "3")
    assert talk.turns == (Turn("a", "1"), Turn("b", "2"))
    talk.clear()
    assert talk.messages == [{"role": "system", "content": "Count"}]


def test_a_full_context_refuses_the_message_and_changes_nothing() -> None:
    talk = conversation(FakeModel(["one two three"], ["x"]), max_model_len=10)
    list(talk.ask("a b"))  # three tokens; with the answer's four, seven
    with pytest.raises(
        RequestTooLarge, match="has 10 tokens with this message, and the context 10"
    ):
        talk.ask("c d")
    assert talk.turns == (Turn("a b", "one two three"),)
    list(talk.ask("c"))
    assert len(talk.turns) == 2


def test_what_the_template_refuses_changes_nothing() -> None:
    talk = conversation(FakeModel(["x"]))
    with pytest.raises(InvalidRequest, match="the chat template says"):
        talk.ask("forbidden")
    assert (talk.turns, talk.answer) == ((), None)
