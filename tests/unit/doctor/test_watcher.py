"""Servers read again and again: in virtual time, and over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headway.clock import VirtualClock
from headway.doctor.exposition import read_exposition
from headway.doctor.sources import Page, Server
from headway.doctor.watcher import Watcher, watch
from headway.errors import InvalidConfig, NotReachable, SourceError

METRICS = (
    "# TYPE headway:num_requests_running gauge\n"
    'headway:num_requests_running{engine="0",model_name="m"} 2\n'
)


class Told:
    """A source that tells what a list has, in turn, and then its last for ever."""

    def __init__(self, clock: VirtualClock, *answers: Page | SourceError, takes_s: float = 0.0):
        self.name = "http://told"
        self._clock, self._answers, self._takes_s = clock, list(answers), takes_s
        self.asked_s: list[float] = []

    def read(self, now: Callable[[], float]) -> Page:
        self.asked_s.append(now())
        self._clock.advance(self._takes_s)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, SourceError):
            raise answer
        engines = {
            name: replace(sample, time_s=now()) for name, sample in answer.metrics.engines.items()
        }
        return Page(answer.metrics._replace(engines=engines), answer.lost)


GOOD = Page(read_exposition(METRICS, 0.0), None)  # type: ignore[arg-type]
GONE = NotReachable("gone")


def watched(clock: VirtualClock, *sources: Told, for_s: float = 10.0, every_s: float = 1.0):  # type: ignore[no-untyped-def]
    watcher = Watcher(sources, clock=clock, window_s=100.0)
    try:
        return watch(watcher, clock=clock, sleep=clock.advance, for_s=for_s, every_s=every_s)
    finally:
        watcher.close()


@pytest.mark.parametrize(
    ("for_s", "every_s", "takes_s", "times"),
    [
        (3.0, 1.0, 0.0, [0, 1, 2, 3]),
        (3.0, 1.0, 0.25, [0, 1, 2, 3]),
        (3.0, 1.0, 1.5, [0, 2]),
        (1.0, 1.0, 8.5, [0, 9]),
        (0.6, 0.2, 0.0, [0, 0.2, 0.4, 0.6]),
    ],
)
def test_reads_keep_their_pace_and_end_in_time_after_two_at_least(
    for_s: float, every_s: float, takes_s: float, times: list[float]
) -> None:
    clock = VirtualClock()
    source = Told(clock, GOOD, takes_s=takes_s)
    watched(clock, source, for_s=for_s, every_s=every_s)
    assert source.asked_s == pytest.approx(times)


def test_a_server_that_fails_once_is_read_on() -> None:
    clock = VirtualClock()
    (series,) = watched(clock, Told(clock, GOOD, GONE, GOOD))
    assert [failure.reason for failure in series.failures] == ["gone"]
    assert len(series.samples) == 10


def test_a_server_that_says_its_engine_is_lost_is_a_failure_with_samples() -> None:
    clock = VirtualClock()
    (series,) = watched(clock, Told(clock, Page(GOOD.metrics, "/health answers 503")))
    assert len(series.failures) == len(series.samples) == 11


def test_servers_of_which_one_answers_are_watched_and_of_which_none_does_are_not() -> None:
    clock = VirtualClock()
    here, gone = watched(clock, Told(clock, GOOD), Told(clock, GONE))
    assert (len(here.samples), len(gone.samples), len(gone.failures)) == (11, 0, 11)
    with pytest.raises(NotReachable):
        watched(clock, Told(clock, GONE), Told(clock, GONE))


def test_what_will_never_tell_anything_ends_it_at_once_and_only_then() -> None:
    clock = VirtualClock()
    with pytest.raises(SourceError, match="no metrics"):
        watched(clock, Told(clock, GOOD), Told(clock, SourceError("no metrics")))
    (series,) = watched(clock, Told(clock, GOOD, SourceError("no metrics"), GOOD))
    assert len(series.failures) == 1


def test_several_servers_behind_one_address_are_refused_and_one_that_is_replaced_is_not() -> None:
    clock = VirtualClock()

    def page(started_s: int) -> Page:
        metrics = read_exposition(f"process_start_time_seconds {started_s}\n{METRICS}", clock.now())
        assert metrics is not None
        return Page(metrics, None)

    (series,) = watched(clock, Told(clock, page(1), page(1), page(2), page(2), page(3)))
    assert len(series.samples) == 11
    with pytest.raises(SourceError, match="several servers behind http://told: give each its own"):
        watched(clock, Told(clock, page(1), page(2), page(1)))


def test_what_is_older_than_the_window_is_forgotten() -> None:
    clock = VirtualClock()
    watcher = Watcher([Told(clock, GOOD)], clock=clock, window_s=3.0)
    for _ in range(10):
        watcher.read()
        clock.advance(1.0)
    watcher.close()
    (series,) = watcher.series()
    assert [sample.time_s for sample in series.samples] == [6, 7, 8, 9]


class Web:
    """Answers by path, and notes the headers."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, str]] = {}
        self.seen: list[dict[str, str]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.seen.append({name.lower(): value for name, value in self.headers.items()})
                status, text = web.pages.get(self.path, (404, ""))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", text)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def answering() -> Iterator[Web]:
    """It answers within the block."""
    web = Web()
    thread = threading.Thread(target=web.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        web.server.shutdown()
        thread.join()
        web.server.server_close()


@pytest.fixture
def web() -> Iterator[Web]:
    with answering() as web:
        yield web


def read(url: str, **headers: str) -> Page:
    return Server(url, headers=headers).read(lambda: 7.0)


def test_a_server_is_read_with_its_headers_and_the_time_of_its_answer(web: Web) -> None:
    web.pages = {"/metrics": (200, METRICS), "/health": (200, "")}
    page = read(web.url + "/", authorization="Bearer k")
    assert page.lost is None
    assert page.metrics.engines["0"].time_s == 7.0
    assert web.seen[0]["authorization"] == "Bearer k"
    assert read(web.url + "/metrics").metrics.engines


@pytest.mark.parametrize(("status", "lost"), [(503, True), (404, False), (401, False)])
def test_its_health_tells_whether_its_engine_is_lost(web: Web, status: int, lost: bool) -> None:
    web.pages = {"/metrics": (200, METRICS), "/health": (status, "")}
    assert (read(web.url).lost is not None) == lost


@pytest.mark.parametrize(
    ("page", "message", "later"),
    [
        ((401, ""), "--header 'Authorization=Bearer KEY'", False),
        ((404, ""), "without /v1", False),
        ((503, ""), "answers 503", True),
        ((200, "<html></html>"), "no metrics of Headway or vLLM", False),
        ((200, "headway:num_requests_running many\n"), "no valid Prometheus text", False),
    ],
)
def test_what_is_no_source_says_what_would_work(
    web: Web, page: tuple[int, str], message: str, later: bool
) -> None:
    web.pages = {"/metrics": page}
    with pytest.raises(SourceError, match=message) as caught:
        read(web.url)
    assert isinstance(caught.value, NotReachable) == later


def test_a_key_does_not_follow_a_redirect(web: Web) -> None:
    web.pages = {"/metrics": (302, web.url + "/other"), "/other": (200, METRICS)}
    with pytest.raises(SourceError, match="answers 302"):
        read(web.url, authorization="Bearer k")
    assert len(web.seen) == 1


def test_nobody_there_is_not_reachable(web: Web) -> None:
    web.server.server_close()
    with pytest.raises(NotReachable, match="does not answer: Connection re"):
        read(web.url)


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://", "http://h:x", "http://h?a=b", "http://me:secret@h"]
)
def test_an_address_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig, match=r"^URL: ") as caught:
        Server(url, headers={})
    assert "@" in url or url in str(caught.value)
    assert "secret" not in str(caught.value)
