"""What /metrics offers, what the dashboard draws and what the documents explain: none without the others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import Metrics
from gateway.ports import AuditRecord
from tests.gateway.transport.serving import request
from tests.program import Refused, running_program

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana" / "codespace.json"


def filled() -> Metrics:
    """One of everything, so that each series shows its labels."""
    metrics = Metrics()
    metrics.tool_called("read", "OK", 0.1)
    metrics.request_refused("token")
    metrics.audited(AuditRecord("decision", "read", "demo", "allowed"))
    metrics.audited(AuditRecord("mutation", "exec_command", "demo", "done", seconds=0.004))
    metrics.ended({"exited": 3})
    stored = ("operations", "applied"), ("holds", "pending"), ("works", "active"), ("intents", "queued")
    metrics.stored(dict.fromkeys(stored, 2))
    metrics.network({("connect", "refused"): 1})
    metrics.state(running_processes=1, ready=True)
    return metrics


def offered(text: bytes) -> dict[str, Metric]:
    families = text_string_to_metric_families(text.decode())
    return {family.name: family for family in families if not family.name.endswith("_created")}


def documented() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels by name."""
    told = {}
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("| `codespace_"):
            name, kind, labels, about = [cell.strip() for cell in line.strip("|").split("|")]
            assert about
            told[name.strip("`").removesuffix("_total")] = (kind, set(re.findall(r"`(\w+)`", labels)))
    return told


@pytest.mark.covers("NETIF-3")
def test_every_metric_is_documented_with_its_kind_and_labels_and_no_other_is() -> None:
    assert documented() == {
        name: (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
        for name, family in offered(filled().render()).items()
    }


@pytest.mark.timeout(90)
@pytest.mark.covers("NETIF-3")
def test_a_program_offers_all_of_them_and_counts_what_it_did() -> None:
    patch = "*** Begin Patch\n*** Add File: new\n+x\n*** End Patch\n"
    with running_program() as program:
        program.run("true")
        program.call("apply_patch", workspace_id="demo", patch=patch)
        with pytest.raises(Refused):
            program.call("read", workspace_id="demo", path="../x")
        work_id = program.call("work_open", workspace_id="demo")["work_id"]
        text = request(program.folder / "mcp.sock", "GET", "/metrics").body
        assert program.call("work_finish", work_id=work_id)["closed"]
    found = offered(text)
    assert set(found) == set(documented())
    values = {(s.name, *s.labels.values()): s.value for family in found.values() for s in family.samples}
    assert values["codespace_operations", "applied"] == 1
    assert values["codespace_ended_processes_total", "exited"] == 1
    assert values["codespace_works", "active"] == 1
    assert values["codespace_sandbox_start_seconds_count",] == 1
    assert values["codespace_tool_seconds_count", "read"] == 1
    refused = {
        sample.labels["code"] for sample in found["codespace_tool_calls"].samples if "read" in sample.labels.values()
    }
    assert refused == {"PATH_ESCAPE"}


@pytest.mark.covers("NETIF-3")
def test_the_dashboard_draws_every_metric_and_no_other() -> None:
    known_ones = offered(filled().render())
    expressions = [
        target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]
    ]
    drawn = {re.sub(r"_(total|bucket)$", "", name) for name in re.findall(r"codespace_\w+", " ".join(expressions))}
    assert drawn == set(known_ones)
    for expression in expressions:
        (name,) = set(re.findall(r"codespace_\w+?(?=_total|_bucket|\b)", expression))
        known = {label for sample in known_ones[name].samples for label in sample.labels}
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
