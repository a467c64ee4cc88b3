"""What the programs take of memory: at rest, for a command that runs and does nothing, and for a prepared sandbox.

PSS (proc_pid_smaps_rollup, proc(5)): a page that several programs share counts for each by its share. For a running
command everything that grew with it is counted, the command's own process apart: the gateway, the worker, the helper
and its first process.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.callers import Caller, raw_http
from benchmarks.measure import Claim, Options, Table
from benchmarks.servers import appliance

TITLE = "memory"
COMMANDS = 8
SLEEP = ("/bin/sleep", "600")
SETTLE_S = 30.0
NEAR_KIB = 256
POOL = "PREPARED_SANDBOXES"
"""The setting of how many sandboxes may wait."""
REST_MB, PREPARED_MB, RUNNING_MB = 200, 3, 1
_MIB = 1024


def pss_kib(pid: int) -> int:
    """0 for one that has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def below(pid: int) -> list[int]:
    """`pid` and all its descendants, those that end meanwhile apart."""
    found = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += below(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def argv_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def settled(look: Callable[[], object]) -> None:
    """Returns once two looks in a row see the same; of kibibytes, about the same: other programs share pages too, and
    come and go. Raises `RuntimeError` where they never do."""
    until = time.monotonic() + SETTLE_S
    last = look()
    while time.monotonic() < until:
        time.sleep(0.25)
        now = look()
        if now == last or (isinstance(now, int) and isinstance(last, int) and abs(now - last) <= NEAR_KIB):
            return
        last = now
    raise RuntimeError("memory: the programs do not come to rest")


class Programs:
    """Those of one appliance."""

    def __init__(self, gateway: int) -> None:
        self.gateway = gateway
        (self.worker,) = [pid for pid in below(gateway) if argv_of(pid)[1:3] == ["-m", "runner"]]
        # Managed children are the worker's too and have the helper's command line; the helper came first.
        self.helper = min(pid for pid in below(self.worker) if any("sandbox_helper" in word for word in argv_of(pid)))

    def first_processes(self) -> list[int]:
        """PID 1 of every sandbox that there is, in order."""
        others = set(below(self.worker)) - {self.worker, self.helper}
        return [pid for pid in sorted(others) if any("sandbox_helper" in word for word in argv_of(pid))]

    def ours_kib(self) -> int:
        """All but the commands themselves."""
        return sum(map(pss_kib, (self.gateway, self.worker, self.helper, *self.first_processes())))


async def measure(options: Options) -> list[Table]:
    rounds = options.samples(20)
    with appliance(COMMANDS, MAX_PROCESSES=str(COMMANDS), **{POOL: "0"}) as served:
        programs = Programs(served.pid)
        settled(programs.ours_kib)
        rest = {name: [pss_kib(pid) / _MIB] for name, pid in vars(programs).items()}
        at_rest = sum(values[0] for values in rest.values())
        with raw_http(served.unix) as caller:
            running = [await _running(caller, list(served.roots), programs) for _ in range(rounds)]
    tables = [
        Table(
            "at rest, before the first command", "MiB", rest, notes={"sum": f"{at_rest:.1f} MiB"},
            claims=[Claim("gateway, worker and helper, MiB", at_rest, REST_MB)],
        ),
        _each("a running command, without its own process", running, RUNNING_MB),
    ]  # fmt: skip
    waiting = [await _waiting() for _ in range(max(2, rounds // 4))]
    return [*tables, _each("a prepared sandbox that waits", waiting, PREPARED_MB)]


def _each(title: str, values: list[float], limit: float) -> Table:
    return Table(title, "MiB", {"ours": values}, claims=[Claim("median, MiB", statistics.median(values), limit)])


async def _running(caller: Caller, workspace_ids: list[str], programs: Programs) -> float:
    """MiB for each of COMMANDS."""
    before = programs.ours_kib()
    started = []
    for workspace_id in workspace_ids:
        answer = await caller.call("exec_command", {"workspace_id": workspace_id, "command": list(SLEEP)})
        started.append(answer["process_id"])
    settled(programs.first_processes)
    after = programs.ours_kib()
    for process_id in started:
        await caller.call("terminate_process", {"process_id": process_id})
    for process_id in started:
        await caller.call("process_status", {"process_id": process_id, "wait_ms": 60_000})
    settled(programs.first_processes)
    return (after - before) / len(started) / _MIB


async def _waiting() -> float:
    """MiB for each sandbox that waits after a command, in an appliance of its own."""
    with appliance(1) as served:
        programs = Programs(served.pid)
        settled(programs.ours_kib)
        before = programs.ours_kib()
        (workspace_id,) = served.roots
        with raw_http(served.unix) as caller:
            for _ in range(COMMANDS):
                answer = await caller.call("exec_command", {"workspace_id": workspace_id, "command": ["/bin/true"]})
                await caller.call("process_status", {"process_id": answer["process_id"], "wait_ms": 60_000})
        settled(programs.first_processes)
        waiting = len(programs.first_processes())
        if not waiting:
            raise RuntimeError("memory: no sandbox waits after a command")
        return (programs.ours_kib() - before) / waiting / _MIB
