"""`headway chat`: a conversation in the terminal.

Standard output carries what the model says and nothing else. With a pipe for standard input
each line is a message, and the first error ends the chat.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

from headway.cli.conversation import Answer, Conversation
from headway.cli.options import cache_dir, engine_options, sampling_options
from headway.cli.terminal import Terminal, interruptible
from headway.core.params import SamplingParams
from headway.errors import HeadwayError, InvalidRequest, RequestTooLarge, UnsupportedModel
from headway.models.sources import model_name, resolve_model
from headway.models.weights import open_model

__all__ = ["Chat", "run"]

_TEMPERATURE = 0.7
_PROMPT, _GOES_ON = "> ", "… "
_QUOTES = '"""'
_HELP = f"""\
/help            this
/system [TEXT]   set the system prompt; without TEXT, remove it
/retry           ask the last question again
/undo            take the last question and its answer back
/clear           begin a new conversation
/save FILE       write the conversation to FILE, as JSON
/exit            leave; so does Ctrl-D
A line that ends with \\ goes on in the next one; {_QUOTES} begins and ends a text of many lines.
Ctrl-C ends an answer and keeps what was said. To begin a message with /, put a space before it."""


def run(args: argparse.Namespace) -> None:
    """Raises what `LLM` raises, and `UnsupportedModel` for one without a chat template."""
    given = sampling_options(args)
    SamplingParams(**given)  # what is wrong in it is told before anything is loaded
    options = engine_options(args)
    terminal = Terminal()
    path = resolve_model(
        options.pop("model", None),
        cache_dir=cache_dir(args),
        progress=terminal.note,
        revision=options.pop("revision", None),
    )
    model = open_model(path)
    if model.chat_template is None:
        raise UnsupportedModel(
            f"{path}: the model has no chat template; `headway generate` goes on from plain text"
        )
    own = model.sampling_defaults if options.get("generation_config") != "none" else {}
    params = SamplingParams(**{"max_tokens": None, "temperature": _TEMPERATURE, **own, **given})

    from headway.llm import LLM  # noqa: PLC0415  imports PyTorch

    llm = LLM(path, **options, max_num_seqs=1, progress=terminal.note)
    length = llm.config.max_model_len
    conversation = Conversation(llm, params, max_model_len=length, system=args.system)
    if terminal.interactive:
        terminal.say(
            f"{model_name(path)}, {length:,} tokens of context. /help shows what there is."
        )
    Chat(conversation, terminal, max_model_len=length).run()


class Chat:
    """Reads messages and commands, and shows answers, until the end."""

    def __init__(
        self, conversation: Conversation, terminal: Terminal, *, max_model_len: int
    ) -> None:
        self._conversation = conversation
        self._terminal = terminal
        self._max_model_len = max_model_len
        self._saved: set[Path] = set()
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/system": self._system,
            "/retry": self._retry,
            "/undo": self._undo,
            "/clear": self._clear,
            "/save": self._save,
        }

    def run(self) -> None:
        """Until Ctrl-D, /exit, or Ctrl-C twice. Raises what a message comes to where no person
        is there to read it and go on."""
        interrupted = False
        while True:
            try:
                message = self._read()
            except EOFError:
                break
            except KeyboardInterrupt:
                if interrupted:
                    break
                interrupted = True
                self._terminal.note("\nCtrl-C again leaves, as does Ctrl-D.")
                continue
            interrupted = False
            if message.rstrip() == "/exit":
                return
            try:
                self._handle(message)
            except HeadwayError as error:
                if not self._terminal.interactive:
                    raise
                self._terminal.say(f"error: {self._explained(error)}")
        if self._terminal.interactive:
            self._terminal.say("")  # the shell's prompt begins a line

    def _read(self) -> str:
        """A message: a line, or several that are told to be one."""
        text = self._terminal.read(_PROMPT)
        if text.startswith(_QUOTES):
            text = text.removeprefix(_QUOTES)
            while not text.endswith(_QUOTES):
                text += "\n" + self._terminal.read(_GOES_ON)
            return text.removesuffix(_QUOTES)
        while text.endswith("\\"):
            text = text[:-1] + "\n" + self._terminal.read(_GOES_ON)
        return text

    def _handle(self, message: str) -> None:
        if not message.startswith("/"):
            if message.strip():
                self._show(self._conversation.ask(message))
            return
        name, _, rest = message.partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise InvalidRequest(name, "no such command; /help lists them")
        command(rest.strip())

    def _show(self, pieces: Generator[str, None, None]) -> None:
        """Writes an answer as it comes, and what it took."""
        with interruptible() as interrupt, closing(pieces):
            try:
                for piece in pieces:
                    self._terminal.write(piece)
                    interrupt.deferred = True
                    if interrupt.noted:
                        break
            except KeyboardInterrupt:
                pass  # it is in the answer's finish_reason
        self._terminal.write("\n")
        answer = self._conversation.answer
        assert answer is not None
        if answer.error is not None:
            raise HeadwayError(answer.error)
        self._terminal.note(_described(answer, self._max_model_len))

    # ------------------------------------------------------------------ commands

    def _help(self, _: str) -> None:
        self._terminal.say(_HELP)

    def _system(self, text: str) -> None:
        before, self._conversation.system = self._conversation.system, text or None
        if text:
            self._terminal.note("The system prompt is set, from the next message on.")
        else:
            was = "None was set." if before is None else f"Removed: {before}"
            self._terminal.note(f"{was} The model's template may have one of its own.")

    def _retry(self, _: str) -> None:
        self._need_a_turn("/retry")
        self._show(self._conversation.retry())

    def _undo(self, _: str) -> None:
        self._need_a_turn("/undo")
        self._terminal.note(f"Taken back: {self._conversation.undo().user}")

    def _clear(self, _: str) -> None:
        self._conversation.clear()
        self._terminal.note("A new conversation.")

    def _save(self, name: str) -> None:
        if not name:
            raise InvalidRequest("/save", "needs the name of a file")
        path = Path(name).expanduser()
        text = json.dumps(self._conversation.messages, ensure_ascii=False, indent=2) + "\n"
        try:
            with path.open("w" if path in self._saved else "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise InvalidRequest("/save", f"{path} exists; give another name") from None
        except OSError as error:
            raise InvalidRequest("/save", f"{path}: {error.strerror or error}") from error
        self._saved.add(path)
        self._terminal.note(f"Saved to {path}.")

    def _need_a_turn(self, command: str) -> None:
        if not self._conversation.turns:
            raise InvalidRequest(command, "nothing was said yet")

    def _explained(self, error: HeadwayError) -> str:
        if not isinstance(error, RequestTooLarge):
            return str(error)
        advice = "/undo or /clear makes room" if self._conversation.turns else "shorten it"
        return f"{str(error).removeprefix(error.field + ': ')}: {advice}"


def _described(answer: Answer, max_model_len: int) -> str:
    """One line: how long, how fast, how much of it was known, and how full the context is."""
    parts = ["1 token" if answer.num_tokens == 1 else f"{answer.num_tokens} tokens"]
    if answer.tokens_per_s is not None:
        parts.append(f"{answer.tokens_per_s:.1f} tok/s")
    if answer.first_token_s is not None:
        parts.append(f"first after {answer.first_token_s:.2f} s")
    parts.append(f"{answer.num_cached_tokens} of {answer.num_prompt_tokens} prompt tokens cached")
    used = answer.num_prompt_tokens + answer.num_tokens
    parts.append(f"context {used:,}/{max_model_len:,}")
    if answer.finish_reason == "length":
        parts.append("cut: the context is full" if used >= max_model_len else "cut at max_tokens")
    elif answer.finish_reason == "abort":
        parts.append("interrupted" if answer.num_tokens else "interrupted, nothing said")
    return "[" + " · ".join(parts) + "]"
