"""One load client's part: its calls, counted and timed, its workspace, and what the driver knows to be true there.

The scenes use it; it refuses to know their stories.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load_client import LoadClient, Refused
from benchmarks.load_truth import Revisions, Transcript, check

FINISHED_KEPT = 64
"""Finished handles that a server keeps at least; older ones may be forgotten."""
KEPT_SAMPLES = 2_000
WAIT_MS = 5_000


@dataclass
class World:
    """What all clients of a run know together. `ended`: commands that were called exited, with their place in order."""

    notes: dict[tuple[str, str], Revisions] = field(default_factory=dict)
    owners: dict[str, list[str]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    dispatched: int = 0
    lost_bytes: int = 0
    checked_bytes: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    scenes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    latency_ms: dict[str, list[float]] = field(default_factory=dict)


class Evicted(Exception):
    """A handle that was rightly forgotten: so many commands ended since."""


@dataclass
class Actor:
    """`name` owns the folder `name/` of its workspace. `runs`: how many logged commands it has had run."""

    world: World
    workspace: str
    name: str
    client: LoadClient
    rng: random.Random
    runs: int = 0
    keys: int = 0

    @property
    def mine(self) -> Revisions:
        return self.world.notes[self.workspace, self.name]

    def new_key(self, what: str) -> str:
        self.keys += 1
        return f"{self.name}-{what}-{self.keys}"

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """One call. Raises Refused, NoAnswer, and Wrong for an error that no call of the driver can deserve."""
        self.world.calls[tool] += 1
        began = time.perf_counter()
        try:
            return await self.client.call(tool, arguments)
        except Refused as refused:
            self.world.refusals[refused.code] += 1
            check(refused.code not in ("INTERNAL", "TOO_MANY_PROCESSES"), f"{tool} was refused", str(refused))
            raise
        finally:
            self._time(tool, (time.perf_counter() - began) * 1000)

    def _time(self, tool: str, took_ms: float) -> None:
        kept = self.world.latency_ms.setdefault(tool, [])
        if len(kept) < KEPT_SAMPLES:
            kept.append(took_ms)
        elif (at := self.rng.randrange(self.world.calls[tool])) < KEPT_SAMPLES:
            kept[at] = took_ms

    async def here(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return await self.call(tool, workspace_id=self.workspace, **arguments)

    async def refused(self, code: str, tool: str, **arguments: Any) -> Refused:
        """The refusal that is due. Raises Wrong for another answer."""
        try:
            answer = await self.call(tool, **arguments)
        except Refused as refused:
            check(refused.code == code, f"{tool} should be {code}", str(refused), arguments)
            return refused
        check(False, f"{tool} should be {code}", answer, arguments)
        raise AssertionError

    async def leased(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """A call that needs the workspace's lease, repeated until it is free. The holder must not be over already."""
        while True:
            over = len(self.world.ended)
            try:
                return await self.here(tool, **arguments)
            except Refused as refused:
                if refused.code != "WORKSPACE_BUSY":
                    raise
                holder = refused.details["holder"]
                told = self.world.ended.get(holder["id"], over)
                check(told >= over, "a command that was over still holds the workspace", holder)
            if holder["kind"] == "process":
                with contextlib.suppress(Refused):
                    await self.status(holder["id"], wait_ms=WAIT_MS)
            else:
                await asyncio.sleep(0.01)

    # --- commands -----------------------------------------------------------------------------------------------------
    async def start(self, *argv: str, **more: Any) -> str:
        """Raises Wrong where the dispatch is uncertain: nothing has been lost."""
        answer = await self.leased("exec_command", command=list(argv), **more)
        check(answer["dispatch_status"] == "confirmed", "an uncertain dispatch", answer)
        self.world.dispatched += 1
        process_id: str = answer["process_id"]
        return process_id

    async def status(self, process_id: str, wait_ms: int = 0) -> dict[str, Any]:
        was_over = process_id in self.world.ended
        answer = await self.call("process_status", process_id=process_id, wait_ms=wait_ms)
        if answer["state"] == "exited":
            self.world.ended.setdefault(process_id, len(self.world.ended))
        else:
            check(not was_over, "a command that was over runs again", answer)
        return answer

    async def exited(self, process_id: str) -> dict[str, Any]:
        """Raises Evicted."""
        since = self.world.dispatched
        while True:
            try:
                answer = await self.status(process_id, WAIT_MS)
            except Refused as refused:
                raise self._forgotten(refused, since) from refused
            if answer["state"] == "exited":
                return answer

    async def output(self, process_id: str, expected: bytes, **more: Any) -> Transcript:
        """All of its output, as it comes. Raises Evicted."""
        transcript, since = Transcript(expected), self.world.dispatched
        while not transcript.eof:
            try:
                answer = await self.call(
                    "read_process", process_id=process_id, cursor=transcript.cursor, wait_ms=WAIT_MS, **more
                )
            except Refused as refused:
                raise self._forgotten(refused, since) from refused
            transcript.take(answer)
        self.world.lost_bytes += transcript.lost
        self.world.checked_bytes += transcript.passed
        return transcript

    def _forgotten(self, refused: Refused, since: int) -> Exception:
        if refused.code == "PROCESS_NOT_FOUND" and self.world.dispatched - since > FINISHED_KEPT:
            return Evicted()
        return refused

    async def ended_with(self, process_id: str, code: int) -> None:
        """Raises Wrong where the command is told to have ended in another way, Evicted."""
        status = await self.exited(process_id)
        told = (status["termination"], status.get("command_exit"))
        check(told == ("exited", {"code": code}), "another end than the command's own", process_id, status)

    def logged(self) -> str:
        """A shell line that notes this command, once, in a file of its own."""
        self.runs += 1
        return f"echo {self.runs} >> runs/{self.name}.log"
