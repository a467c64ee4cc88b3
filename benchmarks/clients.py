"""What many clients get: 1, 8 and 64 of them, each running `true` in turn in its own workspace, over MCP.

Beside them as many children of this process at a time: `true` alone, and `true` under `bwrap --unshare-all` with the
mounts of our own plan. One server serves all three crowds, which take turns; 64 commands may run at once.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from benchmarks.crowd import COMMAND, McpCrowd, Run, SpawnCrowd
from benchmarks.measure import Bound, Claim, Options, Table, percentile
from benchmarks.servers import Appliance, appliance
from benchmarks.start import bubblewrap_argv
from runner.api import WorkspaceTerms

TITLE = "many clients at once"
CROWDS = {1: 60, 8: 25, 64: 10}
"""Clients to commands of each in a round."""
ROUNDS = 5
RATE = 150.0
TAIL = 8.0
OURS, WRAPPED, BARE = "ours, over MCP", "bwrap", "posix_spawn"


async def _wrapped(root: Path, made: Path) -> list[str]:
    launcher = LinuxSandboxLauncher()
    await launcher.start()
    try:
        plan = await launcher.plan_for(WorkspaceTerms(workspace_id="bench", root=str(root)), terminal=False)
    finally:
        await launcher.close()
    argv = [*bubblewrap_argv(plan, made), *COMMAND]
    return [shutil.which(argv[0]) or argv[0], *argv[1:]]


async def measure(options: Options) -> list[Table]:
    if shutil.which("bwrap") is None:
        raise RuntimeError("clients: bwrap not installed: install bubblewrap")
    most = max(CROWDS)
    with (
        appliance(most, MAX_PROCESSES=str(most)) as served,
        tempfile.TemporaryDirectory(prefix="codespace-bench-") as made,
    ):
        wrapped = await _wrapped(next(iter(served.roots.values())), Path(made))
        tables = [_crowd(served, wrapped, clients, options) for clients in CROWDS]
    return [table for pair in tables for table in pair]


def _crowd(served: Appliance, wrapped: list[str], clients: int, options: Options) -> tuple[Table, Table]:
    over_mcp = McpCrowd(served.unix, list(served.roots)[:clients])
    crowds: dict[str, Callable[[int], Run]] = {
        BARE: SpawnCrowd(COMMAND, clients).run,
        WRAPPED: SpawnCrowd(wrapped, clients).run,
        OURS: over_mcp.run,
    }
    rounds, each = (1, max(4, CROWDS[clients] // 5)) if options.quick else (ROUNDS, CROWDS[clients])
    runs: dict[str, list[Run]] = {name: [] for name in crowds}
    order = random.Random(0)
    try:
        for crowd in crowds.values():
            crowd(2)
        for _ in range(rounds):
            for name in order.sample(list(crowds), len(crowds)):
                runs[name].append(crowds[name](each))
    finally:
        over_mcp.close()
    who = f"{clients} client{'s' if clients > 1 else ''}"
    rates = {name: [run.rate for run in of_name] for name, of_name in runs.items()}
    latencies = {name: [ms for run in of_name for ms in run.latencies_ms] for name, of_name in runs.items()}
    median, tail = statistics.median(latencies[OURS]), percentile(latencies[OURS], 0.99)
    bounded = clients == max(CROWDS)
    typical = statistics.median(rates[OURS])
    return (
        Table(
            f"commands in a second, {who}",
            "commands/s",
            rates,
            [Bound(OURS, WRAPPED), Bound(OURS, BARE)],
            higher_is_better=True,
            claims=[Claim("commands/s, median of the rounds", typical, RATE if bounded else None, at_least=True)],
        ),
        Table(
            f"request to observed exit, {who}",
            "ms",
            latencies,
            [Bound(OURS, WRAPPED)],
            notes={"p99 of ours": f"{tail:.1f} ms"},
            claims=[Claim("p99 / median", tail / median, TAIL if bounded else None)],
        ),
    )
