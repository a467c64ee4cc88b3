"""Attacks on what is finite: each takes more than the limits that `bait` tells of. Run one by one, each as a command of
its own, since a limit may end the whole of it.

The amounts are small, so that a run without limits harms nothing.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import tempfile

from .base import Outcome, Place, child_that_waits, end, probe, tried


@probe("resource", "more-processes-than-allowed")
def _processes(place: Place) -> Outcome:
    children: list[int] = []
    try:
        while len(children) < place.bait["processes"] + 8:
            children.append(child_that_waits())
    except BlockingIOError:
        return Outcome("refused", "EAGAIN", f"after {len(children)}")
    finally:
        for child in children:
            end(child)
    return Outcome("open", None, f"{len(children)}")


@probe("resource", "more-memory-than-allowed")
def _memory(place: Place) -> Outcome:
    """Written to, since what is only reserved is taken from nobody."""
    held: list[mmap.mmap] = []
    for _ in range(place.bait["memory_mb"] // 16 + 4):
        try:
            block = mmap.mmap(-1, 16 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            return Outcome("refused", "ENOMEM", f"after {len(held) * 16} MiB")
        for at in range(0, len(block), mmap.PAGESIZE):
            block[at] = 1
        held.append(block)
    return Outcome("open", None, f"{len(held) * 16} MiB")


@probe("resource", "fill-the-private-file-systems")
def _private(place: Place) -> Outcome:
    """Outside, a file of that size beside the workspace."""
    folder = place.workspace if place.control else "/tmp"
    with tempfile.TemporaryFile(dir=folder) as file:
        return tried(os.posix_fallocate, file.fileno(), 0, place.bait["private_mb"] << 20)


@probe("resource", "more-open-files-than-allowed")
def _open_files(place: Place) -> Outcome:
    if place.control:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[int] = []
    try:
        while len(held) < place.bait["open_files"]:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return Outcome("refused", "EMFILE", f"after {len(held)}")
    return Outcome("open", None, f"{len(held)}")


@probe("resource", "a-larger-file-than-allowed")
def _file_size(place: Place) -> Outcome:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with tempfile.TemporaryFile(dir=place.workspace) as file:
        return tried(os.ftruncate, file.fileno(), (place.bait["file_size_mb"] + 1) << 20)


@probe("resource", "more-processor-time-than-allowed")
def _processor(place: Place) -> Outcome:
    child = os.fork()
    if child == 0:
        while sum(os.times()[:2]) < place.bait["cpu_s"] + 1:
            pass
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return Outcome("refused", None, signal.Signals(os.WTERMSIG(status)).name)
    return Outcome("open")


@probe("resource", "leave-a-core")
def _core(place: Place) -> Outcome:
    """Outside, raising the soft limit to the hard one is what would allow it."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if place.control and hard == 0:
        return Outcome("untried", None, "no core is allowed here anyway")
    return Outcome("open", None, str(hard)) if hard else Outcome("refused")
