"""Counters of the gateway in the Prometheus text format, in a registry object of their own.

Refuses to know: what the numbers are used for, and any content of calls. Labels come from closed sets (tool names,
error codes, reasons), so a caller cannot make new series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from gateway.ports import AuditRecord

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class _Elsewhere(Collector):
    """Counted elsewhere: a runner that is replaced starts at zero, which scrapers take for what it is."""

    def __init__(self, name: str, about: str, labels: tuple[str, ...]) -> None:
        self._name, self._about, self._labels = name, about, labels
        self.counts: dict[tuple[str, ...], int] = {}

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        for values, count in sorted(self.counts.items()):
            family.add_metric(values, count)
        yield family


_STORED = {
    "operations": "Recorded patches by status; `running` before they have one.",
    "holds": "Holds by state.",
    "works": "Works by state.",
    "intents": "Instructions by state.",
}


class Metrics:
    """Not shared between programs; one object a gateway."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._calls = Counter(
            "codespace_tool_calls", "Tool calls by tool and outcome code.", ("tool", "code"), registry=self._registry
        )
        self._seconds = Histogram(
            "codespace_tool_seconds",
            "Time to answer a tool call, waiting included.",
            ("tool",),
            registry=self._registry,
            buckets=_BUCKETS_S,
        )
        self._refused = Counter(
            "codespace_refused_requests",
            "Requests or connections refused before MCP, by reason.",
            ("reason",),
            registry=self._registry,
        )
        self._audit = Counter(
            "codespace_decisions", "Audit records by kind and outcome.", ("kind", "outcome"), registry=self._registry
        )
        self._mutations = Counter(
            "codespace_mutations",
            "What came of allowed mutations: patches, commands, works, instructions.",
            ("tool", "outcome"),
            registry=self._registry,
        )
        self._starts = Histogram(
            "codespace_sandbox_start_seconds",
            "Time from the runner being asked for a command to its start.",
            registry=self._registry,
            buckets=_BUCKETS_S,
        )
        self._stored = {
            name: Gauge(f"codespace_{name}", about, ("state",), registry=self._registry)
            for name, about in _STORED.items()
        }
        self._running = Gauge("codespace_running_processes", "Commands that run now.", registry=self._registry)
        self._ready = Gauge("codespace_ready", "1 while /readyz would answer 200.", registry=self._registry)
        self._network = _Elsewhere(
            "codespace_network_decisions", "Decisions of the egress proxy by way and outcome.", ("via", "outcome")
        )
        self._ended = _Elsewhere(
            "codespace_ended_processes", "Commands that are over, by termination or lost.", ("termination",)
        )
        for collector in (self._network, self._ended):
            self._registry.register(collector)
        self._children: dict[tuple[str, str], Counter] = {}
        self._timers: dict[str, Histogram] = {}

    def tool_called(self, tool: str, code: str, seconds: float) -> None:
        counter = self._children.get((tool, code))
        if counter is None:
            counter = self._children[(tool, code)] = self._calls.labels(tool, code)
        timer = self._timers.get(tool)
        if timer is None:
            timer = self._timers[tool] = self._seconds.labels(tool)
        counter.inc()
        timer.observe(seconds)

    def request_refused(self, reason: str) -> None:
        """`reason`: peer, host, origin, token, size, closing, connections (no place free), slow, form (of no session of
        ours), throttle (of logins) or streams (no place free)."""
        self._refused.labels(reason).inc()

    def audited(self, record: AuditRecord) -> None:
        self._audit.labels(record.kind, record.outcome).inc()
        if record.kind == "mutation":
            self._mutations.labels(record.tool, record.outcome).inc()
        if record.seconds is not None:
            self._starts.observe(record.seconds)

    def stored(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Rows of the store by (name, state) at the moment of a scrape; names: operations, holds, works, intents."""
        for gauge in self._stored.values():
            gauge.clear()
        for (name, state), count in counts.items():
            self._stored[name].labels(state).set(count)

    def state(self, *, running_processes: int, ready: bool) -> None:
        """As it is at the moment of a scrape."""
        self._running.set(running_processes)
        self._ready.set(ready)

    def ended(self, counts: Mapping[str, int]) -> None:
        """Commands that ended since the start, by how."""
        self._ended.counts = {(how,): count for how, count in counts.items()}

    def network(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Decisions of the egress proxy by (via, decision), as its runner counted them at the moment of a scrape."""
        self._network.counts = dict(counts.items())

    def render(self) -> bytes:
        return generate_latest(self._registry)
