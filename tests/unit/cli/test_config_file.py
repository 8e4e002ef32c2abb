from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from headway.cli.options import engine_options, server_settings
from headway.cli.parser import build_parser
from headway.config import RECIPES, EngineArgs
from headway.server.settings import ServerSettings

Given = Callable[..., tuple[dict[str, Any], ServerSettings]]


@pytest.fixture
def given(tmp_path: Path) -> Given:
    """What `headway serve` is asked for by a file and a command line."""

    def parse(text: str, *argv: str) -> tuple[dict[str, Any], ServerSettings]:
        path = tmp_path / "headway.yaml"
        path.write_text(text, encoding="utf-8")
        args = build_parser().parse_args(["serve", "--config", str(path), *argv])
        return engine_options(args), server_settings(args)

    return parse


def test_a_file_has_the_names_of_the_options_with_dashes_or_underscores(given: Given) -> None:
    engine, server = given(
        "model: org/name\nmax-num-seqs: 8\nwatermark: 0\nkv_cache_memory: 1000000\n"
        "enable-prefix-caching: false\nport: 0\nserved-model-name: [a, b]\n"
        "allowed_origins: '*'\ndrain-timeout: 5\naccess_log: true\nuds: null\n"
    )
    assert engine == {
        "model": "org/name",
        "max_num_seqs": 8,
        "watermark": 0.0,
        "kv_cache_memory": "1000000",
        "enable_prefix_caching": False,
    }
    assert server == ServerSettings(
        port=0,
        served_model_name=("a", "b"),
        allowed_origins=("*",),
        drain_timeout=5.0,
        access_log=True,
    )


def test_the_command_line_wins_whatever_comes_first(given: Given) -> None:
    text = "model: a\nmax_num_seqs: 8\nport: 1\nserved_model_name: [x, y]\naccess_log: true\n"
    argv = ("--max-num-seqs", "4", "--port", "2", "--served-model-name", "z", "--no-access-log")
    engine, server = given(text, *argv, "b")
    assert engine == {"model": "b", "max_num_seqs": 4}
    assert server == ServerSettings(port=2, served_model_name=("z",))


@pytest.mark.parametrize(
    ("text", "argv", "recipe", "block_size"),
    [
        ("recipe: chat\n", [], "chat", 32),
        ("recipe: chat\n", ["--recipe", "mixed"], "mixed", 16),
        ("recipe: chat\nblock-size: 16\n", [], "chat", 16),
        ("block-size: 16\n", ["--recipe", "chat"], "chat", 16),
        ("recipe: chat\n", ["--block-size", "16"], "chat", 16),
        ("block-size: 16\n", ["--recipe", "chat", "--block-size", "32"], "chat", 32),
    ],
)
def test_an_option_wins_over_the_recipe_wherever_each_of_them_is_given(
    given: Given, text: str, argv: list[str], recipe: str, block_size: int
) -> None:
    asked = EngineArgs.of(given(text, *argv)[0])
    assert (asked.recipe, asked.tuning.block_size) == (recipe, block_size)
    assert asked.tuning.max_num_queued_reqs == RECIPES[recipe].max_num_queued_reqs


def test_an_empty_file_asks_for_nothing(given: Given) -> None:
    assert given("# nothing yet\n") == ({}, ServerSettings())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such: 1", "no_such is no option of this command"),
        ("config: other.yaml", "config is no option of this command"),
        ("port: '8000'", "port: must be a whole number, not '8000'"),
        ("port: 80.5", "port: must be a whole number"),
        ("port: true", "port: must be a whole number"),
        ("port: null", "port: must be a whole number"),
        ("watermark: much", "watermark: must be a number"),
        ("access_log: 1", "access_log: must be true or false"),
        ("access_log: 'yes'", "access_log: must be true or false"),
        ("model: [a]", "model: must be a text"),
        ("log_format: xml", "log_format: must be one of text, json"),
        ("dtype: int4", "dtype: must be one of auto, float32, bfloat16, int8"),
        ("served_model_name: [1]", "served_model_name: must be a text or a list of them"),
        ("port: 1\nport: 2", "port is given twice"),
        ("max-num-seqs: 1\nmax_num_seqs: 2", "max_num_seqs is given twice"),
        ("- port", "must hold options, as `port: 8000`"),
        ("port: [", "is not YAML"),
        ("port: !!python/object/apply:os.getpid []", "is not YAML"),
        ("port: 2020-13-45", "is not YAML"),
        ("access_log: !!bool maybe", "is not YAML"),
        ("port: !!int ''", "is not YAML"),
        ("model: !!timestamp yesterday", "is not YAML"),
        ("recipe: fast", "recipe: must be one of chat, long-document, mixed, not 'fast'"),
        ("api_key: 12345678: x", "is not YAML, at line 1, column 18"),
        ("port: 1\napi_key: *12345678", "is not YAML, at line 2, column 10"),
        ("api_key: 12345678", "api_key: must be a text or a list of them"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_by_name(
    given: Given, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        given(text)
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert f"headway.yaml: {message}" in error
    assert "12345678" not in error, "a key is not shown"


def test_a_file_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--config", "/absent.yaml"])
    assert "/absent.yaml: No such file or directory" in capsys.readouterr().err


def test_every_option_of_serve_is_an_engines_or_a_servers_and_none_is_both() -> None:
    engine = {item.name for item in fields(EngineArgs)}
    server = {item.name for item in fields(ServerSettings)}
    assert not engine & server
    argv = [f"--{name.replace('_', '-')}" for name in sorted(engine | server)]
    help_text = _help_of_serve()
    assert not [option for option in argv if option not in help_text]


def _help_of_serve() -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        build_parser().parse_args(["serve", "--help"])
    return out.getvalue()
