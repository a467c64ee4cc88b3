"""kill -9 at every step of a patch of twenty files, and of its recovery: the tree is wholly before or wholly after."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from adapters.patch_helper.program import Workspace as Served
from adapters.patch_helper.steps import Steps, no_fault
from adapters.v4a.errors import PatchError
from tests.adapters.patch_helper.workspaces import Snapshot, Workspace, patch, snapshot, update, workspace

pytestmark = pytest.mark.covers("PATCH-6", "PATCH-5")

PATCH = patch(
    *(line for n in range(8) for line in update(f"u{n}", "@@", f"-old {n}", f"+new {n}")),
    *(line for n in range(4) for line in (f"*** Add File: new/deep{n % 2}/a{n}", f"+added {n}")),
    *(f"*** Delete File: d{n}" for n in range(4)),
    *(line for n in range(2) for line in update(f"m{n}", f"*** Move to: moved/m{n}", "@@", f" move {n}")),
    # A file gives way to a directory, and one is replaced by a new file of equal content but other mode.
    *("*** Delete File: way", "*** Add File: way/in", "+inside"),
    *("*** Delete File: same", "*** Add File: same", "+same"),
)


def fill(made: Workspace) -> None:
    for n in range(8):
        made.put(f"u{n}", f"old {n}\n", 0o750)
    for n in range(4):
        made.put(f"d{n}", f"deleted {n}\n")
    for n in range(2):
        made.put(f"m{n}", f"move {n}\n", 0o600)
    made.put("way", "a file\n")
    made.put("same", "same\n", 0o751)
    made.put("bystander", "stays\n")


def request(operation_id: str = "op_crash") -> Mapping[str, Any]:
    return {
        "patch": PATCH, "expected_versions": {}, "check_only": False, "operation_id": operation_id, "protect": [],
    }  # fmt: skip


def in_child(work: Callable[[], object]) -> int:
    """The exit status of a child that does `work`, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class KillAt:
    """SIGKILL to this very process at the n-th step. Counts the steps."""

    def __init__(self, step: int) -> None:
        self.left = step

    def __call__(self, _: str) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


EARLIER = {**request("op_earlier"), "patch": patch(*update("bystander", "@@", "-stays", "+stays"))}


def apply(made: Workspace, fault: Callable[[str], None] = no_fault, *, first: bool = True) -> None:
    """`first`: into a new journal, else into the one of an operation before it that is over."""
    faults: list[Callable[[str], None]] = [no_fault]
    served = Served(str(made.root), str(made.journal_dir), Steps(lambda step: faults[-1](step)))
    try:
        if not first:
            served.apply(EARLIER)
        faults.append(fault)
        served.apply(request())
    finally:
        served.close()


def recover(made: Workspace, fault: Callable[[str], None] = no_fault) -> list[dict[str, Any]]:
    served = Served(str(made.root), str(made.journal_dir), Steps(fault))
    try:
        recovered: list[dict[str, Any]] = served.recover()["recovered"]
    finally:
        served.close()
    return recovered


def recovered_status(made: Workspace) -> str:
    """What recovery says of the operation. No journal: it had not begun."""
    found = recover(made)
    assert found == recover(made), "recovery is not idempotent"
    if not found or [one["operation_id"] for one in found] == ["op_earlier"]:
        return "failed_rolled_back"
    assert [one["operation_id"] for one in found] == ["op_crash"]
    return str(found[0]["status"])


Expected = tuple[Snapshot, Snapshot, int, int]


@pytest.fixture(scope="module")
def expected() -> Expected:
    return observed(first=True)


def observed(*, first: bool) -> Expected:
    """The tree before and after, how many steps a patch takes, and which one writes the mark."""
    steps: list[str] = []
    with workspace(in_memory=True) as made:
        fill(made)
        before = snapshot(made.root)
        apply(made, steps.append, first=first)
        after = snapshot(made.root)
    assert after["moved/m0"][-1] == b"move 0\n"
    assert after["moved/m0"][1] == 0o600
    assert after["u3"][1] == 0o750
    assert after["same"][1] != before["same"][1]
    assert "way/in" in after
    assert len([name for name in before if before[name] != after.get(name)]) >= 16
    commit_at = next(
        n for n, step in enumerate(steps) if step.startswith("before write") and step.endswith("committed")
    )
    return before, after, len(steps), commit_at


def check(made: Workspace, expected: Expected) -> str:
    status = recovered_status(made)
    tree = snapshot(made.root)
    assert status in ("applied", "failed_rolled_back")
    assert tree == (expected[1] if status == "applied" else expected[0])
    return status


@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", [True, False], ids=["new-journal", "journal-in-use"])
def test_a_patch_killed_at_any_step_is_wholly_done_or_wholly_undone(first: bool) -> None:
    expected = observed(first=first)
    _, _, steps, commit_at = expected
    outcomes = []
    for step in range(1, steps + 1):
        with workspace(in_memory=True) as made:
            fill(made)
            killed = in_child(lambda made=made, step=step: apply(made, KillAt(step), first=first))  # type: ignore[misc]
            assert killed == -signal.SIGKILL
            outcomes.append(check(made, expected))
    # Before the mark everything went back, after it everything went forward.
    assert set(outcomes[:commit_at]) == {"failed_rolled_back"}
    assert set(outcomes[commit_at + 4 :]) == {"applied"}


@pytest.mark.timeout(60)
def test_a_recovery_killed_at_any_step_is_finished_by_the_next(
    expected: Expected,
) -> None:
    commit_at = expected[3]
    for crash, status in ((commit_at, "failed_rolled_back"), (commit_at + 5, "applied")):
        step, killed = 0, True
        while killed:
            step += 3
            with workspace(in_memory=True) as made:
                fill(made)
                assert in_child(lambda made=made, crash=crash: apply(made, KillAt(crash))) == -signal.SIGKILL  # type: ignore[misc]
                killed = in_child(lambda made=made, step=step: recover(made, KillAt(step))) == -signal.SIGKILL  # type: ignore[misc]
                assert check(made, expected) == status
        assert step > 9


@pytest.mark.timeout(60)
def test_a_hundred_kills_at_random_moments_leave_a_whole_tree(expected: Expected) -> None:
    chance = random.Random(20_260)
    outcomes = set()
    for run in range(100):
        with workspace(in_memory=True) as made:
            fill(made)
            ready, go = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    os.write(go, b"!")
                    apply(made, first=run % 2 == 0)
                finally:
                    os._exit(0)
            os.read(ready, 1)
            for _ in range(chance.randrange(1_000_000)):
                pass
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(ready)
            os.close(go)
            outcomes.add(check(made, expected))
    assert "failed_rolled_back" in outcomes


def torn(made: Workspace, line: bytes) -> None:
    """Writes over zeros of the journal, from the next sector on."""
    (journal,) = made.journal_dir.glob("*.journal")
    data = journal.read_bytes()
    end = len(data.rstrip(b"\0"))
    with journal.open("r+b") as file:
        file.seek(-(-end // 512) * 512)
        file.write(line)


@pytest.mark.parametrize("rest", [b'{"mark":"comm', b'\0\0ark":"committed"}\n', b'{"mark":"co\0\0\0\0\0ed"}\n'])
def test_a_mark_that_was_not_written_whole_counts_as_none(expected: Expected, rest: bytes) -> None:
    with workspace(in_memory=True) as made:
        fill(made)
        assert in_child(lambda: apply(made, KillAt(expected[3]))) == -signal.SIGKILL
        torn(made, rest)
        assert check(made, expected) == "failed_rolled_back"
    with workspace(in_memory=True) as made:  # the positive control: it counts where it is whole
        fill(made)
        assert in_child(lambda: apply(made, KillAt(expected[3]))) == -signal.SIGKILL
        torn(made, b'{"mark":"committed"}\n')
        assert check(made, expected) == "applied"


def test_an_intent_that_was_not_written_whole_counts_as_none(expected: Expected) -> None:
    with workspace(in_memory=True) as made:
        fill(made)
        made.journal_dir.mkdir()
        (made.journal_dir / "op_crash.journal").write_bytes(b'{"operation_id":"op_crash","ro')
        assert [one["status"] for one in recover(made)] == ["failed_rolled_back"]
        assert snapshot(made.root) == expected[0]


@pytest.mark.parametrize("sector", [0, 1])
def test_an_intent_of_which_one_sector_is_missing_leaves_the_operation_before_it(
    expected: Expected, sector: int
) -> None:
    """As the disk may be found when the machine stopped: sectors are written in any order."""
    with workspace(in_memory=True) as made:
        fill(made)
        served = Served(str(made.root), str(made.journal_dir), Steps())
        served.apply(EARLIER)
        served.close()
        line = bytearray(b'{"operation_id":"op_crash","entries":["' + b"x" * 1000 + b'"]}\n')
        line[sector * 512 : (sector + 1) * 512] = bytes(512)
        # Its outcome is not on the disk either, so recovery has a mark to write where the torn line is.
        (journal,) = made.journal_dir.glob("*.journal")
        data = journal.read_bytes()
        at = data.index(b'{"mark":"applied"')
        with journal.open("r+b") as file:
            file.seek(at)
            file.write(bytes(512))
        torn(made, bytes(line))
        for _ in range(2):
            assert [(one["operation_id"], one["status"]) for one in recover(made)] == [("op_earlier", "applied")]
        served = Served(str(made.root), str(made.journal_dir), Steps())
        served.apply(request())
        served.close()
        assert snapshot(made.root) == expected[1]


def test_a_displaced_original_that_came_back_with_the_machine_is_removed(expected: Expected) -> None:
    """An outcome may be on the disk while the removals before it are not: of the last operation and of earlier ones."""
    with workspace(in_memory=True) as made:
        fill(made)
        removed: list[str] = []

        def keep(step: str) -> None:
            if step.startswith("before unlink .codespace-patch-"):
                name = step.removeprefix("before unlink ")
                (found,) = made.root.rglob(name)
                os.link(found, made.root.parent / name)
                removed.append(str(found))

        apply(made, keep, first=False)
        assert len(removed) > 10
        after = snapshot(made.root)
        for path in removed:
            os.rename(made.root.parent / os.path.basename(path), path)
        assert snapshot(made.root) != after
        assert recovered_status(made) == "applied"
        assert snapshot(made.root) == after


def test_many_operations_in_a_row_use_few_journals_and_each_is_told_of() -> None:
    with workspace(in_memory=True) as made:
        fill(made)
        steps: list[str] = []
        served = Served(str(made.root), str(made.journal_dir), Steps(steps.append))
        for number in range(300):
            text = patch(*update("bystander", "@@", f"-{number or 'stays'}", f"+{number + 1}"))
            served.apply({**request(f"op_{number}"), "patch": text})
            assert len(list(made.journal_dir.iterdir())) == 1
            if number % 50 == 0:
                found = served.recover()["recovered"]
                assert [(one["operation_id"], one["status"]) for one in found] == [(f"op_{number}", "applied")]
        again = patch(*update("bystander", "@@", "-300", "+301"))
        with pytest.raises(PatchError, match="begun before"):
            served.apply({**request("op_299"), "patch": again})
        served.close()
        assert 2 <= len([step for step in steps if step.startswith("after create op_")]) <= 5
        assert (made.root / "bystander").read_bytes() == b"300\n"


class TornWrites(Steps):
    """The disk takes the first half of what is written to the journal about `what`, then fails."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def write_at(self, descriptor: int, data: bytes, offset: int, what: str) -> None:
        if what == self._what:
            super().write_at(descriptor, data[: len(data) // 2], offset, what)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().write_at(descriptor, data, offset, what)


@pytest.mark.parametrize("line", ["intent", "committed", "applied"])
def test_a_line_that_the_disk_took_in_part_hides_none_after_it(expected: Expected, line: str) -> None:
    with workspace(in_memory=True) as made:
        fill(made)
        served = Served(str(made.root), str(made.journal_dir), TornWrites(f"journal of op_crash {line}"))
        served.apply(EARLIER)
        if line == "applied":
            served.apply(request())
        else:
            with pytest.raises(PatchError) as caught:
                served.apply(request())
            assert caught.value.details["status"] == "failed_rolled_back"
            assert snapshot(made.root) == expected[0]
            served.apply(request("op_crash_2"))
        assert snapshot(made.root) == expected[1]
        last = "op_crash" if line == "applied" else "op_crash_2"
        for _ in range(2):
            found = {one["operation_id"]: one["status"] for one in recover(made)}
            assert found[last] == "applied"
        served.close()


def test_an_operation_killed_before_its_intent_is_written_has_not_begun(expected: Expected) -> None:
    with workspace(in_memory=True) as made:
        fill(made)

        def kill(step: str) -> None:
            if step == "before write journal of op_crash intent":
                os.kill(os.getpid(), signal.SIGKILL)

        assert in_child(lambda: apply(made, kill, first=False)) == -signal.SIGKILL
        assert [one["operation_id"] for one in recover(made)] == ["op_earlier"]
        # So it may be sent again under its id, which one that has begun may not.
        apply(made)
        assert snapshot(made.root) == expected[1]
        served = Served(str(made.root), str(made.journal_dir), Steps())
        with pytest.raises(PatchError, match="begun before"):
            served.apply({**EARLIER, "operation_id": "op_crash"})
        served.close()


def test_what_somebody_else_changed_since_is_left_alone(expected: Expected) -> None:
    with workspace(in_memory=True) as made:
        fill(made)
        assert in_child(lambda: apply(made, KillAt(expected[3]))) == -signal.SIGKILL
        made.put("u0.new", "theirs\n").rename(made.root / "u0")
        (found,) = recover(made)
        assert found["status"] == "failed_partial"
        assert "u0" in found["reason"]
        tree = snapshot(made.root)
        assert tree["u0"][-1] == b"theirs\n"
        original = [entry for name, entry in tree.items() if name.startswith(".codespace-patch-")]
        assert [entry[-1] for entry in original] == [b"old 0\n"]
        assert tree["u1"] == expected[0]["u1"]


def test_a_journal_of_another_root_proves_nothing_and_touches_nothing() -> None:
    with workspace(in_memory=True) as made:
        fill(made)
        assert in_child(lambda: apply(made, KillAt(40))) == -signal.SIGKILL
        made.root.rename(made.root.parent / "elsewhere")
        made.root.mkdir()
        made.put("u0", "old 0\n")
        before = snapshot(made.root, times=True)
        (found,) = recover(made)
        assert found["status"] == "unknown"
        assert snapshot(made.root, times=True) == before
        # Nor does it stand in the way of the next patch, or forget what it is for.
        served = Served(str(made.root), str(made.journal_dir), Steps())
        served.apply({**request("op_next"), "patch": patch(*update("u0", "@@", "-old 0", "+x"))})
        served.close()
        assert sorted(path.stem for path in made.journal_dir.iterdir()) == ["op_crash", "op_next"]
        made.root.rename(made.root.parent / "newer")
        (made.root.parent / "elsewhere").rename(made.root)
        assert {one["operation_id"]: one["status"] for one in recover(made)} == {
            "op_crash": "failed_rolled_back",
            "op_next": "applied",
        }


def test_a_directory_that_vanished_since_leaves_the_rest_restored_and_is_told() -> None:
    with workspace() as made:
        fill(made)
        made.put("dir/u", "old\n")
        text = patch(*update("dir/u", "@@", "-old", "+new"), *update("u0", "@@", "-old 0", "+new 0"))
        served = Served(str(made.root), str(made.journal_dir), Steps(KillAt(25)))
        assert in_child(lambda: served.apply({**request(), "patch": text})) == -signal.SIGKILL
        served.close()
        (made.root / "dir").rename(made.root.parent / "dir")
        (found,) = recover(made)
        assert (found["status"], found["reason"]) == ("failed_partial", "dir is no directory any more")
        assert made.files()["u0"] == b"old 0\n"


def test_a_recovery_that_fails_is_an_error_and_not_an_outcome(expected: Expected) -> None:
    with workspace() as made:
        fill(made)
        assert in_child(lambda: apply(made, KillAt(expected[3]))) == -signal.SIGKILL

        def full(step: str) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), step)

        with pytest.raises(PatchError) as caught:
            recover(made, full)
        assert caught.value.code == "FILE_OPERATION_FAILED"
        assert check(made, expected) == "failed_rolled_back"


def test_a_damaged_journal_proves_nothing_and_stops_the_next_patch() -> None:
    with workspace() as made:
        fill(made)
        made.journal_dir.mkdir()
        (made.journal_dir / "op_bad.journal").write_bytes(b"{}\n")
        assert [one["status"] for one in recover(made)] == ["unknown"]
        before = snapshot(made.root, times=True)
        served = Served(str(made.root), str(made.journal_dir), Steps())
        with pytest.raises(PatchError, match="op_bad"):
            served.apply(request())
        served.close()
        assert snapshot(made.root, times=True) == before
