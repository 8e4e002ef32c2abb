from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from headway.errors import InvalidConfig
from headway.server.settings import API_KEY_VARIABLE, ServerSettings


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("port", {"port": -1}),
        ("port", {"port": 65_536}),
        ("drain_timeout", {"drain_timeout": -1.0}),
        ("drain_timeout", {"drain_timeout": float("nan")}),
        ("drain_timeout", {"drain_timeout": float("inf")}),
        ("drain_timeout", {"drain_timeout": 1e30}),
        ("step_timeout", {"step_timeout": 1e30}),
        ("step_timeout", {"step_timeout": 0.0}),
        ("root_path", {"root_path": "llm"}),
        ("root_path", {"root_path": "/llm/"}),
        ("served_model_name", {"served_model_name": ("a", "")}),
        ("api_key", {"api_key": (" ",)}),
        ("allowed_origins", {"allowed_origins": ("",)}),
        ("api_key_file", {"api_key": ("a",), "api_key_file": "keys"}),
        ("ssl_certfile", {"ssl_certfile": __file__}),
        ("ssl_keyfile", {"ssl_keyfile": __file__}),
        ("ssl_certfile", {"ssl_keyfile": __file__, "ssl_certfile": "/absent"}),
        ("metrics", {"metrics": True}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        ServerSettings.of(options)
    assert caught.value.field == name


def test_every_option_says_what_it_is() -> None:
    for item in fields(ServerSettings):
        assert item.metadata["help"], item.name


def test_keys_come_from_the_options_or_else_the_file_or_else_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    variable = {API_KEY_VARIABLE: "three"}
    assert ServerSettings(api_key=("a", "b")).api_keys(variable) == ("a", "b")
    assert ServerSettings(api_key_file=str(file)).api_keys(variable) == ("one", "two")
    assert ServerSettings().api_keys(variable) == ("three",)
    assert ServerSettings().api_keys({API_KEY_VARIABLE: " "}) == ()
    assert ServerSettings().api_keys({}) == ()


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe"])
def test_a_file_without_keys_does_not_open_the_server_to_all(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(InvalidConfig, match="api_key_file: "):
        ServerSettings(api_key_file=str(file)).api_keys({API_KEY_VARIABLE: "three"})


def test_settings_that_are_shown_show_no_key() -> None:
    assert "sesame" not in repr(ServerSettings(api_key=("sesame",)))


def test_a_chat_template_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    assert ServerSettings(chat_template=str(file)).chat_template_text() == "{{ messages }}"
    assert ServerSettings().chat_template_text() is None
    with pytest.raises(InvalidConfig, match=r"chat_template: .*absent: No such file"):
        ServerSettings(chat_template=str(tmp_path / "absent")).chat_template_text()
