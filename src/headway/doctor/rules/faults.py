"""What does not work: engines that are gone, steps that fail, requests that are refused."""

from __future__ import annotations

from headway.doctor.finding import Finding, Severity, fine, unjudged
from headway.doctor.readings import Window
from headway.doctor.rules.wording import amount, percent, seconds

__all__ = ["engine_lost", "rejections", "steps_failed"]

REJECTED_SHARE = 0.01
FLOOD_SHARE = 0.2
FAILED_SHARE = 0.1
HUNG_S = 30.0
"""Running requests that get no token for so long: the server's own `--step-timeout`."""


def engine_lost(window: Window) -> Finding:
    """The engine, or its server, is gone, was, or does nothing."""
    name = "engine_lost"
    failures = window.series.failures
    last_s = window.series.samples[-1].time_s if window.num_samples else None
    restarts = (window.increase("engine_restarts") or 0.0) + window.num_restarts
    figures = {"failures": float(len(failures)), "restarts": restarts}
    thresholds = {"failures": 0.0, "restarts": 0.0, "hung_s": HUNG_S}
    # A server says that its engine is lost together with its metrics.
    if failures and (last_s is None or failures[-1].time_s >= last_s):
        what, severity = f"it is lost: {failures[-1].reason}", Severity.CRITICAL
    elif _hangs(window):
        what = f"requests are running, and got no token in the last {seconds(HUNG_S)}"
        severity = Severity.CRITICAL
    elif restarts:
        what, severity = f"the engine was started anew {amount(restarts)} times", Severity.WARNING
    elif failures:
        what = f"{len(failures)} reads failed, and later ones did not: {failures[-1].reason}"
        severity = Severity.WARNING
    else:
        return fine(name, "it answers, and was not restarted", figures, thresholds)
    return Finding(
        name=name,
        severity=severity,
        what=what,
        cause="the engine's process died, hangs, or is overloaded",
        advice=(
            "read the server's log; memory that ran out is in the system's",
            "--restart-engine starts another in its place"
            if window.series.flavour == "headway"
            else "have a supervisor start it again",
        ),
        figures=figures,
        thresholds=thresholds,
    )


def _hangs(window: Window) -> bool:
    end = window.last(HUNG_S)
    if end is None:
        return False
    running = end.levels("num_requests_running")
    made = [end.increase(name) for name in ("generation_tokens", "prompt_tokens")]
    return running is not None and min(running.values) > 0 and made == [0, 0]


def steps_failed(window: Window) -> Finding:
    """Steps and requests that ended in an error."""
    name = "steps_failed"
    failed = window.increase("steps_failed")
    # Of requests that ended in an error some contradict themselves; what the server answered
    # tells these apart, and recordings do not have it.
    errors = window.increase("request_errors", code="generation_failed")
    if errors is None and not window.series.recorded:
        errors = window.increase("request_success", finished_reason="error")
    if failed is None and errors is None:
        return unjudged(name, "the server counts neither failed steps nor failed requests")
    steps = window.distribution("iteration_tokens_total")
    share = (failed or 0.0) / steps.count if steps else 0.0
    figures = {"steps_failed": failed, "requests_failed": errors, "failed_share": share}
    thresholds = {"steps_failed": 0.0, "requests_failed": 0.0, "critical_share": FAILED_SHARE}
    counts = ((failed, "steps"), (errors, "requests"))
    told = [f"{amount(count)} {of}" for count, of in counts if count is not None]
    what = f"{' and '.join(told)} failed"
    if not failed and not errors:
        return fine(name, what, figures, thresholds)
    return Finding(
        name=name,
        severity=Severity.CRITICAL if share >= FAILED_SHARE else Severity.WARNING,
        what=what,
        cause="the model's computation raised an error, or gave no numbers",
        advice=("read the server's log: it has the error, and which request it was",),
        figures=figures,
        thresholds=thresholds,
    )


def rejections(window: Window) -> Finding:
    """Requests that the queue had no room for, or that waited too long in it."""
    name = "rejections"
    full = window.increase("request_errors", code="queue_full")
    late = window.increase("request_success", finished_reason="timeout")
    if full is None and not late:
        source = "a recording" if window.series.recorded else "the server"
        return unjudged(name, f"{source} does not tell what was refused")
    late = late or 0.0
    refused, ended = (full or 0.0) + late, window.increase("request_success") or 0.0
    if not refused + ended:
        return unjudged(name, "no request ended")
    share = refused / (ended + (full or 0.0))
    figures = {"queue_full": full, "queue_timeout": late, "refused_share": share}
    thresholds = {"warning": REJECTED_SHARE, "critical": FLOOD_SHARE}
    what = f"{percent(share)} of the requests were refused"
    if share < REJECTED_SHARE:
        return fine(name, what, figures, thresholds)
    return Finding(
        name=name,
        severity=Severity.CRITICAL if share >= FLOOD_SHARE else Severity.WARNING,
        what=f"{what}: {amount(full or 0.0)} as the queue was full, {amount(late)} as they "
        "had waited too long",
        cause="a flood: more comes than is served, and the queue is at its limit",
        advice=(
            "more instances; the findings above say what holds up the queue",
            "a higher --max-num-queued-reqs only if floods are short and waiting is worth it",
        ),
        figures=figures,
        thresholds=thresholds,
    )
