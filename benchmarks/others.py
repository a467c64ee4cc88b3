"""A command in other sandboxes for agents, beside ours with everything in between: `true` to its observed exit.

Ours is exec_command and process_status over the Unix socket; the others are their own command lines, which is how their
agents start a command. They come from npm and are compared where they are given:

    npm install --prefix DIR @openai/codex @anthropic-ai/sandbox-runtime
    make bench BENCH_ARGS="others --codex FILE --srt FILE"
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from benchmarks.callers import OFFICIAL, RAW_HTTP, environment, ignore_client_noise, official_http, raw_http
from benchmarks.mcp import COMMAND, run_true, timed
from benchmarks.measure import Bound, Contender, Options, Table, interleave
from benchmarks.servers import servers

TITLE = "other sandboxes for agents"
SAMPLES = 200
WAIT_S = 60
ARGUMENTS = {"codex sandbox": ("sandbox", COMMAND), "srt": (COMMAND,)}
"""What follows the program; its name in `Options.programs` is the first word."""


def run_program(argv: Sequence[str], home: Path) -> float:
    """Milliseconds to the exit. Raises `RuntimeError` where it failed."""
    began = time.perf_counter()
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S, check=False, cwd=home,
        env={**environment(), "HOME": str(home)},
    )  # fmt: skip
    took = (time.perf_counter() - began) * 1000
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr[-500:]!r}")
    return took


async def measure(options: Options) -> list[Table]:
    ignore_client_noise(asyncio.get_running_loop())
    given = {name: options.programs.get(name.split()[0]) for name in ARGUMENTS}
    with servers() as found:
        home = found.scratch / "home"
        home.mkdir()
        async with official_http(found.ours.unix) as official:
            with raw_http(found.ours.unix) as raw:
                contenders = [
                    Contender(f"ours, {name}", functools.partial(timed, functools.partial(run_true, caller)))
                    for name, caller in ((OFFICIAL, official), (RAW_HTTP, raw))
                ]
                plain = [shutil.which("true") or COMMAND]
                contenders.append(Contender("no sandbox", _sample(plain, home)))
                contenders += [
                    Contender(name, _sample([program, *ARGUMENTS[name]], home))
                    for name, program in given.items()
                    if program is not None
                ]
                samples = await interleave(contenders, options.samples(SAMPLES))
    bounds = [
        Bound(f"ours, {client}", name, 0.5 if name.startswith("codex") else None)
        for client in (OFFICIAL, RAW_HTTP)
        for name, program in given.items()
        if program is not None
    ]
    missing = [name for name, program in given.items() if program is None]
    notes = {"not given": ", ".join(missing)} if missing else {}
    return [Table("true to its observed exit", "ms", samples, bounds, notes)]


def _sample(argv: Sequence[str], home: Path) -> Callable[[], Awaitable[float]]:
    return lambda: asyncio.to_thread(run_program, argv, home)
