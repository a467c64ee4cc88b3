"""What a call costs over MCP: an empty round trip on each transport, and a command to its observed exit.

The reference is a bare server of the MCP SDK with one empty tool, asked by the same client in the same run; each figure
names its client. A command is `true`, from the call of exec_command to the answer of process_status that has its exit
code. The start alone, without MCP, is measured beside it: in this process, by the launcher that the runner uses, into a
sandbox that waits. Both have one waiting when a sample begins, and no other is made meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from importlib.metadata import version

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from benchmarks.callers import (
    OFFICIAL,
    RAW_HTTP,
    RAW_PIPES,
    Caller,
    ignore_client_noise,
    official_http,
    official_stdio,
    raw_http,
    raw_stdio,
)
from benchmarks.measure import Bound, Contender, Options, Table, interleave
from benchmarks.memory import Programs
from benchmarks.sdk_server import TOOL as EMPTY
from benchmarks.servers import WORKSPACE_ID, Servers, servers
from gateway.cli.unix_http import MODERN
from runner.api import WorkspaceTerms
from runner.ports import LaunchRequest

TITLE = "calls over MCP"
ROUND_TRIPS = 400
COMMANDS = 300
COMMAND = "/bin/true"
REFERENCE = "SDK server, empty tool"
OURS = "ours, workspace_info"
EXEC = "ours, true to its exit"
START = "the start alone, prepared"
ALLOWED = "3 x empty round trip + start"
WAITING_S = 30.0
WAIT_MS = 10_000
LEGACY = "2025-11-25"
Pairs = Mapping[tuple[str, str], tuple[Caller, Caller]]
"""(transport, client) to the callers of the SDK's server and of ours."""


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


def calling(caller: Caller, tool: str) -> Callable[[], Awaitable[float]]:
    """A sample: one call without arguments."""
    return lambda: timed(lambda: caller.call(tool, {}))


async def run_true(caller: Caller) -> None:
    """Raises `RuntimeError` where it did not exit with 0."""
    started = await caller.call("exec_command", {"workspace_id": WORKSPACE_ID, "command": [COMMAND]})
    status = await caller.call("process_status", {"process_id": started["process_id"], "wait_ms": WAIT_MS})
    if status.get("exit_code") != 0:
        raise RuntimeError(f"{COMMAND} was not seen to exit: {status}")


async def sandbox_waits(programs: Programs) -> None:
    """Returns once one does and none is being made. Raises `RuntimeError` where that never comes."""
    until = time.monotonic() + WAITING_S
    seen: list[int] = []
    while time.monotonic() < until:
        await asyncio.sleep(0.01)
        now = programs.first_processes()
        if now and now == seen:
            return
        seen = now
    raise RuntimeError("mcp: no sandbox waits for the next command")


async def _connect(found: Servers, stack: AsyncExitStack) -> Pairs:
    sdk, ours = found.sdk, found.ours
    enter = stack.enter_async_context
    pairs = {}
    for name, theirs, own in (("the Unix socket", sdk.unix, ours.unix), ("TCP", sdk.tcp, ours.tcp)):
        pairs[name, OFFICIAL] = (await enter(official_http(theirs)), await enter(official_http(own)))
        pairs[name, RAW_HTTP] = (stack.enter_context(raw_http(theirs)), stack.enter_context(raw_http(own)))
    old = f"{OFFICIAL}, {LEGACY}"
    pairs["the Unix socket", old] = (
        await enter(official_http(sdk.unix, "legacy")),
        await enter(official_http(ours.unix, "legacy")),
    )
    pairs["stdio", OFFICIAL] = (await enter(official_stdio(sdk.stdio[0])), await enter(official_stdio(ours.stdio[0])))
    pairs["stdio", RAW_PIPES] = (
        stack.enter_context(raw_stdio(sdk.stdio[1])),
        stack.enter_context(raw_stdio(ours.stdio[1])),
    )
    return pairs


async def _round_trips(pairs: Pairs, options: Options) -> list[Table]:
    contenders = []
    for where, (theirs, own) in pairs.items():
        for name, sample in ((REFERENCE, calling(theirs, EMPTY)), (OURS, calling(own, "workspace_info"))):
            contenders.append(Contender("\n".join((*where, name)), sample))
    samples = await interleave(contenders, options.samples(ROUND_TRIPS), warm_up=20)
    tables = []
    for transport, client in pairs:
        bound = Bound(OURS, REFERENCE, 1.3 if transport == "the Unix socket" else None)
        of_pair = {name: samples["\n".join((transport, client, name))] for name in (REFERENCE, OURS)}
        tables.append(Table(f"empty round trip over {transport}, {client}", "ms", of_pair, [bound]))
    return tables


async def _commands(found: Servers, pairs: Pairs, options: Options) -> list[Table]:
    launcher = LinuxSandboxLauncher(prepared=1)
    await launcher.start()
    terms = WorkspaceTerms(workspace_id=WORKSPACE_ID, root=str(found.root))
    programs = Programs(found.gateway)

    async def start() -> None:
        process = await launcher.launch(LaunchRequest("proc_bench", terms, (COMMAND,), None))
        await process.wait()
        process.close()

    async def start_alone() -> float:
        took = await timed(start)
        await launcher.pool.settled()
        return took

    async def through_mcp(caller: Caller) -> float:
        took = await timed(functools.partial(run_true, caller))
        await sandbox_waits(programs)
        return took

    await start_alone()
    await through_mcp(pairs["the Unix socket", RAW_HTTP][1])
    clients = (OFFICIAL, RAW_HTTP)
    contenders = [Contender(START, start_alone)]
    for client in clients:
        theirs, own = pairs["the Unix socket", client]
        contenders.append(Contender(f"{client}\n{REFERENCE}", calling(theirs, EMPTY)))
        contenders.append(Contender(f"{client}\n{EXEC}", functools.partial(through_mcp, own)))
    try:
        samples = await interleave(contenders, options.samples(COMMANDS))
    finally:
        await launcher.close()
    tables = []
    for client in clients:
        empty, whole = samples[f"{client}\n{REFERENCE}"], samples[f"{client}\n{EXEC}"]
        allowed = [3 * one + other for one, other in zip(empty, samples[START], strict=True)]
        table = {REFERENCE: empty, START: samples[START], ALLOWED: allowed, EXEC: whole}
        bounds = [Bound(EXEC, ALLOWED, 1), Bound(EXEC, REFERENCE)]
        tables.append(Table(f"exec_command over the Unix socket, {client}", "ms", table, bounds))
    return tables


async def measure(options: Options) -> list[Table]:
    ignore_client_noise(asyncio.get_running_loop())
    with servers() as found:
        async with AsyncExitStack() as stack:
            pairs = await _connect(found, stack)
            facts = {"protocol": MODERN, "SDK": f"mcp {version('mcp')}", "empty round trips": f"{len(pairs)} pairs"}
            tables = [*await _round_trips(pairs, options), *await _commands(found, pairs, options)]
    first, *others = tables
    return [Table(first.title, first.unit, first.samples, first.bounds, facts), *others]
