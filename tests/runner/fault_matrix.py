"""Every process, at every stage of a command's life, killed, stopped for five seconds, or cut off: what is then told.

`TABLE` is the promise, `play` makes it happen with the real worker and the real sandbox. The test plays every cell and
compares; `python -m tests.runner.fault_matrix` writes the promise as the table of docs/reliability.md, and the test
compares that too.

A start is caught in its middle by stopping the helper first, which is where it then waits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from gateway.runner_client import UdsRunner
from runner.api import ErrorCode, ListProcesses, ProcessStatus, RunnerError, RunnerLost, TerminateProcess
from tests.contract.rig import WAIT_MS
from tests.fakes.worker_host import REPOSITORY
from tests.runner.real_worker import Session, session

STOP_S = 5.0
FLOODED_BYTES = 1_000_000
"""More than is retained."""
PAGE = REPOSITORY / "docs" / "reliability.md"

Target = Literal["worker", "helper", "PID 1", "command", "connection"]
Stage = Literal["starting", "running", "flooding", "ending", "over"]
Fault = Literal["SIGKILL", "SIGSTOP", "cut"]
TARGETS: tuple[Target, ...] = ("worker", "helper", "PID 1", "command", "connection")
STAGES: tuple[Stage, ...] = ("starting", "running", "flooding", "ending", "over")

ALL_DEAD = "all dead, result unknown"
GOES_ON = "goes on, ends with its own code"
AS_ASKED = "ends as asked"
UNRUN = "refused unrun or unknown, or run by the next helper"
UNKNOWN = "all dead, end `unknown`"
BY_SIGNAL = "its signal is told"
READABLE = "handle still readable"
FORGOTTEN = "all dead, handle forgotten"

TABLE: Mapping[tuple[Target, Fault], Mapping[Stage, str]] = {
    ("worker", "SIGKILL"): {
        "starting": ALL_DEAD,
        "running": ALL_DEAD,
        "flooding": ALL_DEAD,
        "ending": ALL_DEAD,
        "over": FORGOTTEN,
    },
    ("worker", "SIGSTOP"): {
        "starting": GOES_ON,
        "running": GOES_ON,
        "flooding": GOES_ON,
        "ending": AS_ASKED,
        "over": READABLE,
    },
    ("helper", "SIGKILL"): {
        "starting": UNRUN,
        "running": GOES_ON,
        "flooding": GOES_ON,
        "ending": AS_ASKED,
        "over": READABLE,
    },
    ("helper", "SIGSTOP"): {
        "starting": GOES_ON,
        "running": GOES_ON,
        "flooding": GOES_ON,
        "ending": AS_ASKED,
        "over": READABLE,
    },
    ("PID 1", "SIGKILL"): {"running": UNKNOWN, "flooding": UNKNOWN, "ending": AS_ASKED},
    ("PID 1", "SIGSTOP"): {"running": GOES_ON, "flooding": GOES_ON, "ending": AS_ASKED},
    ("command", "SIGKILL"): {"running": BY_SIGNAL, "flooding": BY_SIGNAL, "ending": AS_ASKED},
    ("command", "SIGSTOP"): {"running": GOES_ON, "flooding": GOES_ON, "ending": AS_ASKED},
    ("connection", "cut"): {
        "starting": ALL_DEAD,
        "running": ALL_DEAD,
        "flooding": ALL_DEAD,
        "ending": ALL_DEAD,
        "over": FORGOTTEN,
    },
}
"""What the fault leads to. A stage without an entry has no such process, or none that the fault could reach."""

CELLS: tuple[tuple[Target, Fault, Stage], ...] = tuple(
    (target, fault, stage) for (target, fault), row in TABLE.items() for stage in row
)

SCRIPTS: Mapping[Stage, str] = {
    "starting": "echo ready; read x; exit 7",
    "running": "echo ready; read x; exit 7",
    "flooding": "echo ready; cat /dev/zero & read x; exit 7",
    "ending": "trap '' TERM HUP; echo ready; while :; do sleep 86400; done",
    "over": "echo ready; exit 7",
}


@dataclass
class Cell:
    """One command on its way. `starting`: the start that is under way, or done."""

    session: Session
    stage: Stage
    starting: asyncio.Task[str]
    helper: int

    async def reach(self) -> None:
        """Brings the command to its stage."""
        if self.stage == "starting":
            return
        process_id = await self.starting
        rig = self.session.rig
        if self.stage == "flooding":
            while (await rig.status(process_id, WAIT_MS)).output_total < FLOODED_BYTES:
                pass
        else:
            await rig.until(process_id, "ready")
        if self.stage == "ending":
            await rig.runner.terminate_process(TerminateProcess(process_id=process_id))
        elif self.stage == "over":
            await rig.exited(process_id)

    def pid(self, target: Target) -> int:
        return {
            "worker": lambda: self.session.worker.child.pid,
            "helper": lambda: self.helper,
            "PID 1": self.session.first_process,
            "command": self.session.command,
        }[target]()

    async def inflict(self, target: Target, fault: Fault) -> None:
        if fault == "cut":
            cast(UdsRunner, self.session.rig.runner).abort("cut by the test")
        elif fault == "SIGKILL":
            os.kill(self.pid(target), signal.SIGKILL)
        else:
            pid = self.pid(target)
            os.kill(pid, signal.SIGSTOP)
            # Nothing may be given up for being slow: the connection stands all the while.
            await asyncio.wait({self.session.lost}, timeout=STOP_S)
            if self.stage != "ending" or target not in ("PID 1", "command"):
                os.kill(pid, signal.SIGCONT)
        if self.stage == "starting" and target != "helper":
            # The helper waits for nothing any more; if it is dead by now there is nothing to wake.
            try:
                os.kill(self.helper, signal.SIGCONT)
            except ProcessLookupError:
                pass

    async def outcome(self) -> str:
        """What the caller is told, proved by what is alive."""
        try:
            return await self._told()
        except RunnerLost:
            return await self._after_loss()

    async def _told(self) -> str:
        if self.session.lost.done():
            return await self._after_loss()
        try:
            process_id = await self.starting
        except RunnerLost:
            raise
        except RunnerError as error:
            if error.code is not ErrorCode.PROCESS_SPAWN_FAILED and error.details != {"uncertain": True}:
                raise
            await self.session.next_command()
            return UNRUN
        rig = self.session.rig
        if self.stage == "over":
            status = await rig.status(process_id)
            return READABLE if _own_code(status) and await rig.output(process_id) == "ready\n" else repr(status)
        if self.stage != "ending":
            try:
                await rig.write(process_id, "on\n")
            except RunnerLost:
                raise
            except RunnerError as error:
                # It is over, or its input is closed: for it was killed.
                if error.code not in (ErrorCode.PROCESS_NOT_RUNNING, ErrorCode.INVALID_ARGUMENT):
                    raise
        outcome = _named(await rig.exited(process_id))
        # The dead helper may not have had the request yet: then its successor runs it.
        return UNRUN if outcome == GOES_ON and not _alive(self.helper) and self.stage == "starting" else outcome

    async def _after_loss(self) -> str:
        """The client was told that the runner is lost, and nothing is alive."""
        await self.session.lost
        await self.session.worker.all_dead()
        if not self.starting.done():
            await asyncio.wait({self.starting})
        if self.stage == "starting":
            assert isinstance(self.starting.exception(), RunnerLost)
        return FORGOTTEN if self.stage == "over" else ALL_DEAD


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _own_code(status: ProcessStatus) -> bool:
    return status.termination == "exited" and status.command_exit is not None and status.command_exit.code == 7


def _named(status: ProcessStatus) -> str:
    if status.termination == "unknown":
        return UNKNOWN
    if status.termination == "terminated":
        return AS_ASKED
    if _own_code(status):
        return GOES_ON
    if status.command_exit is not None and status.command_exit.signal == "SIGKILL":
        return BY_SIGNAL
    return repr(status)


async def play(target: Target, fault: Fault, stage: Stage, *, prepared: bool = False) -> str:
    """The outcome of one cell. `prepared`: the command runs in a sandbox that waited for it; while one is starting the
    helper is stopped, which such a command does not need."""
    async with session() as s:
        await s.next_command()
        helper = s.helper()
        waited = await s.prime(s.unlimited()) if prepared and stage != "starting" else None
        if stage == "starting":
            os.kill(helper, signal.SIGSTOP)
        starting = asyncio.create_task(s.rig.sh(SCRIPTS[stage], terms=s.unlimited()))
        if stage == "starting":
            # The worker has the request once it has answered the one behind it.
            await s.rig.runner.list_processes(ListProcesses())
        cell = Cell(s, stage, starting, helper)
        await cell.reach()
        if waited is not None and stage in ("running", "flooding"):
            assert s.first_process() == waited
        await cell.inflict(target, fault)
        return await cell.outcome()


def page() -> str:
    """docs/reliability.md."""
    lines = [
        "# What is told after a fault",
        "",
        "Each process that takes part in a command, at each stage of the command's life, is killed, stopped for",
        f"{STOP_S:.0f} seconds, or loses its private connection. `python -m tests.runner.fault_matrix` writes this;",
        "`tests/runner/test_fault_matrix.py` makes every cell happen with the real sandbox and compares.",
        "",
        "| what is hit | how | " + " | ".join(STAGES) + " |",
        "| --- | --- |" + " --- |" * len(STAGES),
    ]
    for (target, fault), row in TABLE.items():
        lines.append(f"| {target} | {fault} | " + " | ".join(row.get(stage, "–") for stage in STAGES) + " |")
    lines += [
        "",
        "- *Starting*: the sandbox helper has the request and has not answered. *Flooding*: a child of the command",
        "  writes without end. *Ending*: terminate was asked, and it ignores TERM. *Over*: its handle is known.",
        "- *All dead*: proved by the end of the liveness pipe, which the worker, its helpers and the first process of",
        "  every sandbox hold. *Result unknown*: nobody is told that a command failed which may have run.",
        "- *Refused unrun*: the helper's death is a spawn failure where it is proved that nothing ran.",
        "- A stopped command or PID 1 still ends when it is told to: the last step is a kill from outside.",
        "- The gateway's own death is the loss of the connection, and its kill ends a worker that is stopped as well:",
        "  `tests/runner/test_worker_faults.py`.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
