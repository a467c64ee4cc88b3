"""A command's start: unsandboxed posix_spawn, `bwrap --unshare-all` with the same mounts, and ours in two ways.

Two tables. To the first instruction of the command: a static program writes the clock as its first act. To the observed
exit of `true`: until the starter has reaped it. Ours goes through the launcher, event loop included, with the helper
running: from nothing, and into a sandbox that waits for a command. The making of that one is not in its figure, and is
over before the next sample of anything begins. bubblewrap gets the mount list of our own plan, no system call filter
and no limits.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from benchmarks.measure import Bound, Contender, Options, Table, interleave
from runner.api import WorkspaceTerms
from runner.ports import LaunchRequest, ManagedProcess
from sandbox_helper.protocol import Plan

TITLE = "start of a command"
SAMPLES = 300
TRUE = "/usr/bin/true"
FROM_NOTHING, PREPARED = "ours, from nothing", "ours, prepared"
CLOCK_PROGRAM = """
#include <time.h>
#include <unistd.h>
int main(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long long ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    return write(1, &ns, sizeof ns) == sizeof ns ? 0 : 1;
}
"""


@dataclass(frozen=True)
class Times:
    """Milliseconds from the request to start."""

    first_instruction: float | None
    exit: float


@contextmanager
def workspace() -> Iterator[Path]:
    """A directory with the clock program in it."""
    base = Path(tempfile.mkdtemp(prefix="codespace-bench-", dir="/var/tmp"))
    try:
        (base / "clock.c").write_text(CLOCK_PROGRAM)
        subprocess.run(["gcc", "-O1", "-static", "-o", base / "clock", base / "clock.c"], check=True, timeout=60)
        yield base
    finally:
        shutil.rmtree(base)


def bubblewrap_argv(plan: Plan, made: Path) -> list[str]:
    """A plan of ours as bubblewrap's options; `made` holds the files that we write by ourselves."""
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    for mount in plan.mounts:
        if mount.kind == "tmpfs":
            argv += ["--tmpfs", mount.target]
        else:
            argv += ["--bind" if mount.kind == "workspace" else "--ro-bind", mount.source, mount.target]
    for path, target in plan.links:
        argv += ["--symlink", target, path]
    for number, (path, text) in enumerate(plan.files):
        (made / str(number)).write_text(text)
        argv += ["--ro-bind", str(made / str(number)), path]
    for name, value in plan.env:
        argv += ["--setenv", name, value]
    return [*argv, "--chdir", plan.workspace, "--"]


def spawned(argv: list[str]) -> Times:
    """One start by posix_spawn."""
    read, write = os.pipe()
    began = time.monotonic_ns()
    pid = os.posix_spawn(
        shutil.which(argv[0]) or argv[0], argv, {}, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)], setsid=True
    )
    os.close(write)
    said = b"" if argv[-1] == TRUE else os.read(read, 8)
    _, status = os.waitpid(pid, 0)
    ended = time.monotonic_ns()
    os.close(read)
    return _times(argv[0], began, said, ended, os.waitstatus_to_exitcode(status))


def _times(name: str, began: int, said: bytes, ended: int, code: int | None) -> Times:
    if code != 0 or len(said) not in (0, 8):
        raise RuntimeError(f"{name}: ended with {code} after {len(said)} bytes")
    return Times((struct.unpack("q", said)[0] - began) / 1e6 if said else None, (ended - began) / 1e6)


async def _read(process: ManagedProcess) -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(process.output_fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(process.output_fd)
    return os.read(process.output_fd, 8)


async def launched(launcher: LinuxSandboxLauncher, terms: WorkspaceTerms, argv: tuple[str, ...]) -> Times:
    """One start through the launcher."""
    began = time.monotonic_ns()
    process = await launcher.launch(LaunchRequest("proc_bench", terms, argv, None))
    said = b"" if argv[0] == TRUE else await _read(process)
    done = await process.wait()
    ended = time.monotonic_ns()
    process.close()
    return _times("ours", began, said, ended, done.command_code)


async def measure(options: Options) -> list[Table]:
    missing = [name for name in ("gcc", "bwrap") if shutil.which(name) is None]
    if missing:
        raise RuntimeError(f"start: {' and '.join(missing)} not installed: install gcc and bubblewrap")
    with workspace() as place, tempfile.TemporaryDirectory(prefix="codespace-bench-") as made:
        terms = WorkspaceTerms(workspace_id="bench", root=str(place))
        launcher, ready = LinuxSandboxLauncher(), LinuxSandboxLauncher(prepared=1)
        await launcher.start()
        await ready.start()
        await launched(ready, terms, (TRUE,))
        await ready.pool.settled()
        wrapper = bubblewrap_argv(await launcher.plan_for(terms, terminal=False), Path(made))

        def starts(program: str, figure: Callable[[Times], float]) -> list[Contender]:
            async def bare() -> float:
                return figure(spawned([program]))

            async def bubblewrap() -> float:
                return figure(spawned([*wrapper, program]))

            async def from_nothing() -> float:
                return figure(await launched(launcher, terms, (program,)))

            async def prepared() -> float:
                if ready.pool.waiting != 1:
                    raise RuntimeError("start: no sandbox waits for the command")
                times = await launched(ready, terms, (program,))
                await ready.pool.settled()
                return figure(times)

            return [
                Contender("posix_spawn", bare),
                Contender("bwrap", bubblewrap),
                Contender(FROM_NOTHING, from_nothing),
                Contender(PREPARED, prepared),
            ]

        count = options.samples(SAMPLES)
        try:
            first = await interleave(starts(str(place / "clock"), _first_instruction), count)
            exits = await interleave(starts(TRUE, lambda times: times.exit), count)
        finally:
            await launcher.close()
            await ready.close()
    bounds = [
        Bound(PREPARED, "posix_spawn", 2.0),
        Bound(PREPARED, "bwrap", 0.5),
        Bound(FROM_NOTHING, "bwrap", 1.2),
        Bound(FROM_NOTHING, "posix_spawn"),
    ]
    notes = {"mounts": len(terms.mounts_read_only) + wrapper.count("--ro-bind") + wrapper.count("--tmpfs")}
    return [
        Table("request to first instruction of the command", "ms", first, bounds, notes),
        Table("request to observed exit of true", "ms", exits, bounds, notes),
    ]


def _first_instruction(times: Times) -> float:
    if times.first_instruction is None:
        raise RuntimeError("start: the program said no time")
    return times.first_instruction
