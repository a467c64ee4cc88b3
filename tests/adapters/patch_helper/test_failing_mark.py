"""A mark whose flush fails may be on the disk or not: whatever stops the helper next, the tree never ends up mixed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from adapters.patch_helper.journal import Journal
from adapters.patch_helper.program import Workspace as Served
from adapters.patch_helper.steps import Steps
from adapters.v4a.errors import PatchError
from tests.adapters.patch_helper.test_crash import fill, in_child, recover, request
from tests.adapters.patch_helper.workspaces import Snapshot, Workspace, snapshot, workspace

pytestmark = pytest.mark.covers("PATCH-6", "PATCH-5")
MARK = "journal of op_crash committed"
WITHDRAWN = "journal of op_crash withdrawn"


class FailingDisk(Steps):
    """Operations of `failing` fail, each once. From the first failure on steps are counted, and the `kill_at`-th kills
    this process. `disk`: gets the journal as a machine that stops might find it: with all that was written by each
    flush, also by one that failed, unless that was of a mark's removal."""

    def __init__(self, made: Workspace, failing: Sequence[str], kill_at: int = 0) -> None:
        super().__init__(self._count)
        self._made, self._failing, self._kill_at, self._steps = made, list(failing), kill_at, -1

    def _count(self, _: str) -> None:
        if self._steps < 0:
            return
        self._steps += 1
        if self._steps == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _fails(self, operation: str) -> bool:
        if operation not in self._failing:
            return False
        self._failing.remove(operation)
        self._steps = max(self._steps, 0)
        return True

    def _copy(self) -> None:
        (journal,) = self._made.journal_dir.glob("*.journal")
        shutil.copy(journal, self._made.root.parent / "disk")

    def write_at(self, descriptor: int, data: bytes, offset: int, what: str) -> None:
        if self._fails(f"write {what}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().write_at(descriptor, data, offset, what)

    def flush(self, descriptor: int, what: str) -> None:
        fails = self._fails(f"flush {what}")
        if not (fails and what == WITHDRAWN):
            self._copy()
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().flush(descriptor, what)


def apply_and_recover(made: Workspace, failing: Sequence[str], kill_at: int = 0) -> str:
    """As the runner does: one patch, and where its end is in doubt its recovery. The last status that was told."""
    served = Served(str(made.root), str(made.journal_dir), FailingDisk(made, failing, kill_at))
    try:
        with pytest.raises(PatchError) as caught:
            served.apply(request())
        status = str(caught.value.details["status"])
        if status == "unknown":
            (found,) = served.recover()["recovered"]
            status = f"unknown, then {found['status']}"
    finally:
        served.close()
    return status


def trees() -> tuple[Snapshot, Snapshot]:
    """Before and after the patch."""
    with workspace(in_memory=True) as made:
        fill(made)
        before = snapshot(made.root)
        served = Served(str(made.root), str(made.journal_dir), Steps())
        served.apply(request())
        served.close()
        return before, snapshot(made.root)


def stopped(failing: Sequence[str], *, machine: bool) -> Iterator[Workspace]:
    """Workspaces, each stopped later than the last, up to one that was not stopped any more. A step is told before and
    after, so the odd ones meet each operation once; a machine's stop is tried at every other of them."""
    step, killed = -1, True
    while killed:
        step += 4 if machine and step > 0 else 2
        with workspace(in_memory=True) as made:
            fill(made)
            code = in_child(lambda made=made, step=step: apply_and_recover(made, failing, step))  # type: ignore[misc]
            assert code in (0, -signal.SIGKILL)
            killed = code != 0
            if machine and killed:
                (journal,) = made.journal_dir.glob("*.journal")
                os.replace(made.root.parent / "disk", journal)
            yield made
    assert step > 20


SCENES = {
    "mark-not-flushed": ([f"flush {MARK}"], "failed_rolled_back"),
    "and-its-removal-not-written": ([f"flush {MARK}", f"write {WITHDRAWN}"], "unknown, then applied"),
    "and-its-removal-not-flushed": ([f"flush {MARK}", f"flush {WITHDRAWN}"], "unknown, then failed_rolled_back"),
}


@pytest.mark.parametrize("scene", SCENES)
def test_a_mark_that_failed_is_withdrawn_or_left_to_recovery(scene: str) -> None:
    failing, status = SCENES[scene]
    before, after = trees()
    with workspace(in_memory=True) as made:
        fill(made)
        assert apply_and_recover(made, failing) == status
        assert snapshot(made.root) == (after if status.endswith("applied") else before)
        assert [one["status"] for one in recover(made)] == [status.removeprefix("unknown, then ")]
        # And the next patch goes its way.
        served = Served(str(made.root), str(made.journal_dir), Steps())
        if status.endswith("rolled_back"):
            served.apply(request("op_next"))
        served.close()
        assert snapshot(made.root) == after


@pytest.mark.timeout(120)
@pytest.mark.parametrize("machine", [False, True], ids=["helper-killed", "machine-stopped"])
@pytest.mark.parametrize("scene", SCENES)
def test_a_stop_at_any_step_after_a_mark_that_failed_leaves_a_whole_tree(scene: str, machine: bool) -> None:
    before, after = trees()
    for made in stopped(SCENES[scene][0], machine=machine):
        (told,) = recover(made)
        assert told["status"] in ("applied", "failed_rolled_back")
        assert snapshot(made.root) == (after if told["status"] == "applied" else before)


def test_without_the_withdrawal_some_stop_leaves_a_mixed_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the steps above do find what they are for."""
    before, after = trees()
    monkeypatch.setattr(Journal, "withdraw", lambda self, name: None)
    mixed = 0
    for made in stopped(SCENES["mark-not-flushed"][0], machine=False):
        recover(made)
        mixed += snapshot(made.root) not in (before, after)
    assert mixed > 0


@pytest.mark.parametrize("scene", ["and-its-removal-not-written", "and-its-removal-not-flushed"])
def test_a_recovery_that_cannot_be_sure_of_the_journal_touches_nothing(scene: str) -> None:
    with workspace(in_memory=True) as made:
        fill(made)
        served = Served(str(made.root), str(made.journal_dir), FailingDisk(made, SCENES[scene][0]))
        with pytest.raises(PatchError) as caught:
            served.apply(request())
        served.close()
        assert caught.value.details == {"errno": "EIO", "status": "unknown"}
        tree = snapshot(made.root, times=True)

        def full(step: str) -> None:
            if step.startswith("before flush"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        for _ in range(2):
            with pytest.raises(PatchError, match="tried again"):
                recover(made, full)
            assert snapshot(made.root, times=True) == tree
        assert Path(made.journal_dir).is_dir()
        assert recover(made)[0]["status"] in ("applied", "failed_rolled_back")
