"""Directories of probes whose runner was killed: the next probe removes them, and no other."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from adapters.linux_sandbox.probing import ABANDONED_S, PREFIX, remove_abandoned


def test_what_a_killed_probe_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    def made(name: str) -> Path:
        (tmp_path / name / ".git" / "hooks").mkdir(parents=True)
        return tmp_path / name

    elsewhere = made("elsewhere")
    left, held, other = made(f"{PREFIX}left"), made(f"{PREFIX}held"), made("other")
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    (tmp_path / f"{PREFIX}file").write_text("")
    lock = os.open(held, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        now_s = time.time()
        remove_abandoned(now_s, str(tmp_path))
        assert left.exists(), "it may just be being made"
        remove_abandoned(now_s + 2 * ABANDONED_S, str(tmp_path))
    finally:
        os.close(lock)
    assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{PREFIX}file", f"{PREFIX}held", f"{PREFIX}link", "elsewhere", "other",
    ]  # fmt: skip
    assert (held / ".git" / "hooks").is_dir()
    assert (elsewhere / ".git" / "hooks").is_dir()
    assert (other / ".git" / "hooks").is_dir()
