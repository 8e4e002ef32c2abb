"""What an operator asks of the server; the help texts are the documentation, on the command line
and in a configuration file too.

Names, units and defaults are vLLM's where it has the option and a text does not say otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from headway.errors import InvalidConfig
from headway.text.tools.formats import FORMATS

__all__ = ["API_KEY_VARIABLE", "ServerSettings"]

API_KEY_VARIABLE = "HEADWAY_API_KEY"

_LISTENING, _API, _SECURITY = "server", "API", "security"
_PROCESS, _OBSERVING = "process", "metrics, logs and traces"
_LONGEST_S = 1e6
"""Of a timeout: event loops count milliseconds, and not without end."""


def _option(
    default: Any, group: str, text: str, choices: tuple[str, ...] = (), *, secret: bool = False
) -> Any:
    metadata = {"group": group, "help": text, "choices": choices}
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The options of the server. `headway serve --help` shows the texts below.

    Raises InvalidConfig, naming it, for an option that cannot be honoured.
    """

    host: str = _option("127.0.0.1", _LISTENING, "address to listen on (vLLM: every address)")
    port: int = _option(8000, _LISTENING, "port; 0: any free one")
    uds: str | None = _option(
        None, _LISTENING, "path of a Unix socket to listen on, instead of host and port"
    )
    ssl_certfile: str | None = _option(
        None, _LISTENING, "file with the TLS certificate, and those that vouch for it; HTTPS is on"
    )
    ssl_keyfile: str | None = _option(None, _LISTENING, "file with the certificate's private key")
    root_path: str = _option(
        "", _LISTENING, "path under which a proxy shows the server, such as /llm"
    )
    served_model_name: tuple[str, ...] = _option(
        (),
        _API,
        "the model's name in the API, which answers show; repeatable: requests may use any, and "
        "answers show the first; default: the file's name, or org/name of the hub (vLLM: several "
        "after one flag)",
    )
    chat_template: str | None = _option(
        None, _API, "file with a chat template (Jinja), in place of the model's own"
    )
    tool_call_parser: str = _option(
        "auto",
        _API,
        "how the model writes tool calls; auto: as its chat template shows (vLLM: must be given)",
        ("auto", *FORMATS),
    )
    api_key: tuple[str, ...] = _option(
        (),
        _SECURITY,
        "a key that clients must present, as `Authorization: Bearer KEY` or `x-api-key: KEY`; "
        "repeatable; default: the file's, or else $HEADWAY_API_KEY, or else none is asked for. "
        "Other users of the machine see a command line",
        secret=True,
    )
    api_key_file: str | None = _option(
        None,
        _SECURITY,
        "file with such keys, one a line; its owner alone should be able to read it",
    )
    metrics_no_auth: bool = _option(
        False, _SECURITY, "let /metrics be read without a key (vLLM: always)"
    )
    allowed_origins: tuple[str, ...] = _option(
        (),
        _SECURITY,
        "an origin, such as https://chat.example.org, whose pages browsers let use the API; * is "
        "any; repeatable; default: none (vLLM: any)",
    )
    drain_timeout: float = _option(
        30.0,
        _PROCESS,
        "seconds that accepted requests get to finish in after SIGTERM (vLLM: none of its own)",
    )
    step_timeout: float = _option(
        30.0,
        _PROCESS,
        "seconds after which a step of the engine counts as hung, if they are also ten times what "
        "such a step was measured to take (vLLM: none)",
    )
    restart_engine: bool = _option(
        False, _PROCESS, "start the engine anew when it dies or hangs, instead of exiting"
    )
    metrics_namespace: str = _option(
        "headway",
        _OBSERVING,
        "what metrics' names begin with; vllm: those that vLLM has too begin with vllm:, so that "
        "dashboards, autoscalers and routers made for it work",
        ("headway", "vllm"),
    )
    access_log: bool = _option(
        False, _OBSERVING, "log every request: method, path, status, time, tokens (vLLM: on)"
    )
    log_stats: bool = _option(
        True, _OBSERVING, "log the state of the engine every 10 s while there is traffic"
    )
    log_format: str = _option(
        "text", _OBSERVING, "form of the log's lines, on standard error", ("text", "json")
    )
    otlp_traces_endpoint: str | None = _option(
        None,
        _OBSERVING,
        "where to send OpenTelemetry traces, such as http://localhost:4318/v1/traces (OTLP over "
        "HTTP); needs pip install 'headway[otel]'",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise InvalidConfig("port", f"must be between 0 and 65535, not {self.port}")
        for name in ("drain_timeout", "step_timeout"):
            if not 0 <= getattr(self, name) <= _LONGEST_S:
                raise InvalidConfig(
                    name, f"must be between 0 and {_LONGEST_S:,.0f} s, not {getattr(self, name)}"
                )
        if self.step_timeout == 0:
            raise InvalidConfig("step_timeout", "must be more than 0 s")
        self._check_tls()
        if self.root_path.endswith("/") or self.root_path[:1] not in ("", "/"):
            raise InvalidConfig(
                "root_path", f"must begin with a slash and not end in one, not {self.root_path!r}"
            )
        for name in ("served_model_name", "api_key", "allowed_origins"):
            if not all(each.strip() for each in getattr(self, name)):
                raise InvalidConfig(name, "is empty")
        if self.api_key and self.api_key_file is not None:
            raise InvalidConfig("api_key_file", "is given, and api_key as well; one holds")

    def _check_tls(self) -> None:
        for name, other in (("ssl_keyfile", "ssl_certfile"), ("ssl_certfile", "ssl_keyfile")):
            path = getattr(self, name)
            if path is None:
                continue
            if getattr(self, other) is None:
                raise InvalidConfig(name, f"needs {other} too")
            if not os.access(path, os.R_OK):
                raise InvalidConfig(name, f"cannot read {path}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ServerSettings:
        """Raises InvalidConfig, naming it, for an option that does not exist."""
        names = [item.name for item in fields(cls)]
        for name in options:
            if name not in names:
                raise InvalidConfig(name, f"is no option; there are {', '.join(names)}")
        return cls(**options)

    def api_keys(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """The keys that hold; none: every request is answered. Reads the file."""
        if self.api_key:
            return self.api_key
        if self.api_key_file is None:
            key = environment.get(API_KEY_VARIABLE, "").strip()
            return (key,) if key else ()
        lines = _read("api_key_file", self.api_key_file).splitlines()
        keys = tuple(line.strip() for line in lines if line.strip())
        if not keys:
            raise InvalidConfig("api_key_file", f"{self.api_key_file} holds no key")
        return keys

    def chat_template_text(self) -> str | None:
        """What the file holds; None: the model's own template holds. Reads the file."""
        if self.chat_template is None:
            return None
        return _read("chat_template", self.chat_template)


def _read(name: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise InvalidConfig(name, f"{path}: {reason}") from None
