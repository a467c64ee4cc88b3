"""Many MCP clients on one appliance, each answer checked against what must be true, and what its processes hold.

`python -m benchmarks.load [--seconds 600] [--workspaces 8] [--clients 16]`, or `make load`. Half of the clients are the
SDK's, half plain HTTP kept alive. A first part of the load warms up; then all clients leave and what the server's
processes hold is noted; at the end they leave again and it must be no more. It judges truth and leaks, memory's slope
over long runs, and no speed. Exits 1 where anything was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.patch_helper.journal import Journal
from adapters.patch_helper.steps import Steps
from benchmarks.load_actor import Actor, Evicted, World
from benchmarks.load_client import LoadClient, NoAnswer, RawClient, Refused, SdkClient
from benchmarks.load_scenes import SCENES
from benchmarks.load_truth import Revisions, Wrong, note, static_files
from benchmarks.load_watch import WARM_UP_S, Growth, Peaks, Sample, growth, left_over, look, sample
from benchmarks.measure import REPOSITORY, Options, Table, keep, machine, render

START_BOUND_S = 60.0
QUIET_BOUND_S = 30.0
STOP_BOUND_S = 30.0
KEPT_WRONG = 20


@dataclass(frozen=True)
class Load:
    """`runner`: as `codespace serve` takes it. `seed`: of every choice that clients make."""

    seconds: float = 600.0
    workspaces: int = 8
    clients: int = 16
    runner: str = "uds"
    seed: int = 0


@dataclass
class Outcome:
    """`wrong`: answers that cannot be true. `left`: what was held or lay about that should not."""

    world: World
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    peaks: Peaks = field(default_factory=Peaks)
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        grown = [f"{g.kind} {g.pid} grows by {g.slope_mib_per_minute:.2f} MiB/min" for g in self.growth if g.too_much]
        return self.wrong + self.left + grown


# --- the server -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Server:
    """`folder` holds registry, socket, log, `data`, `tmp` (its TMPDIR) and the workspaces."""

    folder: Path
    process: asyncio.subprocess.Process

    @property
    def socket(self) -> Path:
        return self.folder / "mcp.sock"

    def look(self, at_s: float) -> Sample:
        return sample(self.process.pid, at_s, [self.folder / "tmp"])


def make_workspaces(folder: Path, world: World, load: Load) -> None:
    """Registry, roots and first revisions. A root has an empty `.git`, so that protected names need placeholders."""
    entries = {}
    for number in range(load.workspaces):
        root = folder / f"w{number}"
        world.owners[root.name] = []
        for name in (".git", "runs"):
            (root / name).mkdir(parents=True)
        for path, content in static_files().items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        entries[root.name] = {"root": str(root), "profile": "workspace-write", "limits": {"timeout_s": 300}}
    for number in range(load.clients):
        workspace, owner = f"w{number % load.workspaces}", f"c{number}"
        world.owners[workspace].append(owner)
        world.notes[workspace, owner] = Revisions()
        (folder / workspace / owner).mkdir()
        (folder / workspace / owner / "notes.txt").write_text(note(workspace, owner, 0))
    (folder / "registry.json").write_text(json.dumps({"workspaces": entries}))


@contextlib.asynccontextmanager
async def serving(folder: Path, load: Load) -> AsyncIterator[Server]:
    """A ready server. Raises RuntimeError where it does not come up."""
    for name in ("data", "tmp"):
        (folder / name).mkdir(mode=0o700)
    command = [sys.executable, "-m", "gateway", "serve", "--registry", str(folder / "registry.json")]
    command += ["--socket", str(folder / "mcp.sock"), "--data-dir", str(folder / "data"), "--runner", load.runner]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CODESPACE_")}
    environment |= {"TMPDIR": str(folder / "tmp"), "CODESPACE_MAX_PROCESSES": str(load.workspaces)}
    log = await asyncio.to_thread(open, folder / "log", "wb")
    with log:
        process = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, env=environment, stderr=log)
    server = Server(folder, process)
    try:
        async with asyncio.timeout(START_BOUND_S):
            while '"ready"' not in (folder / "log").read_text():
                if process.returncode is not None:
                    raise RuntimeError(f"the server ended with {process.returncode}: {(folder / 'log').read_text()}")
                await asyncio.sleep(0.05)
        yield server
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


# --- the clients ------------------------------------------------------------------------------------------------------
def make_actors(server: Server, world: World, load: Load) -> list[Actor]:
    actors = []
    for number in range(load.clients):
        kind = (number + number // load.workspaces) % 4
        client: LoadClient = RawClient(server.socket)
        if kind % 2:
            client = SdkClient(server.socket, "auto" if kind == 1 else "legacy")
        workspace = f"w{number % load.workspaces}"
        actors.append(Actor(world, workspace, f"c{number}", client, random.Random(load.seed * 1000 + number)))
    return actors


async def play(actor: Actor, until: float, *, all_once: bool = False) -> None:
    """Scene after scene until `until` (monotonic), with `all_once` each of them first. After a wrong answer this client
    stops: it no longer knows what is true."""
    names = list(SCENES)
    first = iter(names if all_once else ())
    weights = [weight for _, weight in SCENES.values()]
    name = "connect"
    try:
        await actor.client.open()
        while (due := next(first, "")) or time.monotonic() < until:
            (name,) = [due] if due else actor.rng.choices(names, weights)
            try:
                await SCENES[name][0](actor)
            except Evicted:
                actor.world.scenes["evicted"] += 1
            actor.world.scenes[name] += 1
        name = "disconnect"
        await actor.client.close()
    except (Wrong, Refused, NoAnswer) as error:
        actor.world.wrong.append(f"{actor.workspace}/{actor.name}: {name}: {type(error).__name__}: {error}")
        with contextlib.suppress(Exception):
            await actor.client.close()


async def drive(actors: list[Actor], seconds: float, *, all_once: int = 0) -> None:
    """All clients at once; the first `all_once` begin with every scene, so that whatever a server keeps for each
    workspace is there. Raises what none of them should."""
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for number, actor in enumerate(actors):
            group.create_task(play(actor, until, all_once=number < all_once))


async def quiet(server: Server, at_s: float, may_remember: int, before: Sample | None = None) -> Sample:
    """A look once everything has settled, at most QUIET_BOUND_S from now: the last one counts, whatever it shows."""
    until = time.monotonic() + QUIET_BOUND_S
    last = await asyncio.to_thread(server.look, at_s)
    while time.monotonic() < until:
        await asyncio.sleep(0.5)
        taken = await asyncio.to_thread(server.look, at_s)
        settled = left_over(last, taken) == [] and left_over(taken, last) == []
        last = taken
        if settled and (before is None or left_over(before, taken, may_remember) == []):
            break
    return last


@contextlib.asynccontextmanager
async def watched(server: Server, began: float, outcome: Outcome, samples: list[Sample]) -> AsyncIterator[None]:
    """Looks once a second."""

    async def watch() -> None:
        while True:
            taken = await asyncio.to_thread(server.look, time.monotonic() - began)
            outcome.peaks.take(taken)
            samples.append(taken)
            await asyncio.sleep(1.0)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


# --- afterwards -------------------------------------------------------------------------------------------------------
def strange_files(folder: Path, world: World) -> Iterator[str]:
    """What lies in the workspaces and the data directory, and should not; and notes that are not as known."""
    for workspace, owners in world.owners.items():
        root = folder / workspace
        expected = {*static_files(), *(f"{owner}/notes.txt" for owner in owners)}
        expected |= {f"{owner}/extra.txt" for owner in owners if world.notes[workspace, owner].known % 2}
        found = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
        found = {path for path in found if not path.startswith("runs/")}
        yield from (f"{workspace}/{path} was left" for path in sorted(found - expected))
        yield from (f"{workspace}/{path} is missing" for path in sorted(expected - found))
        for owner in owners:
            known = world.notes[workspace, owner].known
            if (root / owner / "notes.txt").read_text() != note(workspace, owner, known):
                yield f"{workspace}/{owner}/notes.txt is not revision {known}"
    yield from (f"{path.relative_to(folder)} was left" for path in (folder / "tmp").rglob("*"))
    for path in (folder / "data").rglob("*"):
        if path.is_file() and path.name != "codespace.sqlite" and path.suffix != ".journal":
            yield f"{path.relative_to(folder)} was left"
    for directory in (folder / "data" / "journal").iterdir():
        yield from (f"{line} in {directory.relative_to(folder)}" for line in unfinished(directory))


def unfinished(directory: Path) -> Iterator[str]:
    """The last operation's journal stays, with its outcome, in case its answer was lost. Nothing else does."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        journal = Journal(descriptor, Steps())
        names = journal.names()
        yield from (f"journal {name} without an outcome" for name in names if journal.read(name).outcome is None)
        if len(names) > 1:
            yield f"{len(names)} journals"
    finally:
        os.close(descriptor)


def loud_lines(folder: Path) -> Iterator[str]:
    """Errors in the server's log, and lines that are no log."""
    for line in (folder / "log").read_text(errors="replace").splitlines():
        try:
            level = json.loads(line).get("level")
        except ValueError:
            level = "none"
        if level not in ("debug", "info", "warning"):
            yield f"log: {line[:500]}"


async def stop(server: Server, outcome: Outcome) -> None:
    """SIGTERM, and what is left then."""
    last = await asyncio.to_thread(server.look, 0.0)
    server.process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_BOUND_S):
            status = await server.process.wait()
    except TimeoutError:
        outcome.left.append(f"the server did not end in {STOP_BOUND_S:.0f} s")
        return
    if status != 0:
        outcome.left.append(f"the server ended with {status}")
    alive = await asyncio.to_thread(lambda: [seen for seen in last.processes if look(seen.pid) is not None])
    outcome.left += [f"outlived the server: {seen.pid} ({seen.kind})" for seen in alive]


async def run(load: Load) -> Outcome:
    """One whole run in a temporary folder. Raises RuntimeError where the server does not start."""
    outcome = Outcome(World())
    asyncio.get_running_loop().set_exception_handler(_client_noise)
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="cs-load-"))
    try:
        await asyncio.to_thread(make_workspaces, folder, outcome.world, load)
        async with serving(folder, load) as server:
            began = time.monotonic()
            samples: list[Sample] = []
            actors = make_actors(server, outcome.world, load)
            warm_up_s = min(WARM_UP_S, load.seconds / 4)
            async with watched(server, began, outcome, samples):
                await drive(actors, warm_up_s, all_once=load.workspaces)
                before = await quiet(server, 0.0, load.workspaces)
                await drive(actors, load.seconds - warm_up_s)
                outcome.seconds = time.monotonic() - began
                after = await quiet(server, outcome.seconds, load.workspaces, before)
            outcome.left += left_over(before, after, load.workspaces)
            outcome.growth = await asyncio.to_thread(growth, samples)
            await stop(server, outcome)
        outcome.left += await asyncio.to_thread(lambda: list(strange_files(folder, outcome.world)))
        outcome.wrong = outcome.world.wrong + await asyncio.to_thread(lambda: list(loud_lines(folder)))
    finally:
        await asyncio.to_thread(shutil.rmtree, folder)
    return outcome


def _client_noise(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """anyio's socket wakes a reader that was cancelled in the same turn of the loop: an abandoned call's."""
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)


def table(load: Load, outcome: Outcome) -> Table:
    world = outcome.world
    notes: dict[str, Any] = {
        "load": f"{load.clients} clients, {load.workspaces} workspaces, {outcome.seconds:.0f} s, runner {load.runner}",
        "calls": sum(world.calls.values()),
        "scenes": dict(sorted(world.scenes.items())),
        "refusals, all due": dict(sorted(world.refusals.items())),
        "output checked": f"{world.checked_bytes} bytes, and {world.lost_bytes} marked as lost",
        "most descriptors": {kind: n for kind, n in outcome.peaks.descriptors.items() if n},
        "most threads": {kind: n for kind, n in outcome.peaks.threads.items() if n},
        "most processes": {kind: n for kind, n in outcome.peaks.processes.items() if n},
    }
    for one in outcome.growth:
        facts = f"{one.first_mib:.1f} to {one.last_mib:.1f} MiB, {one.slope_mib_per_minute:+.2f} MiB/min"
        notes[f"memory of {one.kind} {one.pid}"] = f"{facts} over {one.window_s:.0f} s"
    return Table("Calls under load", "ms", dict(sorted(world.latency_ms.items())), notes=notes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description="Truth and leaks under load.")
    parser.add_argument("--seconds", type=float, default=Load.seconds, help="600 by default; CI runs a short form")
    parser.add_argument("--workspaces", type=int, default=Load.workspaces)
    parser.add_argument("--clients", type=int, default=Load.clients)
    parser.add_argument("--runner", choices=("uds", "in-process"), default=Load.runner)
    parser.add_argument("--seed", type=int, default=Load.seed)
    parser.add_argument("--keep", action="store_true", help="write the samples to benchmarks/results")
    arguments = vars(parser.parse_args())
    keep_it = arguments.pop("keep")
    load = Load(**arguments)
    print(" · ".join(f"{name} {value}" for name, value in machine().items()))
    outcome = asyncio.run(run(load))
    result = table(load, outcome)
    print(render(result))
    if keep_it:
        print(f"  samples: {keep('load', 'many clients, checked', [result], Options())}")
    for problem in outcome.problems[:KEPT_WRONG]:
        print(f"error: {problem}", file=sys.stderr)
    counts = (len(outcome.wrong), len(outcome.left), len(outcome.problems))
    print("{} wrong answers, {} things left, {} problems in all".format(*counts))
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
