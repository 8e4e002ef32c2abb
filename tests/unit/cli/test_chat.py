from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from headway.cli.chat import Chat
from headway.cli.conversation import Conversation, Turn
from headway.core.params import SamplingParams
from headway.errors import HeadwayError, InvalidRequest
from unit.cli.fake_chat import FakeModel, FakeTerminal


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def chat(
    model: FakeModel, *lines: str | type[BaseException], interactive: bool = True, length: int = 100
) -> tuple[FakeTerminal, Conversation]:
    """What a person who types these lines sees, and what is kept."""
    terminal = FakeTerminal(*lines, interactive=interactive)
    conversation = Conversation(model, SamplingParams(max_tokens=None), max_model_len=length)
    Chat(conversation, terminal, max_model_len=length).run()
    return terminal, conversation


def test_answers_go_to_standard_output_and_all_else_beside_it() -> None:
    terminal, _ = chat(FakeModel(["Hel", "lo"], ["Bye"]), "hi", "", "  ", "bye", interactive=False)
    assert terminal.answers == "Hello\nBye\n"
    first, second = terminal.talk.splitlines()
    assert first.startswith("[2 tokens · ")
    assert "1 of 2 prompt tokens cached · context 4/100" in first
    assert "context 7/100" in second


def test_a_message_may_have_many_lines() -> None:
    model = FakeModel(["1"], ["2"], ["3"])
    chat(model, "a\\", "b\\", "c", '"""d', "/help", "", 'e"""', '"""f"""')
    assert [asked[-1][1] for asked in model.asked] == ["a\nb\nc", "d\n/help\n\ne", "f"]


def test_a_space_makes_a_message_of_a_command() -> None:
    model = FakeModel(["ok"])
    chat(model, " /exit is a word", "/exit", "never read")
    assert model.asked == [[("user", " /exit is a word")]]


def test_a_wrong_command_says_where_to_look() -> None:
    terminal, _ = chat(FakeModel(), "/hlep", "/undo", "/retry", "/save")
    assert "/hlep: no such command; /help lists them" in terminal.talk
    assert "/undo: nothing was said yet" in terminal.talk
    assert "/retry: nothing was said yet" in terminal.talk
    assert "/save: needs the name of a file" in terminal.talk


def test_help_names_every_command() -> None:
    terminal, _ = chat(FakeModel(), "/help")
    for command in ("/system", "/retry", "/undo", "/clear", "/save", "/exit", "Ctrl-C", "Ctrl-D"):
        assert command in terminal.talk


def test_the_system_prompt_can_be_set_and_removed() -> None:
    model = FakeModel(["1"], ["2"])
    terminal, _ = chat(model, "/system Be brief", "x", "/system", "y")
    assert model.asked[0] == [("system", "Be brief"), ("user", "x")]
    assert model.asked[1][0] == ("user", "x")
    assert "Removed: Be brief" in terminal.talk


def test_a_turn_can_be_retried_and_taken_back_and_all_forgotten() -> None:
    model = FakeModel(["1"], ["2"], ["3"], ["4"])
    terminal, conversation = chat(model, "x", "/retry", "y", "/undo", "/clear", "z")
    assert terminal.answers == "1\n2\n3\n4\n"
    assert model.asked[2] == [("user", "x"), ("assistant", "2"), ("user", "y")]
    assert "Taken back: y" in terminal.talk
    assert conversation.turns == (Turn("z", "4"),)


def test_a_conversation_is_saved_as_messages_and_no_other_file_is_touched(tmp_path: Path) -> None:
    mine, file = tmp_path / "mine", tmp_path / "talk.json"
    mine.write_text("precious")
    terminal, conversation = chat(
        FakeModel(["1"], ["Grüße"]),
        "x", f"/save {file}", "y", f"/save {file}", f"/save {mine}", f"/save {tmp_path}/no/where",
    )  # fmt: skip
    assert json.loads(file.read_text(encoding="utf-8")) == conversation.messages
    assert "Grüße" in file.read_text(encoding="utf-8")
    assert mine.read_text() == "precious"
    assert "mine exists; give another name" in terminal.talk
    assert "where: No such file or directory" in terminal.talk


def test_ctrl_c_in_an_answer_keeps_what_was_said_and_the_chat_goes_on() -> None:
    model = FakeModel(["Once", press_ctrl_c, " upon", " a", " time"], ["Yes"])
    terminal, conversation = chat(model, "story", "more")
    assert terminal.answers == "Once upon\nYes\n"
    assert conversation.turns == (Turn("story", "Once upon"), Turn("more", "Yes"))
    assert "interrupted]" in terminal.talk
    assert model.closed == 2


def test_ctrl_c_before_an_answer_takes_the_question_back_at_once() -> None:
    model = FakeModel([press_ctrl_c, "never said"], ["Yes"])
    terminal, conversation = chat(model, "slow", "quick")
    assert conversation.turns == (Turn("quick", "Yes"),)
    assert "interrupted, nothing said]" in terminal.talk


def test_a_second_ctrl_c_does_not_wait_for_the_step() -> None:
    model = FakeModel(["Once", press_ctrl_c, press_ctrl_c, " upon"])
    terminal, conversation = chat(model, "story")
    assert conversation.turns == (Turn("story", "Once"),)
    assert "interrupted]" in terminal.talk


def test_ctrl_c_is_pythons_own_again_after_an_answer() -> None:
    before = signal.getsignal(signal.SIGINT)
    chat(FakeModel(["x"]), "hi")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_twice_at_the_prompt_leaves() -> None:
    interrupt = KeyboardInterrupt
    model = FakeModel(["1"])
    terminal, _ = chat(model, interrupt, "x", interrupt, interrupt, "never read")
    assert len(model.asked) == 1
    assert terminal.talk.count("Ctrl-C again leaves") == 2


def test_a_full_context_says_what_makes_room() -> None:
    model = FakeModel(["one two three four five six"])
    terminal, _ = chat(model, "a " * 20, "a b", "c d", length=12)
    assert "has 21 tokens with this message, and the context 12: shorten it" in terminal.talk
    assert "error: the conversation has 13 tokens" in terminal.talk
    assert "the context 12: /undo or /clear makes room" in terminal.talk


@pytest.mark.parametrize(
    ("length", "why"), [(100, "cut at max_tokens"), (4, "cut: the context is full")]
)
def test_an_answer_that_was_cut_says_by_what(length: int, why: str) -> None:
    terminal, _ = chat(FakeModel(["a", "b"], finish_reason="length"), "x", length=length)
    assert why in terminal.talk


def test_a_failed_answer_is_told_and_the_chat_goes_on() -> None:
    terminal, conversation = chat(FakeModel(["half"], [], finish_reason="error"), "x", "y")
    assert terminal.talk.count("error: the step failed") == 2
    assert conversation.turns == (Turn("x", "half"),)


def test_with_nobody_there_the_first_error_ends_the_chat() -> None:
    model = FakeModel(["1"])
    with pytest.raises(InvalidRequest, match="/hlep"):
        chat(model, "x", "/hlep", "y", interactive=False)
    with pytest.raises(HeadwayError, match="the step failed"):
        chat(FakeModel([], finish_reason="error"), "x", interactive=False)
