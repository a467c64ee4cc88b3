"""Runs a command as an init process would and sees what it leaves: processes, and files in its temporary folder.

`python -m tests.contained [--grace SECONDS] COMMAND…` makes itself the reaper of every orphan below (no daemon escapes
to process 1), gives the command a TMPDIR of its own, and passes its status on. If a process lives on after the
command and the grace, or anything stays in TMPDIR, it says what, ends it, and exits 1. Called by `make unit`; pytest
alone works as well.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.leaks import await_end_of, children_of

GRACE_S = 5.0
"""How long what is already ending may take after the command itself has ended, where --grace does not say."""

EXPECTED = ("pytest-of-", "codespace-probe-")
"""pytest keeps the folders of its last runs on purpose; a runner that is killed in its probe leaves an empty directory,
which the next one removes (tests/adapters/linux_sandbox/test_abandoned.py)."""

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def reap_until(pid: int) -> int:
    """Reaps every child that ends, adopted ones too, until `pid` has ended; returns its exit status as a shell's."""
    while True:
        ended, raw = os.waitpid(-1, 0)
        if ended == pid:
            status = os.waitstatus_to_exitcode(raw)
            return status if status >= 0 else 128 - status


def reap_ended() -> None:
    """Reaps what has ended by now."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def survivors(grace_s: float) -> dict[int, str]:
    """Processes that outlived the command, their own children included as they are adopted."""
    reap_ended()
    alive = {pid: what for pid, what in children_of(os.getpid()).items() if not what.startswith("Z")}
    await_end_of(alive, timeout_s=grace_s)
    reap_ended()
    return {pid: what for pid, what in children_of(os.getpid()).items() if not what.startswith("Z")}


def end(pids: dict[int, str]) -> None:
    """Kills by pid; they are children of ours that nobody else reaps, so no pid can have been used again."""
    while pids:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await_end_of(pids, timeout_s=GRACE_S)
        reap_ended()
        pids = {pid: what for pid, what in children_of(os.getpid()).items() if not what.startswith("Z")}


def main(command: list[str]) -> int:
    """Runs `command`; returns its status, or 1 where it left something."""
    grace_s = GRACE_S
    if command[:1] == ["--grace"]:
        grace_s, command = float(command[1]), command[2:]
    if not command:
        print("error: no command: python -m tests.contained COMMAND…", file=sys.stderr)
        return 2
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    # Short, since socket paths are; open to other users, since some tests become one.
    folder = Path(tempfile.mkdtemp(prefix="cs-", dir="/tmp"))
    folder.chmod(0o1777)
    environment = {**os.environ, "TMPDIR": str(folder)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(command, env=environment, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child.pid, signal.SIGTERM))
    status = reap_until(child.pid)
    child.returncode = status
    alive = survivors(grace_s)
    files = sorted(path for path in folder.iterdir() if not path.name.startswith(EXPECTED))
    for pid, what in alive.items():
        print(f"left running: {pid}: {what}", file=sys.stderr)
    for path in files:
        print(f"left in TMPDIR: {path.name}", file=sys.stderr)
    end(alive)
    shutil.rmtree(folder, ignore_errors=True)
    if alive or files:
        print(f"error: {len(alive)} processes and {len(files)} files left: {command[0]}: see above", file=sys.stderr)
        return status or 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
