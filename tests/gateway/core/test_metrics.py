"""What /metrics offers and what the dashboard draws: neither without the other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import Metrics
from gateway.ports import AuditRecord

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana" / "codespace.json"


def filled() -> Metrics:
    """One of everything, so that each series shows its labels."""
    metrics = Metrics()
    metrics.tool_called("read", "OK", 0.1)
    metrics.request_refused("token")
    metrics.audited(AuditRecord("decision", "read", "demo", "allowed"))
    metrics.audited(AuditRecord("mutation", "exec_command", "demo", "done", seconds=0.004))
    metrics.stored({("holds", "pending"): 1, ("works", "active"): 2, ("intents", "queued"): 3})
    metrics.network({("connect", "refused"): 1})
    metrics.state(running_processes=1, ready=True)
    return metrics


@pytest.mark.covers("NETIF-3")
def test_the_dashboard_draws_every_metric_and_no_other() -> None:
    families = text_string_to_metric_families(filled().render().decode())
    offered = {family.name: family for family in families if not family.name.endswith("_created")}
    expressions = [
        target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]
    ]
    drawn = {re.sub(r"_(total|bucket)$", "", name) for name in re.findall(r"codespace_\w+", " ".join(expressions))}
    assert drawn == set(offered)
    for expression in expressions:
        (name,) = set(re.findall(r"codespace_\w+?(?=_total|_bucket|\b)", expression))
        known = {label for sample in offered[name].samples for label in sample.labels}
        used = {label for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(", ")}
        assert used <= known, expression


@pytest.mark.covers("NETIF-3")
def test_a_state_that_nothing_is_in_any_more_is_not_shown() -> None:
    metrics = filled()
    metrics.stored({("holds", "consumed"): 1})
    text = metrics.render().decode()
    assert 'codespace_holds{state="consumed"} 1.0' in text
    assert "pending" not in text
    assert "codespace_works{" not in text
    assert "codespace_sandbox_start_seconds_count 1.0" in text
