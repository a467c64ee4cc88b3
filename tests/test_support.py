"""The tests' own tools, each seen to fail where it should."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import kernel
from tests.leaks import await_end_of, holdings, left_over
from tests.privileges import ORDINARY_UID, FailedAsUser, run_as

CONFTEST = Path(__file__).with_name("conftest.py")


def run_pytest(folder: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A pytest of its own with this conftest on one file."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_planted.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  kernel(feature): x\n  engine: x\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    inherited = {key: value for key, value in os.environ.items() if key not in ("CI", "PYTEST_ADDOPTS")}
    inherited |= {"PYTHONPATH": str(CONFTEST.parents[1])} | environment
    return subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True, timeout=20, check=False)


SKIPPING = """
import pytest
@pytest.mark.kernel("seccomp")
def test_one(): pytest.skip("no reason")
"""


def test_a_skip_of_a_kernel_test_is_a_skip_here_and_a_failure_in_ci(tmp_path: Path) -> None:
    here, in_ci = run_pytest(tmp_path, SKIPPING), run_pytest(tmp_path, SKIPPING, CI="true")
    assert (here.returncode, "1 skipped" in here.stdout) == (0, True), here.stdout
    assert (in_ci.returncode, "1 failed" in in_ci.stdout) == (1, True), in_ci.stdout


def test_an_unknown_kernel_feature_fails(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, SKIPPING.replace("seccomp", "telepathy"))
    assert "unknown kernel feature 'telepathy'" in result.stdout
    assert result.returncode == 1


LEAKING = """
import os, subprocess
kept = [open("/dev/full")]
def test_one():
    kept.append(os.open("/dev/null", os.O_RDONLY))
    kept.append(subprocess.Popen(["true"]))
    os.waitid(os.P_PID, kept[-1].pid, os.WEXITED | os.WNOWAIT)
"""


def test_a_run_that_leaves_a_descriptor_or_a_zombie_fails(tmp_path: Path) -> None:
    clean = run_pytest(tmp_path, "def test_one(): pass\n")
    leaky = run_pytest(tmp_path, LEAKING)
    assert clean.returncode == 0, clean.stdout
    assert leaky.returncode == 1, leaky.stdout
    left = leaky.stdout.partition("the test run left:")[2]
    assert "-> /dev/null" in left
    assert ": Z true" in left


def test_every_probe_answers_and_the_control_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(isinstance(kernel.missing(feature), str | None) for feature in kernel.PROBES)
    monkeypatch.setitem(kernel.PROBES, "control", lambda: kernel._exists(100_000))
    assert kernel.missing("control") == "the kernel refuses control: ENOSYS"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_body_runs_as_an_ordinary_user_and_its_result_comes_back(as_ordinary_user: Callable[..., Any]) -> None:
    assert as_ordinary_user(lambda: (os.getresuid(), os.getgroups())) == ((ORDINARY_UID,) * 3, [])
    assert os.getuid() == 0


def test_a_body_that_raises_or_hangs_fails_the_test() -> None:
    with pytest.raises(FailedAsUser, match="ZeroDivisionError"):
        run_as(os.getuid() or ORDINARY_UID, lambda: 1 / 0)
    read_end, write_end = os.pipe()
    try:
        with pytest.raises(FailedAsUser, match="ended with -9"):
            run_as(os.getuid() or ORDINARY_UID, lambda: os.read(read_end, 1), timeout_s=0.1)
    finally:
        os.close(read_end)
        os.close(write_end)


def test_descriptors_and_children_are_told_apart(leak_check: None) -> None:
    before = holdings()
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    found = left_over(before, holdings())
    assert len(found) == 2
    assert await_end_of({child.pid: "cat"}, timeout_s=0) == {child.pid: "cat"}
    child.communicate(timeout=5)
    assert left_over(before, holdings()) == []


def contained(script: str) -> subprocess.CompletedProcess[str]:
    """A shell script under tests.contained."""
    command = [sys.executable, "-m", "tests.contained", "--grace", "0.5", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, cwd=CONFTEST.parents[1])


def test_a_command_that_leaves_nothing_keeps_its_status() -> None:
    result = contained('touch "$TMPDIR/x"; rm "$TMPDIR/x"; (setsid sleep 0.01 &) ; exit 7')
    assert (result.returncode, result.stderr) == (7, "")


def test_an_escaped_daemon_and_a_file_are_found_and_removed() -> None:
    result = contained('(setsid sh -c "sleep 1000 & wait" >/dev/null 2>&1 &); echo "$TMPDIR"; touch "$TMPDIR/kept"')
    assert result.returncode == 1
    assert "left running: " in result.stderr
    assert "sleep 1000" in result.stderr
    assert "left in TMPDIR: kept" in result.stderr
    assert not Path(result.stdout.strip()).exists()
