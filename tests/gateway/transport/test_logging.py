"""The log: one JSON object a line, secrets redacted; the audit trail in it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
import structlog
from starlette.requests import ClientDisconnect

from gateway import logging as gateway_logging
from gateway.audit import LogAudit
from gateway.metrics import Metrics
from gateway.ports import AuditRecord

TOKEN = "0123456789abcdef-the-token"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The process's log is put back afterwards."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield io.StringIO()
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.covers("NETIF-3")
def test_every_line_is_one_json_object_with_level_and_time(stream: io.StringIO) -> None:
    log = gateway_logging.configure("info", stream=stream)
    log.info("ready", socket="/run/x", text="two\nlines \u2028 and \u20ac")
    logging.getLogger("some.library").warning("it %s", "happened")
    log.debug("not this")
    first, second = lines(stream)
    assert len(stream.getvalue().splitlines()) == 2
    assert (first["event"], first["level"], first["text"]) == ("ready", "info", "two\nlines \u2028 and \u20ac")
    assert (second["event"], second["level"], second["logger"]) == ("it happened", "warning", "some.library")
    assert first["timestamp"].endswith("Z")


@pytest.mark.covers("NETIF-3")
def test_secrets_are_redacted_by_key_by_shape_and_by_value(stream: io.StringIO) -> None:
    log = gateway_logging.configure("info", secrets=[TOKEN], stream=stream)
    log.info(
        "request",
        authorization=f"Bearer {TOKEN}",
        token="abcd",
        headers={"Authorization": "Basic abcdefgh", "Cookie": "a=b", "Host": "localhost"},
        note=f"it sent Bearer zzzzzzzz and {TOKEN}",
        listed=["fine", {"api_key": "k", "more": [f"x{TOKEN}y"]}],
        token_file="/etc/token",
    )
    logging.getLogger("library").warning("Authorization: Bearer %s", TOKEN)
    text = stream.getvalue()
    for secret in (TOKEN, "abcd", "abcdefgh", "a=b", "zzzzzzzz"):
        assert f'"{secret}"' not in text
        assert f" {secret}" not in text
    first = lines(stream)[0]
    assert first["headers"] == {"Authorization": "[redacted]", "Cookie": "[redacted]", "Host": "localhost"}
    assert first["note"] == "it sent Bearer [redacted] and [redacted]"
    assert first["listed"] == ["fine", {"api_key": "[redacted]", "more": ["x[redacted]y"]}]


@pytest.mark.covers("NETIF-3")
def test_an_exception_is_in_its_line_and_redacted_too(stream: io.StringIO) -> None:
    log = gateway_logging.configure("info", secrets=[TOKEN], stream=stream)
    try:
        raise OSError(f"cannot use {TOKEN}")
    except OSError:
        log.exception("failed")
    (line,) = lines(stream)
    assert "OSError: cannot use [redacted]" in line["exception"]


@pytest.mark.parametrize("level", gateway_logging.LEVELS)
def test_the_level_is_the_least_that_is_written(stream: io.StringIO, level: str) -> None:
    log = gateway_logging.configure(level, stream=stream)
    for name in gateway_logging.LEVELS:
        getattr(log, name)(name)
    at = gateway_logging.LEVELS.index(level)
    assert [line["event"] for line in lines(stream)] == list(gateway_logging.LEVELS[at:])


@pytest.mark.covers("NETIF-3")
async def test_the_audit_trail_says_who_what_and_how_it_went(stream: io.StringIO) -> None:
    log = gateway_logging.configure("info", stream=stream)
    metrics = Metrics()
    audit = LogAudit(log, metrics)
    with structlog.contextvars.bound_contextvars(peer="unix:uid=7:42"):
        audit.record(AuditRecord("decision", "exec_command", "demo", "allowed"))
        audit.record(
            AuditRecord("mutation", "exec_command", "demo", "failed", "PROCESS_SPAWN_FAILED", {"process_id": "p"})
        )
    audit.flush()
    audit.flush()
    allowed, failed = lines(stream)
    assert {k: v for k, v in allowed.items() if k != "timestamp"} == {
        "event": "audit",
        "level": "info",
        "peer": "unix:uid=7:42",
        "kind": "decision",
        "tool": "exec_command",
        "workspace_id": "demo",
        "outcome": "allowed",
    }
    assert (failed["level"], failed["code"], failed["process_id"]) == ("warning", "PROCESS_SPAWN_FAILED", "p")
    assert b'codespace_decisions_total{kind="decision",outcome="allowed"} 1.0' in metrics.render()
    assert b'codespace_mutations_total{outcome="failed",tool="exec_command"} 1.0' in metrics.render()
    assert b"codespace_sandbox_start_seconds_count 0.0" in metrics.render()


class NoticedStream(io.StringIO):
    """`written` is set once somebody wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


@pytest.mark.covers("NETIF-3")
async def test_lines_of_the_audit_trail_come_by_themselves_behind_the_call_and_in_order(stream: io.StringIO) -> None:
    noticed = NoticedStream()
    audit = LogAudit(gateway_logging.configure("info", stream=noticed), Metrics())
    for _ in range(2):
        noticed.written.clear()
        for peer in ("one", "two"):
            with structlog.contextvars.bound_contextvars(peer=peer):
                audit.record(AuditRecord("decision", "read", "demo", "allowed"))
        assert not noticed.written.is_set(), "the call itself waits for no line"
        await asyncio.wait_for(noticed.written.wait(), 30)
    assert [line["peer"] for line in lines(noticed)] == ["one", "two"] * 2


@pytest.mark.covers("NETIF-3")
@pytest.mark.parametrize(
    ("error", "written"), [(ClientDisconnect(), False), (anyio.ClosedResourceError(), False), (OSError("disk"), True)]
)
def test_a_client_that_leaves_in_mid_message_is_no_error_of_ours(error: Exception, written: bool) -> None:
    stream = io.StringIO()
    gateway_logging.configure("info", stream=stream)
    try:
        raise error
    except (ClientDisconnect, anyio.ClosedResourceError, OSError):
        logging.getLogger("mcp.server.streamable_http").exception("Error handling POST request")
    assert bool(stream.getvalue()) is written
