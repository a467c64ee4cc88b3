"""What a server's processes hold while it is under load: descriptors, memory, threads, zombies, temporary files.

It reads /proc and folders from outside and compares two quiet moments. Refuses to know: clients, tools. Called by
`benchmarks.load`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("gateway", "worker", "sandbox helper", "patch helper", "egress proxy", "sandboxed", "other")
_CHANGING = re.compile(r"op_[0-9a-z]+|(?<=^/proc/)[0-9]+|(?<=^/t/)[0-9]+")
MIN_SLOPE_WINDOW_S = 120.0
"""Over less than this a slope of memory is noise, and printed without a verdict."""
WARM_UP_S = 60.0
MAX_SLOPE_MIB = 1.0
THREAD_SLACK = 8
"""Thread pools fill when work first overlaps that much, which the warm-up may not have seen."""


@dataclass(frozen=True)
class Seen:
    """One process. `descriptors`: what they lead to, without numbers of inodes and ids of operations and processes."""

    pid: int
    kind: str
    zombie: bool
    resident_kib: int
    threads: int
    descriptors: Counter[str]


@dataclass(frozen=True)
class Sample:
    """The whole family at `at_s`, and the files that are not a workspace's content."""

    at_s: float
    processes: tuple[Seen, ...]
    files: frozenset[str] = frozenset()

    def of(self, kind: str) -> list[Seen]:
        return [seen for seen in self.processes if seen.kind == kind]


def family(root: int) -> list[int]:
    """`root` and every process below it, zombies included."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_bytes()
            except OSError:
                continue
            parent = int(stat[stat.rindex(b")") + 2 :].split()[1])
            children.setdefault(parent, []).append(int(name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def look(pid: int) -> Seen | None:
    """One process; None where it has ended meanwhile."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        descriptors = Counter(_targets(pid))
    except (OSError, ValueError):
        return None
    zombie = status["State"].split()[0] in "ZX"
    # A second number: it is in a process namespace of its own.
    sandboxed = len(status["NSpid"].split()) > 1
    kind = "sandboxed" if sandboxed else _kind(command)
    return Seen(pid, kind, zombie, int(status.get("VmRSS", "0").split()[0]), int(status["Threads"]), descriptors)


def _kind(command: str) -> str:
    for part, kind in (
        ("gateway serve", "gateway"),
        ("-m runner", "worker"),
        ("sandbox_helper/__main__.py", "sandbox helper"),
        ("patch_helper/__main__.py", "patch helper"),
        ("egress_proxy/__main__.py", "egress proxy"),
    ):
        if part in command:
            return kind
    return "other"


def _targets(pid: int) -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue
        if not target.startswith("anon_inode:"):
            target = _CHANGING.sub("", target).partition(":[")[0]
        found.append(target)
    return found


def sample(root: int, at_s: float, folders: Iterable[Path]) -> Sample:
    """Blocks for some milliseconds."""
    files = {str(path) for folder in folders for path in folder.rglob("*")}
    processes = tuple(seen for pid in family(root) if (seen := look(pid)) is not None)
    return Sample(at_s, processes, frozenset(files))


def left_over(before: Sample, after: Sample, may_remember: int = 0) -> list[str]:
    """What the second quiet moment holds beyond the first, one line each. Empty: nothing leaked. `may_remember`: dead
    children whose pidfds a sandbox helper keeps until its next start; as many as have run at once."""
    lines = [f"zombie {seen.pid} ({seen.kind})" for seen in after.processes if seen.zombie]
    lines += [f"still running in a sandbox: {seen.pid}" for seen in after.of("sandboxed")]
    for kind in KINDS[:-2]:
        first, second = before.of(kind), after.of(kind)
        if len(second) > len(first):
            lines.append(f"{len(second)} processes of kind {kind}, {len(first)} before")
        more = _sum(second) - _sum(first)
        if kind == "sandbox helper":
            more -= Counter({"anon_inode:[pidfd]": may_remember})
        lines += [f"{kind}: {count} more descriptors of {target}" for target, count in more.items()]
        if sum(s.threads for s in second) > sum(s.threads for s in first) + THREAD_SLACK:
            lines.append(f"{kind}: {sum(s.threads for s in second)} threads, {sum(s.threads for s in first)} before")
    lines += [f"another process: {seen.pid}" for seen in after.of("other") if seen.pid not in _pids(before)]
    lines += [f"file {path}" for path in sorted(after.files - before.files)]
    return lines


def _sum(processes: Iterable[Seen]) -> Counter[str]:
    total: Counter[str] = Counter()
    for seen in processes:
        total += seen.descriptors
    return total


def _pids(taken: Sample) -> set[int]:
    return {seen.pid for seen in taken.processes}


@dataclass(frozen=True)
class Growth:
    """Resident memory of one process that lived through the run."""

    kind: str
    pid: int
    first_mib: float
    last_mib: float
    slope_mib_per_minute: float
    window_s: float

    @property
    def too_much(self) -> bool:
        return self.window_s >= MIN_SLOPE_WINDOW_S and self.slope_mib_per_minute > MAX_SLOPE_MIB


def growth(samples: Sequence[Sample]) -> list[Growth]:
    """By least squares over what came after WARM_UP_S, or over the last two thirds of a shorter run."""
    if not samples:
        return []
    end = samples[-1].at_s
    since = min(WARM_UP_S, end / 3)
    late = [taken for taken in samples if taken.at_s >= since]
    found = []
    kinds: Mapping[int, str] = {seen.pid: seen.kind for seen in late[-1].processes if seen.kind in KINDS[:-2]}
    for pid, kind in kinds.items():
        points = [(s.at_s, seen.resident_kib / 1024) for s in late for seen in s.processes if seen.pid == pid]
        window = points[-1][0] - points[0][0]
        found.append(Growth(kind, pid, points[0][1], points[-1][1], 60 * slope(points), window))
    return sorted(found, key=lambda one: (KINDS.index(one.kind), one.pid))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line; 0 for fewer than two moments."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


@dataclass
class Peaks:
    """The most that each kind held at once, for the report."""

    descriptors: Counter[str] = field(default_factory=Counter)
    threads: Counter[str] = field(default_factory=Counter)
    processes: Counter[str] = field(default_factory=Counter)
    zombies: int = 0

    def take(self, taken: Sample) -> None:
        for kind in KINDS:
            seen = taken.of(kind)
            self.descriptors[kind] = max(self.descriptors[kind], sum(s.descriptors.total() for s in seen))
            self.threads[kind] = max(self.threads[kind], sum(s.threads for s in seen))
            self.processes[kind] = max(self.processes[kind], len(seen))
        self.zombies = max(self.zombies, sum(seen.zombie for seen in taken.processes))
