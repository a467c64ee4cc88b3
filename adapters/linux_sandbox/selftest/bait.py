"""What the probes are after: files, listeners and a process outside the sandbox, and the probe program itself.

`lay_out` makes them in a temporary directory and takes them away again. Refuses to know the sandbox. Called by `run`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from runner.api import Limits

LIMITS = Limits(cpu_s=1, memory_mb=64, processes=32, open_files=128, file_size_mb=128)
"""Of the commands that try to take more: small, so that the same without limits harms nothing."""
PROTECT = (".git/config", ".git/hooks")
_STARTER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); sys.argv[0] = 'probes'; "
    "from probes.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
_WAITS = "import sys; sys.stdin.read()"


@dataclass(frozen=True)
class Bait:
    """`workspace`, `control_workspace`: for the runs inside and outside. `tools`: shown read-only; it holds the probe
    program and `description`, the JSON file that tells the probes of everything else."""

    workspace: str
    control_workspace: str
    tools: str
    description: str

    def command(self, interpreter: str, *options: str, control: bool = False) -> list[str]:
        """The argv that runs the probes. `options`: --only and what it names."""
        workspace = self.control_workspace if control else self.workspace
        flags = ["--control"] if control else []
        return [*starter(interpreter, self.tools), workspace, self.description, *flags, *options]


def starter(interpreter: str, folder: str) -> list[str]:
    """The argv up to the probes' own arguments. `folder` holds them."""
    return [interpreter, "-EsSB", "-c", _STARTER, folder]


def copy_probes(folder: str) -> None:
    """The probe program, for an interpreter that knows nothing of this project. Raises OSError."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probes")
    target = os.path.join(folder, "probes")
    os.mkdir(target, 0o755)
    for name in sorted(os.listdir(source)):
        if name.endswith(".py"):
            shutil.copyfile(os.path.join(source, name), os.path.join(target, name))


@contextmanager
def lay_out(owner: int | None) -> Iterator[Bait]:
    """`owner`: the uid and gid of everything made, or None for the caller's own.

    Raises OSError where there is no place, or no socket, for it.
    """
    with ExitStack() as stack:
        base = os.path.realpath(tempfile.mkdtemp(prefix="codespace-selftest-"))
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        bait = Bait(f"{base}/workspace", f"{base}/control", f"{base}/tools", f"{base}/tools/bait.json")
        for folder in (bait.workspace, bait.control_workspace, bait.tools, f"{base}/outside"):
            os.mkdir(folder, 0o755)
        os.makedirs(f"{bait.workspace}/.git/hooks")
        for path in (f"{bait.workspace}/.git/config", f"{base}/outside/secret", f"{bait.tools}/read-only"):
            _write(path, "bait\n")
        copy_probes(bait.tools)
        word = "bait-" + secrets.token_hex(16)
        described = {
            "word": word,
            "secret": f"{base}/outside/secret",
            "read_only": f"{bait.tools}/read-only",
            "port": _listen(stack, socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1],
            "socket": _listen(stack, socket.AF_UNIX, f"{base}/outside/socket").getsockname(),
            "private_mb": LIMITS.memory_mb // 2 + 1,
            **LIMITS.model_dump(),
        }
        _listen(stack, socket.AF_UNIX, "\0" + word)
        _write(bait.description, json.dumps(described))
        if owner is not None:
            _give_away(base, owner)
        os.chmod(base, 0o755)
        waiting = subprocess.Popen([sys.executable, "-ESsc", _WAITS, word], stdin=subprocess.PIPE)
        stack.callback(_end, waiting)
        yield bait


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _listen(stack: ExitStack, family: socket.AddressFamily, address: tuple[str, int] | str) -> socket.socket:
    """Nobody accepts: a connection is made without that."""
    listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    listener.bind(address)
    listener.listen(8)
    return listener


def _give_away(base: str, owner: int) -> None:
    os.chown(base, owner, owner)
    for folder, folders, files in os.walk(base):
        for name in (*folders, *files):
            os.chown(os.path.join(folder, name), owner, owner)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
