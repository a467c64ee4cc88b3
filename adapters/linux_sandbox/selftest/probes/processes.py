"""Attacks on processes: on PID 1 of the sandbox, on those of the machine, and by what was inherited."""

from __future__ import annotations

import ctypes
import os
import signal

from .base import Outcome, Place, call, can_write, child_that_waits, end, found_any, probe, works


def _victim(place: Place) -> int:
    return os.getppid() if place.control else 1


def _read_some(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        if not path.endswith("/mem"):  # its first page is never mapped
            file.read(1)


@probe("process", "steal-descriptor-of-init")
def _steal_descriptor(place: Place) -> Outcome:
    child = child_that_waits()
    pidfd, answer = call("pidfd_open", child if place.control else 1, 0)
    if pidfd >= 0:
        _, answer = call("pidfd_getfd", pidfd, 0, 0)
    end(child)
    return Outcome("open") if answer == "ok" else Outcome("refused", answer)


@probe("process", "read-memory-of-init")
def _read_memory(place: Place) -> Outcome:
    child = child_that_waits()
    buffer = ctypes.create_string_buffer(8)
    here = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
    # The same address in a forked child is mapped as well.
    _, answer = call("process_vm_readv", child if place.control else 1, here, 1, here, 1, 0)
    end(child)
    if answer == "EFAULT":
        return Outcome("open", None, "reached the kernel: EFAULT")
    return Outcome("open") if answer == "ok" else Outcome("refused", answer)


@probe("process", "look-into-init")
def _look_into(place: Place) -> Outcome:
    base = f"/proc/{_victim(place)}"
    seen = [name for name in ("fd", "fdinfo", "map_files") if works(os.listdir, f"{base}/{name}")]
    seen += [name for name in ("cwd", "root", "exe") if works(os.readlink, f"{base}/{name}")]
    files = ("environ", "maps", "mem", "auxv", "pagemap", "syscall", "stack", "io", "task/1/mem")
    seen += [name for name in files if works(_read_some, f"{base}/{name}")]
    return found_any(seen, "EACCES")


@probe("process", "change-init")
def _change(place: Place) -> Outcome:
    names = ("oom_score_adj", "oom_adj", "coredump_filter", "autogroup", "comm", "clear_refs", "mem")
    base = f"/proc/{_victim(place)}"
    opened = [name for name in names if os.path.exists(f"{base}/{name}") and can_write(f"{base}/{name}")]
    return found_any(opened, "EACCES")


@probe("process", "stop-init")
def _stop(place: Place) -> Outcome:
    if place.control:
        child = child_that_waits()
        os.kill(child, signal.SIGSTOP)
        _, status = os.waitpid(child, os.WUNTRACED)
        end(child)
        return Outcome("open") if os.WIFSTOPPED(status) else Outcome("refused")
    os.kill(1, signal.SIGSTOP)
    with open("/proc/1/stat") as file:
        state = file.read().rpartition(")")[2].split()[0]
    return Outcome("open", None, state) if state in "Tt" else Outcome("refused", None, state)


@probe("process", "be-traced")
def _be_traced(place: Place) -> Outcome:
    result, answer = call("ptrace", 0, 0, 0, 0)
    return Outcome("open") if result >= 0 else Outcome("refused", answer)


@probe("process", "see-processes-of-the-machine")
def _see_processes(place: Place) -> Outcome:
    """By a word on the command line of one that the bait started."""
    word, found = place.bait["word"].encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if word in file.read():
                    found.append(pid)
        except OSError:
            continue
    return found_any(found)


@probe("process", "use-an-inherited-descriptor")
def _inherited(place: Place) -> Outcome:
    """`held`: descriptors that were open when this program started, beside its own three."""
    return found_any([f"{number}: {target}" for number, target in place.bait["held"].items()])
