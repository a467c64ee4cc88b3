"""A container engine for tests: one that runs already, or Debian's dockerd, installed and started where that may be.

Runs at once on one machine share an engine: whoever needs one starts it, and the last to leave ends what any of them
started, also after a run that was killed. Refuses to know: images. Called by `tests.integration.engine`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LOG = "/var/log/dockerd.log"
GATE = Path("/run/codespace-tests.gate")
"""Locked while an engine is started or ended, or an image built."""
USE = Path("/run/codespace-tests.use")
"""Locked, shared, by every run for as long as it uses the engine. Holds the pid of a dockerd that a run has started."""
OWNER = "codespace.tests"
"""Label of everything that tests make in the engine. Its value is `owner()` of the run."""
PACKAGES = ("docker.io", "iptables")
START_S = 120.0
END_S = 30.0
APT = ("apt-get", "-qq", "-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=600")


class NoEngine(Exception):
    """Why there is none."""


def quietly(*command: str) -> int:
    """Exit status of a command whose output nobody wants."""
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    ).returncode


def answers() -> bool:
    return shutil.which("docker") is not None and quietly("docker", "info") == 0


def owner(pid: int) -> str:
    """A name for a process that no later one has: its pid and when it started, in ticks since the machine did. Raises
    OSError where there is none."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()
    if fields[0] == "Z":
        raise ProcessLookupError(errno.ESRCH, "it has ended, and nobody has asked", str(pid))
    return f"{pid}-{fields[19]}"


def lives(name: str) -> bool:
    """Whether the process of an `owner()` name still runs. What follows a dot tells things of one owner apart."""
    try:
        return owner(int(name.partition("-")[0])) == name.partition(".")[0]
    except (OSError, ValueError, IndexError):
        return False


@contextlib.contextmanager
def engine(last: Callable[[], None]) -> Iterator[None]:
    """An engine that answers, as long as the context is open. `last`: called at the end if no other run of root's uses
    it. Raises NoEngine."""
    if os.getuid() != 0:
        if not answers():
            raise NoEngine("no container engine answers this user: start docker, or join the group docker")
        remove_left_over()
        yield
        return
    with USE.open("a+") as use:
        with gate():
            if not answers():
                _install()
                _start(use.fileno())
            fcntl.flock(use, fcntl.LOCK_SH)
            remove_left_over()
        try:
            yield
        finally:
            with gate():
                _leave(use.fileno(), last)


@contextlib.contextmanager
def gate() -> Iterator[None]:
    """One run of root's at a time: what is started, built or ended here is so once."""
    if os.getuid() != 0:
        yield
        return
    with GATE.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install() -> None:
    """Debian's packages, where they are missing. Raises NoEngine."""
    if shutil.which("dockerd") is not None and shutil.which("iptables") is not None:
        return
    if shutil.which("apt-get") is None:
        raise NoEngine("no container engine runs here, and docker.io can be installed on Debian alone")
    # In run level 1 no package starts its service: this program starts the daemon itself, and ends it.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(
            [*APT, *command], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            raise NoEngine(f"apt-get {command[0]} failed: see the messages above")


def _start(use: int) -> None:
    """Starts dockerd and waits until it answers; notes its pid in `use`. Raises NoEngine."""
    with open(LOG, "ab") as log:
        daemon = subprocess.Popen(["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    os.ftruncate(use, 0)
    os.write(use, owner(daemon.pid).encode())
    until = time.monotonic() + START_S
    # `docker info` waits for an answer once the socket is there; until then it fails at once, dozens a second.
    while not (Path("/var/run/docker.sock").exists() and answers()):
        if daemon.poll() is not None:
            raise NoEngine(f"dockerd ended with {daemon.returncode}: see {LOG}")
        if time.monotonic() > until:
            _end(daemon.pid)
            raise NoEngine(f"dockerd does not answer: see {LOG}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(0.1)


def _leave(use: int, last: Callable[[], None]) -> None:
    """If no other run uses the engine: calls `last`, and ends a dockerd that a run has started."""
    try:
        fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    last()
    started = os.pread(use, 100, 0).decode()
    if started and lives(started):
        _end(int(started.partition("-")[0]))
    os.ftruncate(use, 0)


def _end(pid: int) -> None:
    """SIGTERM, then SIGKILL, to a daemon that may be a child of ours or of a run that is gone."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(descriptor, number)
            if poll.poll(END_S * 1000):
                break
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def listed(*command: str) -> list[str]:
    """The words that a `docker` command prints; none where it fails."""
    done = subprocess.run(
        ["docker", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    return done.stdout.decode().split()


def remove_left_over() -> None:
    """Removes what runs that are gone have left: containers, then the networks that these were on."""
    for every, remove in (
        (("container", "ls", "--all"), ("container", "rm", "--force", "--volumes")),
        (("network", "ls"), ("network", "rm")),
    ):
        shown = '{{.ID}}/{{.Label "' + OWNER + '"}}'
        for line in listed(*every, "--filter", f"label={OWNER}", "--format", shown):
            found, _, made_by = line.partition("/")
            if not lives(made_by):
                quietly("docker", *remove, found)
