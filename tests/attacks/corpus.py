"""The attack corpus kept beside the repository: where it is, its bait, its runs inside and outside, its verdict.

The corpus is a program of its own with a table of required results; this module only calls it. See its README.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.harness import REPOSITORY, Identity, Place

FOLDER = REPOSITORY.parent / "shared" / "sandbox" / "attacks"
PROGRAM, TARGETS = FOLDER / "attacks.py", FOLDER / "targets.json"
PYTHON = "/usr/bin/python3"
"""An interpreter that a command can see."""
PROTECTED = (".git", "sub/.git", ".codex")

needs_corpus = pytest.mark.skipif(not PROGRAM.exists(), reason=f"the attack corpus is not at {FOLDER}")


@dataclass(frozen=True)
class Bait:
    """`arguments`: of the probe program, for a run inside or outside."""

    secret: Path
    canary: Path
    program: Path
    workspace: Path

    @property
    def arguments(self) -> list[str]:
        return [str(self.workspace), str(self.secret), "--canary", str(self.canary)]


@contextmanager
def bait(identity: Identity, place: Place) -> Iterator[Bait]:
    """Fixtures, listeners and the secret, as long as the context is open."""
    program = place.tools / "attacks.py"
    program.write_bytes(PROGRAM.read_bytes())
    identity.own(program)
    baited = Bait(place.outside / "secret", place.tools / "canary", program, place.workspace)
    process = subprocess.Popen(
        [PYTHON, str(program), *baited.arguments, "--bait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **identity.popen_arguments(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield baited
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def terms(place: Place, **more: Any) -> dict[str, Any]:
    return place.terms(protect=list(PROTECTED)) | more


def judge(results: str) -> str:
    """The corpus' own comparison: each difference, then `N of M as required`."""
    return subprocess.run(
        [sys.executable, str(PROGRAM), "--check", str(TARGETS)],
        input=results,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    ).stdout


def control(identity: Identity, place: Place, only: Sequence[str] = ()) -> dict[str, str]:
    """Probe id to state, from a run outside where each probe must be able to succeed."""
    arguments = [str(place.workspace), str(place.outside / "secret"), "--canary", str(place.tools / "canary")]
    run = subprocess.run(
        [PYTHON, str(PROGRAM), *arguments, "--control", *(["--only", *only] if only else [])],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
        **identity.popen_arguments(),
    )
    lines = [line.split("|", 2) for line in run.stdout.splitlines()]
    return {fields[0]: f"{fields[1]} {fields[2]}" for fields in lines if len(fields) == 3}
