from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.server.watch.exchange import Exchange
from headway.server.watch.http_metrics import HttpMetrics
from server.test_prometheus import CACHE, Shown
from server.test_stats import ENDED, STEP, decodes

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "headway.json"
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "serving.md"
NAME = re.compile(r"\b(?:headway|vllm):\w+")
GROUPED = re.compile(r"sum by \(([^)]*)\) \((?:rate\()?([\w:]+)")
LEGEND = re.compile(r"{{(\w+)}}")


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def expressions(dashboard: dict[str, Any], namespace: str) -> Iterator[tuple[str, str]]:
    """(expression, legend) with the namespace put in."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("${namespace}", namespace), target["legendFormat"]


def exported(namespace: str) -> dict[str, set[str]]:
    """Names of series → their labels, of a server that has done a bit of everything."""
    shown = Shown(namespace, by_tenant=True)
    http = HttpMetrics(shown.instruments)
    shown.metrics.engine_started(CACHE)
    for record in (STEP, decodes("a"), decodes("a")):
        shown.step(record, ENDED)
    http.count(Exchange("id", "GET", "/x", code="queue_full"))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(shown.instruments.render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("namespace", ["headway", "vllm"])
def test_every_series_that_the_dashboard_shows_is_exported(
    dashboard: dict[str, Any], namespace: str
) -> None:
    known = exported(namespace)
    asked = [name for expr, _ in expressions(dashboard, namespace) for name in NAME.findall(expr)]
    assert len(asked) > 30
    assert not [name for name in asked if name not in known]


def test_every_metric_that_the_guide_acts_on_is_exported() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:num_req|num_pre|kv_cache_u|prefix_cache_h)\w+)", guide))
    assert len(named) > 3
    assert {f"headway:{name}" for name in named} <= set(exported("headway"))


@pytest.mark.parametrize("namespace", ["headway", "vllm"])
def test_what_it_groups_and_selects_by_are_labels(
    dashboard: dict[str, Any], namespace: str
) -> None:
    known = exported(namespace)
    for expr, legend in expressions(dashboard, namespace):
        assert expr.count('{model_name=~"$model_name"}') == len(NAME.findall(expr)), expr
        groups = {
            label.strip(): name
            for labels, name in GROUPED.findall(expr)
            for label in labels.split(",")
        }
        assert all(label in known[name] for label, name in groups.items()), expr
        assert set(LEGEND.findall(legend)) <= set(groups), expr


def test_only_its_variables_are_used(dashboard: dict[str, Any]) -> None:
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    text = json.dumps(dashboard["panels"])
    used = set(re.findall(r"\$\{?(\w+)", text))
    assert used == variables | {"__rate_interval"}


def test_panels_lie_side_by_side(dashboard: dict[str, Any]) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        own = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not own & cells, panel["title"]
        cells |= own
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
