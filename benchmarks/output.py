"""A command's output through the ring: drained per second, memory, and what it does to another command's long-poll.

The worker drains a command that writes 4 GB in the real sandbox; beside it `cat > /dev/null` drains the same writer
through a plain pipe, unsandboxed. While the worker drains, a second command echoes lines: the time from a line written
to the long-poll that it wakes is taken over the private socket, with the flood and without.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import Bound, Contender, Options, Table, interleave, percentile
from gateway.runner_client import UdsRunner
from tests.contract.rig import WAIT_MS, Rig, workspace
from tests.fakes.worker_host import REAL_WORKER, HostedWorker, hosted_worker

TITLE = "output through the ring"
FULL_BYTES = 4_000_000_000
QUICK_BYTES = 400_000_000
ROUNDS = 5
MAX_GROWTH_MIB = 16
POLLS_AT_REST = 300
_MB = 1e6


@dataclass
class Bench:
    """One worker, its two commands, and what was seen of them."""

    worker: HostedWorker
    rig: Rig
    size: int
    polls: list[float] = field(default_factory=list)
    """Milliseconds from a written line to the long-poll it wakes, during floods."""
    growth_kib: list[int] = field(default_factory=list)
    echo: str = ""
    cursor: int = 0

    async def through_the_ring(self) -> float:
        """MB/s from the start of the writer to its observed end."""
        before = peak = _resident_kib(self.worker.child.pid)
        began = time.perf_counter()
        process_id = await self.rig.sh(f"exec head -c {self.size} /dev/zero", terms=self.rig.terms(timeout_s=0))
        over = asyncio.create_task(self._over(process_id))
        while not over.done():
            self.polls.append(await self.poll())
            peak = max(peak, _resident_kib(self.worker.child.pid))
            await asyncio.wait({over}, timeout=0.02)
        status = await self.rig.status(process_id)
        if status.output_total != self.size:
            raise RuntimeError(f"{status.output_total} bytes came of {self.size}")
        self.growth_kib.append(peak - before)
        return self.size / _MB / (over.result() - began)

    async def through_a_pipe(self) -> float:
        """MB/s of the same writer into `cat`, by a shell outside the sandbox."""
        began = time.perf_counter()
        shell = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", f"head -c {self.size} /dev/zero | cat > /dev/null"
        )
        if await shell.wait() != 0:
            raise RuntimeError("the reference pipe failed")
        return self.size / _MB / (time.perf_counter() - began)

    async def poll(self) -> float:
        began = time.perf_counter()
        reading = asyncio.create_task(self.rig.read(self.echo, self.cursor, wait_ms=WAIT_MS))
        await self.rig.write(self.echo, "x\n")
        self.cursor = (await reading).cursor
        return (time.perf_counter() - began) * 1000

    async def _over(self, process_id: str) -> float:
        await self.rig.event(process_id)
        return time.perf_counter()


async def measure(options: Options) -> Sequence[Table]:
    loop = asyncio.get_running_loop()
    async with hosted_worker(REAL_WORKER) as worker:
        runner = UdsRunner(lambda reason: None)
        await loop.create_unix_connection(lambda: runner, sock=worker.connection)
        await runner.hello()
        with workspace() as root:
            rig = Rig(runner, root, "sandbox")
            bench = Bench(worker, rig, QUICK_BYTES if options.quick else FULL_BYTES)
            bench.echo = await rig.start("/bin/cat", terms=rig.terms(timeout_s=0))
            try:
                return await _tables(bench, options)
            finally:
                await rig.tidy()
                await runner.close()


async def _tables(bench: Bench, options: Options) -> Sequence[Table]:
    rates = await interleave(
        [Contender("ring", bench.through_the_ring), Contender("cat > /dev/null", bench.through_a_pipe)],
        ROUNDS,
        warm_up=1,
    )
    at_rest = [await bench.poll() for _ in range(options.samples(POLLS_AT_REST))]
    slowest = percentile(bench.polls, 0.99)
    return [
        Table(
            "Output drained by the runner, and by cat from a plain pipe",
            "MB/s",
            rates,
            bounds=[Bound("ring", "cat > /dev/null")],
            notes={
                "bytes a round": bench.size,
                "slowest round, MB/s (bound: at least 300)": round(min(rates["ring"])),
                f"growth of the worker, MiB (bound: at most {MAX_GROWTH_MIB})": round(max(bench.growth_kib) / 1024, 1),
            },
            higher_is_better=True,
        ),
        Table(
            "A second command's long-poll, from the line written to the answer",
            "ms",
            {"during a flood": bench.polls, "at rest": at_rest},
            bounds=[Bound("during a flood", "at rest")],
            notes={"99th percentile during a flood, ms (bound: at most 50)": round(slowest, 1)},
        ),
    ]


def _resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no resident memory: it ended")
