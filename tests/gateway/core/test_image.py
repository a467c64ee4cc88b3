"""What the program refuses in the image, on this machine's file system; tests/integration has the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import image
from gateway.errors import ConfigurationError, RegistryRefused, StartFailed
from runner.api import IsolationReport, Protection

MOUNTED = Path("/dev/shm")


@pytest.fixture
def in_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODESPACE_IMAGE", "1")


@pytest.mark.covers("IMG-3")
def test_uid_0_is_refused_in_the_image_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("CODESPACE_IMAGE", raising=False)
    image.check_container()
    monkeypatch.setenv("CODESPACE_IMAGE", "1")
    with pytest.raises(ConfigurationError, match="does not run as root: uid 0: add --user"):
        image.check_container()


@pytest.mark.covers("IMG-3")
def test_another_uid_is_accepted_in_the_image(monkeypatch: pytest.MonkeyPatch, in_image: None) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    monkeypatch.setattr(os, "getuid", lambda: 10001)
    image.check_container()


def test_no_temporary_directory_is_refused_with_the_flag_that_gives_one(
    monkeypatch: pytest.MonkeyPatch, in_image: None, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    monkeypatch.setattr(os, "getuid", lambda: 10001)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match=rf"add --tmpfs {tmp_path}/none"):
        image.check_container()


def test_a_root_of_the_images_own_file_system_is_refused_with_the_flag_that_mounts_it() -> None:
    with pytest.raises(
        RegistryRefused, match=r"/usr is not mounted into the container: .* add --volume HOST_DIRECTORY:/usr"
    ):
        image.check_root_inside("r.json", "workspaces.w.root", "/usr", "read-only")


@pytest.mark.covers("IMG-3")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount")
def test_a_root_is_mounted_where_its_file_system_is_the_images_own_too(tmp_path: Path) -> None:
    """As under rootless Podman, whose images are plain directories."""
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    script = 'mount --bind "$1/outside" "$1/inside"; exec "$0" -c "$2" "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, sys.executable, str(tmp_path), SAME_DEVICE],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "same device\n"), done.stderr


SAME_DEVICE = """
import os, sys
from gateway.image import mount_of
inside, beside = (os.path.join(sys.argv[1], name) for name in ("inside", "outside"))
assert mount_of(inside) != mount_of(beside) and mount_of(beside) == mount_of(sys.argv[1])
print("same device" if os.stat(inside).st_dev == os.stat(beside).st_dev else "another")
"""


@pytest.mark.skipif(not os.path.ismount(MOUNTED), reason="no file system of its own at /dev/shm")
def test_a_root_that_is_not_writable_is_refused_with_the_line_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    image.check_root_inside("r.json", "k", str(MOUNTED), "workspace-write")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    image.check_root_inside("r.json", "k", str(MOUNTED), "read-only")
    with pytest.raises(RegistryRefused, match=rf"chown -R {os.geteuid()}:{os.getegid()} "):
        image.check_root_inside("r.json", "k", str(MOUNTED), "workspace-write")


def report(*protections: Protection) -> IsolationReport:
    return IsolationReport(
        command_sandbox="linux-sandbox", available=True, network_enforcement="enforced", protections=protections
    )


def test_a_required_protection_that_is_off_ends_the_start_with_its_remedy() -> None:
    off = Protection(
        name="user_namespace", state="off", required=True, errno="EPERM", remedy="--security-opt seccomp=…"
    )
    optional = Protection(name="memory_limit", state="degraded", required=False)
    image.require_sandbox(report(optional))
    with pytest.raises(StartFailed, match=r"user_namespace \(EPERM\): --security-opt seccomp="):
        image.require_sandbox(report(optional, off))
