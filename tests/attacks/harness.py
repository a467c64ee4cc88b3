"""Commands in the real sandbox for tests: as which uid, in which workspace, and what came of them.

The uid matters: as root the helper maps another id onto the workspace, as an ordinary user it maps its own. Every test
of this folder runs under each `Identity` that the machine allows. Called by the fixtures in `conftest`.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
ANSWER_WITHIN_S = 60
ORDINARY_UID = 12345


@dataclass(frozen=True)
class Identity:
    """Who starts the runner. `uid` None: whoever runs the tests."""

    name: str
    uid: int | None

    def popen_arguments(self) -> dict[str, Any]:
        """An ordinary user gets no supplementary group, since it would stay in force in the sandbox; root gets two,
        which must not."""
        if self.uid is not None:
            return {"user": self.uid, "group": self.uid, "extra_groups": []}
        return {"extra_groups": [4, 6]} if os.geteuid() == 0 else {}

    def own(self, path: Path) -> None:
        if self.uid is not None:
            os.chown(path, self.uid, self.uid)


def identities() -> list[Identity]:
    """As root: root and an ordinary user. Otherwise the user there is."""
    if os.geteuid() == 0:
        return [Identity("root", None), Identity("user", ORDINARY_UID)]
    return [Identity("user", None)]


@dataclass(frozen=True)
class Finished:
    """`output`: all of it. `exit`: the fields of `runner.ports.ManagedExit`."""

    output: str
    exit: Mapping[str, Any]

    @property
    def code(self) -> int | None:
        value = self.exit["command_code"]
        return None if value is None else int(value)


@dataclass(frozen=True)
class Launched:
    """`pid`: of PID 1, as seen from here. `isolation`: what the launcher says is in force."""

    key: str
    pid: int
    isolation: Mapping[str, Any]


class LaunchRefused(Exception):
    """The launcher proved that nothing started. `stage` and `errno` are its own."""

    def __init__(self, stage: str, errno: str | None, message: str) -> None:
        super().__init__(f"{stage}: {errno}: {message}")
        self.stage, self.errno, self.message = stage, errno, message


class SandboxDriver:
    """The driver program under one identity. `prepared`: every command finds a sandbox waiting, where one can be made.
    Every wait is bounded."""

    def __init__(self, identity: Identity, *, prepared: bool = False) -> None:
        self.identity = identity
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.driver", *(["--prepared"] if prepared else [])],
            cwd=REPOSITORY,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "CODESPACE_BAIT": "must not be inherited"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **identity.popen_arguments(),
        )
        self._keys = 0

    @property
    def pid(self) -> int:
        """The runner, as the sandbox knows it."""
        return self._process.pid

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_WITHIN_S)
        assert ready, f"no answer to {request['op']} within {ANSWER_WITHIN_S} s"
        line = self._process.stdout.readline()
        assert line, f"the driver ended with {self._process.wait(ANSWER_WITHIN_S)}: see its standard error"
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def launch(self, terms: Mapping[str, Any], argv: Sequence[str], *, tty: tuple[int, int] | None = None) -> Launched:
        """Returns once the command runs. Raises LaunchRefused."""
        self._keys += 1
        key = f"{self.identity.name}{self._keys}"
        answer = self._ask(op="launch", key=key, terms=dict(terms), argv=list(argv), tty=tty)
        if "failed" in answer:
            raise LaunchRefused(**answer["failed"])
        return Launched(key, int(answer["pid"]), answer["isolation"])

    def wait(self, command: Launched) -> Finished:
        answer = self._ask(op="wait", key=command.key)
        return Finished(base64.b64decode(answer["output"]).decode("utf-8", "replace"), answer["exit"])

    def run(self, terms: Mapping[str, Any], argv: Sequence[str], *, tty: tuple[int, int] | None = None) -> Finished:
        return self.wait(self.launch(terms, argv, tty=tty))

    def shell(self, terms: Mapping[str, Any], script: str) -> Finished:
        return self.run(terms, ["/bin/sh", "-euc", script])

    def expect(self, command: Launched, text: str) -> None:
        """Returns once the output holds `text`; fails if it ends before."""
        answer = self._ask(op="expect", key=command.key, text=text)
        assert answer["seen"], f"the output ended without {text!r}: {answer['output']!r}"

    def send(self, command: Launched, data: str) -> None:
        self._ask(op="send", key=command.key, data=data)

    def signal(self, command: Launched, number: int) -> None:
        self._ask(op="signal", key=command.key, number=number)

    def kill(self, command: Launched) -> None:
        self._ask(op="kill", key=command.key)

    def report(self, terms: Mapping[str, Any] | None) -> dict[str, Any]:
        report = self._ask(op="report", terms=None if terms is None else dict(terms))["report"]
        assert isinstance(report, dict)
        return report

    def close(self) -> int:
        """The driver's exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            return self._process.wait(ANSWER_WITHIN_S)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()


@dataclass(frozen=True)
class Place:
    """Directories of one test, owned by its identity. `workspace` is registered; `tools` is shown read-only;
    `outside` holds what a command must not reach."""

    base: Path
    workspace: Path
    tools: Path
    outside: Path

    def terms(self, **more: Any) -> dict[str, Any]:
        """Terms as the registry's defaults give them, with `tools` under mounts_read_only."""
        return {
            "workspace_id": "place",
            "root": str(self.workspace),
            "protect": [".git/hooks", ".git/config"],
            "mounts_read_only": [str(self.tools)],
        } | more


@contextmanager
def make_place(identity: Identity) -> Iterator[Place]:
    # Not below /tmp: that is a private mount inside, and would hide a mistake with what lies beside the workspace.
    base = Path(tempfile.mkdtemp(prefix="codespace-test-", dir="/var/tmp"))
    try:
        place = Place(base, base / "workspace", base / "tools", base / "outside")
        identity.own(base)
        for directory in (place.workspace, place.tools, place.outside):
            directory.mkdir(mode=0o755)
            identity.own(directory)
        yield place
    finally:
        shutil.rmtree(base)
