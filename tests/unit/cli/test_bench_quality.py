"""`headway bench quality` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.cli import main
from headway.config import EngineArgs
from headway.core.plan import TokenLogprobs
from headway.engine.outputs import NewRequest, OutputDelta

LOSS = {"float32": 2.0, "bfloat16": 2.0, "int8": 2.01}


class Engine:
    """Its log-probabilities are all the worse the fewer bits there are."""

    def __init__(self, args: EngineArgs) -> None:
        self.args = args
        dtype, kv = (
            "int8" if name == "auto" else name for name in (args.dtype, args.kv_cache_dtype)
        )
        self.config = SimpleNamespace(dtype=dtype, kv_cache_dtype=kv, max_model_len=9)
        self.model = SimpleNamespace(name="a-model")
        self.tokenizer = self.core = self
        self._loss = LOSS[dtype]
        self._waiting: list[NewRequest] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def add(self, new: list[NewRequest]) -> None:
        self._waiting += new

    def step(self) -> list[OutputDelta]:
        request = self._waiting.pop()
        row = TokenLogprobs(0, -self._loss, 1, ((self._loss == 2.01, -1.0),))
        rows = (row,) * (len(request.prompt_token_ids) - 1)
        return [OutputDelta(request.request_id, "", (), "length", prompt_logprobs=rows)]

    def close(self) -> None:
        pass


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[EngineArgs]:
    built: list[EngineArgs] = []

    def build_engine(args: EngineArgs, **_: Any) -> Engine:
        built.append(args)
        return Engine(args)

    monkeypatch.setattr("headway.cli.bench.quality.build_engine", build_engine)
    return built


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "a.txt"
    path.write_text("abcdefghijkl", encoding="utf-8")
    return str(path)


def quality(*argv: str) -> None:
    main(["bench", "quality", *argv])


def test_precisions_stand_beside_float32(
    built: list[EngineArgs], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    precisions = ("auto", "bfloat16/float32")
    quality(
        *("--text", text, "--window", "5", "--precision", *precisions),
        *("--num-threads", "1", "--output-json", str(file)),
    )
    assert [(args.dtype, args.kv_cache_dtype) for args in built] == [
        ("float32", "float32"),
        ("auto", "auto"),
        ("bfloat16", "float32"),
    ]
    assert {args.num_threads for args in built} == {1}
    head, best, int8, bfloat16 = capsys.readouterr().out.splitlines()
    assert head.split() == [
        *("precision/KV", "text", "tokens", "perplexity", "change", "±", "error", "same", "token")
    ]
    assert best.split()[:4] == ["float32/float32", "a.txt", "9", "7.389"]
    assert int8.split()[:6] == ["int8/int8", "a.txt", "9", "7.463", "+1.01", "%"]
    assert int8.split()[-2:] == ["0.0", "%"]
    assert bfloat16.split()[4:] == ["+0.00", "%", "0.00", "%", "100.0", "%"]
    found = json.loads(file.read_bytes())
    assert found["model"] == "a-model"
    assert list(found["precisions"]) == ["float32/float32", "int8/int8", "bfloat16/float32"]
    assert found["precisions"]["int8/int8"][text]["change"] == pytest.approx(0.01005, abs=1e-5)


def test_some_windows_will_do(
    built: list[EngineArgs], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quality("--text", text, "--window", "3", "--num-windows", "2")
    assert capsys.readouterr().out.splitlines()[1].split()[2] == "4"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--text", "/not/there"), "--text: /not/there: No such file"),
        (("--window", "10"), r"--window: exceeds max_model_len \(9\)"),
        (("--window", "1"), r"--text: .*a\.txt: fewer than two tokens"),
        (("--output-json", "/not/there/x"), "--output-json: /not/there/x"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    built: list[EngineArgs], text: str, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit, match=f"error: {message}"):
        quality("--text", text, *options)


@pytest.mark.parametrize("precision", ["int4", "int8/", "/int8", "int8/fp8", "int8/int8/int8"])
def test_a_precision_that_is_none_is_wrong_usage(
    built: list[EngineArgs], text: str, precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        quality("--text", text, "--precision", precision)
    assert ended.value.code == 2
    assert "DTYPE[/KV]" in capsys.readouterr().err
    assert not built
