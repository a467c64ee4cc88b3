"""An attacker: a process that exchanges names under a root as fast as it can, and the readers it is to be held against.

Used by the race tests of the file adapters.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SECRET = "SECRET-OUTSIDE"
_PROGRAM = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
pairs = [tuple(os.fsencode(name) for name in pair.split(":")) for pair in sys.argv[3:]]
os.chdir(sys.argv[1])
print("ready", flush=True)
told = time.monotonic() + float(sys.argv[2])
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # fcntl.h, linux/fs.h
parent = os.getppid()
while os.getppid() == parent:
    if told and time.monotonic() > told:
        print("long enough", flush=True)
        told = 0
    for _ in range(500):
        for one, other in pairs:
            if libc.renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE):
                sys.exit(f"exchange of {one} failed: {os.strerror(ctypes.get_errno())}")
"""


def make_bait(root: Path, outside: Path) -> None:
    """Under `root`: directories, and links to `outside` that carry the same names inside."""
    for folder in (root / "real", root / "deep/real", outside, outside / "sub"):
        (folder / "sub").mkdir(parents=True, exist_ok=True)
        text = SECRET if outside in (folder, folder.parent) else "inside"
        (folder / "file.txt").write_text(f"needle {text}\n")
        (folder / "sub/file.txt").write_text(f"needle {text}\n")
    (root / "link").symlink_to(outside)
    (root / "deep/link").symlink_to(outside)
    (root / "plain.txt").write_text("needle inside\n")
    (root / "pointer.txt").symlink_to(outside / "file.txt")


PAIRS = ("real:link", "deep/real:deep/link", "plain.txt:pointer.txt")
PATHS = (
    "real/file.txt",
    "link/sub/file.txt",
    "deep/real/sub/file.txt",
    "deep/link/file.txt",
    "plain.txt",
    "pointer.txt",
)


@contextlib.contextmanager
def swapping(root: Path, *, seconds: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    """The attacker at work on a root that `make_bait` made; it dies at the end of the block, or with this process.

    It prints one line once it has worked for `seconds`, and goes on.
    """
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(root), str(seconds), *PAIRS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        try:
            assert attacker.stdout.readline() == "ready\n"
            yield attacker
            assert attacker.poll() is None, "the attacker gave up early"
        finally:
            attacker.kill()


def naive_read(root: Path, path: str) -> str:
    """What careful-looking code does: check where the name leads, then open the name."""
    real = os.path.realpath(root / path)
    if not real.startswith(f"{root}/"):
        raise PermissionError(path)
    os.sched_yield()  # as a busy machine may do by itself at any time
    with open(root / path) as file:
        return file.read()


def naive_write(root: Path, path: str, text: str) -> None:
    """The same care, for a change."""
    real = os.path.realpath(root / path)
    if not real.startswith(f"{root}/"):
        raise PermissionError(path)
    os.sched_yield()
    with open(root / path, "r+") as file:
        file.write(text)
