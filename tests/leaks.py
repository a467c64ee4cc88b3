"""What a process holds: descriptors and children, to compare before and after. Called by conftest.py and tests."""

from __future__ import annotations

import gc
import os
import select
from dataclasses import dataclass


@dataclass(frozen=True)
class Holdings:
    """`descriptors`: number to what it leads to. `children`: pid to state letter and command line, zombies included."""

    descriptors: dict[int, str]
    children: dict[int, str]


def descriptors_of(pid: int | str = "self") -> dict[int, str]:
    """Open descriptors of a process, by number. Raises OSError when it is gone."""
    found: dict[int, str] = {}
    folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in os.listdir(folder):
            try:
                target = os.readlink(name, dir_fd=folder)
            except FileNotFoundError:
                continue
            if not target.endswith("/fd"):  # the descriptor that lists
                found[int(name)] = target
    finally:
        os.close(folder)
    return found


def children_of(pid: int) -> dict[int, str]:
    """Living and dead children, whichever thread started them."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                    line = stat.read()
                with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as file:
                    command = file.read().replace("\0", " ").strip()
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, parent = line.rpartition(") ")[2].split(" ")[:2]
            if int(parent) == pid:
                found[int(name)] = f"{state} {command or line.partition('(')[2].rpartition(')')[0]}"
    return found


def holdings() -> Holdings:
    """What this process holds now, after a garbage collection."""
    gc.collect()
    return Holdings(descriptors_of(), children_of(os.getpid()))


def await_end_of(pids: dict[int, str], *, timeout_s: float) -> dict[int, str]:
    """Waits for processes to end, without reaping them; returns those that did not within `timeout_s` each."""
    alive: dict[int, str] = {}
    for pid, what in pids.items():
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(timeout_s * 1000):
                alive[pid] = what
        finally:
            os.close(descriptor)
    return alive


def left_over(before: Holdings, after: Holdings) -> list[str]:
    """What `after` has that `before` had not, one line each."""
    lines = [f"descriptor {n} -> {to}" for n, to in after.descriptors.items() if before.descriptors.get(n) != to]
    return lines + [f"process {pid}: {what}" for pid, what in after.children.items() if pid not in before.children]
