"""What the image refuses at its start: one readable line each, with what to do, and `doctor` says the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.containers import UID, flags, home, run, volumes, write_registry

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def missing(folder: Path) -> None:
    (folder / "etc/registry.json").unlink()


def unreadable(folder: Path) -> None:
    (folder / "etc/registry.json").chmod(0)
    os.chown(folder / "etc/registry.json", 0 if os.getuid() == 0 else UID, -1)


def invalid(folder: Path) -> None:
    write_registry(folder, demo={"root": "/workspaces/demo", "profil": "read-only"})


def not_mounted(folder: Path) -> None:
    write_registry(folder, demo={"root": "/srv", "profile": "read-only"})


def unsandboxed(folder: Path) -> None:
    write_registry(folder, demo={"root": "/workspaces/demo", "profile": "workspace-write", "sandbox": "off"})


def not_writable(folder: Path) -> None:
    root = folder / "workspaces/demo"
    root.chmod(0o555)
    os.chown(root, 0 if os.getuid() == 0 else UID, -1)


CASES: list[tuple[Callable[[Path], None], str]] = [
    (missing, "/etc/codespace/registry.json"),
    (unreadable, "/etc/codespace/registry.json"),
    (invalid, "did you mean profile?"),
    (not_mounted, "/srv is not mounted into the container"),
    (unsandboxed, "the image never runs commands unsandboxed"),
    (not_writable, f"run on the host: chown -R {UID}:{UID} "),
]


@pytest.mark.covers("IMG-3")
@pytest.mark.parametrize(("break_it", "said"), CASES, ids=lambda case: getattr(case, "__name__", ""))
@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_mistake_ends_the_start_with_status_2_and_one_line(
    break_it: Callable[[Path], None], said: str, command: str
) -> None:
    with home() as folder:
        break_it(folder)
        ended = run(command, options=[*flags(), *volumes(folder)])
    assert ended.status == 2, ended
    lines = [line for line in ended.errors.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, ended
    assert said in lines[0]
    assert "Traceback" not in ended.errors


@pytest.mark.covers("IMG-3")
def test_registry_check_in_the_image_shows_the_mounted_root() -> None:
    with home() as folder:
        ended = run("registry", "check", "/etc/codespace/registry.json", options=[*flags(), *volumes(folder)])
    assert ended.status == 0, ended
    assert "/workspaces/demo" in ended.output
