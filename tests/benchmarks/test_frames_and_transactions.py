"""What a tool call costs, counted: frames over the private socket, and transactions of the store.

A real gateway core with a real worker. A call that asks the runner twice, or writes what it wrote before, does not fit.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.application import Application
from gateway.liveness import LivenessDirectory
from gateway.registry import Guarded, load_registry
from gateway.worker_process import WorkerLink
from runner import api, wire
from tests.gateway.core.support import RecordingAudit, quiet_log, write_registry

WAIT_S = 60
PATCH = "*** Begin Patch\n*** Add File: {name}\n+text\n*** End Patch\n"


@dataclass(frozen=True)
class Cost:
    """`frames`: both ways, events included. `writes`, `reads`: transactions."""

    frames: int
    writes: int = 0
    reads: int = 0


@dataclass
class Counted:
    application: Application
    frames: int = 0
    writes: int = 0
    reads: int = 0
    made: int = 0

    def count_transactions(self) -> None:
        database = self.application._database
        for connection, count in (
            (database._write_connection, self._wrote),
            (database._read_connection, self._read),
        ):
            assert isinstance(connection, sqlite3.Connection)
            connection.set_trace_callback(count)

    def _wrote(self, statement: str) -> None:
        self.writes += statement.startswith("BEGIN")

    def _read(self, statement: str) -> None:
        self.reads += statement.startswith("BEGIN")

    async def cost(self, call: Callable[[Counted], Awaitable[object]]) -> Cost:
        self.made += 1
        before = (self.frames, self.writes, self.reads)
        await asyncio.wait_for(call(self), WAIT_S)
        frames, writes, reads = before
        return Cost(self.frames - frames, self.writes - writes, self.reads - reads)


@asynccontextmanager
async def counted(base: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counted]:
    data = base / "data"
    (base / "ws").mkdir()
    (base / "ws" / "file.txt").write_text("text\n")
    registry = write_registry(
        base / "registry.json", {"demo": {"root": str(base / "ws"), "profile": "workspace-write"}}
    )
    deaths = LivenessDirectory(data / "liveness")
    application = Application(
        version="1",
        load_registry=lambda: load_registry(registry, Guarded(data_dir=str(data))),
        data_dir=data,
        deaths=deaths,
        link=WorkerLink(quiet_log(), max_processes=4, deaths=deaths),
        audit=RecordingAudit(),
        log=quiet_log(),
        max_processes=4,
    )
    one = Counted(application)
    send, take = wire.Connection._send, wire.Connection._take

    # The protocol is without I/O: what passes through it is what passes over the socket.
    def counting_send(self: wire.Connection, kind: wire.Kind, message: Any) -> None:
        send(self, kind, message)
        one.frames += 1

    def counting_take(self: wire.Connection, message: Any) -> wire.WireEvent:
        one.frames += 1
        return take(self, message)

    monkeypatch.setattr(wire.Connection, "_send", counting_send)
    monkeypatch.setattr(wire.Connection, "_take", counting_take)
    await asyncio.wait_for(application.start(), WAIT_S)
    try:
        one.count_transactions()
        yield one
    finally:
        await asyncio.wait_for(application.close(), WAIT_S)


async def run(one: Counted) -> None:
    """A command from its start to its observed end."""
    started = await one.application.exec_command("demo", ("/bin/true",), False, None)
    query = api.QueryProcess(process_id=started.process_id, wait_ms=WAIT_S * 1000)
    assert (await one.application.process_status(query)).exit_code == 0


async def patch(one: Counted) -> None:
    answer = await one.application.apply_patch("demo", PATCH.format(name=f"new-{one.made}"), {}, None, False)
    assert answer.status == "applied"


async def preview(one: Counted) -> None:
    answer = await one.application.apply_patch("demo", PATCH.format(name="preview"), {}, None, True)
    assert answer.status == "checked"


COSTS: dict[str, tuple[Callable[[Counted], Awaitable[object]], Cost]] = {
    "workspace_info": (lambda one: one.application.workspace_info(None), Cost(0)),
    "workspace_info of a workspace": (lambda one: one.application.workspace_info("demo"), Cost(0)),
    "read": (lambda one: one.application.read_file("demo", "file.txt"), Cost(2)),
    "find": (lambda one: one.application.find_files("demo", "**"), Cost(2)),
    "grep": (lambda one: one.application.grep_files("demo", "text"), Cost(2)),
    "exec_command and process_status": (run, Cost(5)),
    "apply_patch": (patch, Cost(2, writes=2)),
    "apply_patch, a preview": (preview, Cost(2)),
    "work_open": (lambda one: one.application.work_open("demo"), Cost(0, writes=1)),
}
"""Each to what it costs once everything that is remembered is known; to be lowered with what it costs."""


@pytest.mark.kernel("namespaces")
@pytest.mark.timeout(180)
@pytest.mark.covers("UDS-1", "OP-5")
async def test_a_call_takes_no_more_frames_and_transactions_than_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(tmp_path, monkeypatch) as one:
        for call, _ in COSTS.values():
            await one.cost(call)
        found = {name: await one.cost(call) for name, (call, _) in COSTS.items()}
    assert found == {name: cost for name, (_, cost) in COSTS.items()}
