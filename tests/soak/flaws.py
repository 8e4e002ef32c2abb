"""What is wrong with an answer of status 200: that it has no end, or not the one it should have."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["flaw"]


def flaw(
    path: str, body: bytes, num_choices: int, *, stream: bool, text: str | None = None
) -> str | None:
    """None: nothing. `text` is what a completion must be."""
    if not stream:
        answers = [json.loads(body)]
    else:
        lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
        if path not in ("/v1/responses", "/v1/messages") and (not lines or lines.pop() != "[DONE]"):
            return f"no [DONE] at the end, but {body[-300:]!r}"
        answers = [json.loads(line) for line in lines]
    if path == "/v1/responses":
        return _no_response(answers[-1].get("response", {}) if stream else answers[-1])
    if path == "/v1/messages":
        return _no_message(answers, stream)
    return _no_choices(answers, num_choices, text)


def _no_response(response: dict[str, Any]) -> str | None:
    status = response.get("status")
    return None if status in ("completed", "incomplete") else f"the status {status}"


def _no_message(answers: list[dict[str, Any]], stream: bool) -> str | None:
    if not stream:
        reasons = [answers[0].get("stop_reason")]
    elif answers[-1]["type"] != "message_stop":
        return f"no message_stop at the end, but {answers[-1]}"
    else:
        deltas = [event["delta"] for event in answers if event["type"] == "message_delta"]
        reasons = [delta.get("stop_reason") for delta in deltas]
    return None if reasons and reasons[-1] else "no stop_reason"


def _no_choices(answers: list[dict[str, Any]], num_choices: int, text: str | None) -> str | None:
    ends: dict[int, str | None] = {}
    said = ""
    for answer in answers:
        for choice in answer["choices"]:
            said += choice.get("text", "")
            ends[choice["index"]] = choice["finish_reason"] or ends.get(choice["index"])
    if sorted(ends) != list(range(num_choices)) or not all(ends.values()):
        return f"finish reasons {ends}"
    if text is not None and said != text:
        return f"{said!r} is not the answer of a quiet server, {text!r}"
    return None
