"""The alerts and dashboard for Prometheus use metrics that exist, and the page lists them all."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import ProcessCollector

from nri_policy.engine.event import Elapsed
from nri_policy.engine.grant import Decision
from nri_policy.node import view_of
from nri_policy.observability.gauges import make_gauges, take_snapshot
from tests.support import nodes
from tests.support.engine_driver import EngineDriver
from tests.support.metrics_client import counted

PROJECT = Path(__file__).resolve().parents[3]
CONFIGS = PROJECT / "configs"


def metrics() -> dict[str, set[str]]:
    """Return the labels of every metric that the daemon has, by the names that queries use."""
    driver = EngineDriver("package:1 numa:2 core:2 pu:1")
    driver.create(nodes.container(1000))
    metrics = counted()
    metrics.count_request("CreateContainer", "ok", 0.0)
    decision = Decision(
        container_id=driver.decision.container_id, explanation=driver.decision.explanation
    )
    metrics.time_decision(Elapsed(now=0.0), 0.0)
    metrics.observe(Elapsed(now=0.0), decision, view_of(driver.engine))
    process = ProcessCollector(registry=None)
    found: dict[str, set[str]] = {}
    families_ = (
        *(make() for make in metrics.collect()),
        *make_gauges(take_snapshot(view_of(driver.engine))),
    )
    for family in (*families_, *process.collect()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def unknown(expression: str) -> set[str]:
    """Return the metrics and labels of a query that there are none of."""
    known = metrics()
    names = set(re.findall(r"\b(?:nri_policy|process)_[a-z_]+", expression))
    labels = set(re.findall(r"([a-z]+)(?:=~|!=|=)", expression))
    for grouping in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        labels |= set(grouping.split(", "))
    ours = set().union(*(known[name] for name in names & known.keys()))
    return (names - known.keys()) | (labels - ours - {"instance"})


def test_alerts_ask_for_metrics_that_exist() -> None:
    rule = yaml.safe_load((CONFIGS / "kubernetes" / "alerts.yaml").read_text())
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    assert len(alerts) == 5
    for alert in alerts:
        assert "nri_policy_" in alert["expr"]
        assert not unknown(alert["expr"]), alert["alert"]
        labels = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["description"]))
        if "by (" in alert["expr"]:
            assert all(label in alert["expr"] for label in labels), alert["alert"]


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((CONFIGS / "kubernetes" / "dashboard.json").read_text())
    variables = [each["query"]["query"] for each in dashboard["templating"]["list"][1:]]
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 10
    for query in queries:
        assert not unknown(query), query
        assert query.count("(") == query.count(")"), query
    for query in variables:
        name, label = re.fullmatch(r"label_values\((\w+).*, (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert label in metrics()[name] | {"instance"}


def test_a_query_for_a_metric_or_a_label_that_is_none_is_found() -> None:
    assert unknown('rate(nri_policy_nothing_total{event="x"}[5m])') == {
        "nri_policy_nothing_total",
        "event",
    }
    assert unknown('sum by (pod) (nri_policy_containers{zone="root"})') == {"pod"}


def test_the_page_has_every_metric_with_its_labels_and_no_other() -> None:
    page = (PROJECT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(nri_policy_\w+)` \|([^|]*)\|", page, re.MULTILINE)
    described = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    described |= {name: set() for name in re.findall(r"`(process_\w+)`", page)}
    existing = {
        re.sub(r"_(bucket|count|sum)$", "", name): labels - {"le"}
        for name, labels in metrics().items()
    }
    assert described == existing


@pytest.mark.parametrize(("label", "metric"), [("reason", "allocations"), ("kind", "degraded")])
def test_the_page_has_every_value_of_the_labels_that_need_words(label: str, metric: str) -> None:
    page = (PROJECT / "docs" / "metrics.md").read_text()
    values = vars(counted())[f"_{metric}"]._series
    known = values.known[values.labels.index(label)]
    assert len(known) > 3
    for value in known:
        assert f"| `{value}` |" in page, value
