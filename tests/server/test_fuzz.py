"""Whatever is sent, the server answers, properly, and goes on.

`HEADWAY_FUZZ=20000` sends as many bodies to each path (and to each that Schemathesis knows, see
`test_openapi.py`), and not the same ones every time; without it a few are sent.
"""

from __future__ import annotations

import json
import os

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from server.anything import AnythingEngine
from server.bodies import STRUCTS, bodies
from waiting import in_time

MAX_EXAMPLES = int(os.environ.get("HEADWAY_FUZZ", "60"))


@pytest.mark.parametrize("path", STRUCTS)
def test_every_body_is_answered(
    anything_client: httpx.Client, anything: AnythingEngine, path: str
) -> None:
    statuses = set()

    @settings(
        max_examples=MAX_EXAMPLES,
        deadline=None,
        derandomize="HEADWAY_FUZZ" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(bodies(path))
    def check(body: bytes) -> None:
        response = anything_client.post(path, content=body)
        statuses.add(response.status_code)
        check_answer(response)
        assert in_time(lambda: anything.kv.num_used == 0)

    check()
    assert anything_client.get("/health").status_code == 200
    assert statuses >= {200, 400}


def check_answer(response: httpx.Response) -> None:
    """It is one of the few that there may be, and whole."""
    if response.headers["content-type"].startswith("text/event-stream"):
        assert response.status_code == 200
        last = [event for event in response.text.split("\n\n") if event][-1]
        assert "error" in last or last == "data: [DONE]" or last.startswith("event: "), last
        return
    answer = json.loads(response.content)
    if response.status_code == 200:
        return
    message = answer["error"]["message"]
    assert 0 < len(message) < 1000
    match response.status_code:
        case 503 | 529:  # it asked to wait no longer than a moment
            assert "waited too long" in message
        case status:
            assert status in (400, 404, 413)
