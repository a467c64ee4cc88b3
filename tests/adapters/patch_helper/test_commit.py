"""What a commit keeps, refuses, compares and takes back, on a real disk."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Callable, Mapping

import pytest

from adapters.patch_helper.engine import PatchHelperEngine
from adapters.patch_helper.program import Workspace as Served
from adapters.patch_helper.steps import Steps, no_fault
from adapters.v4a.errors import PatchError
from runner.api import ABSENT, ErrorCode, PatchApplied, RunnerError
from tests.adapters.patch_helper.workspaces import Workspace, outcome, patch, snapshot, update, workspace
from tests.adapters.v4a.memory import version
from tests.privileges import ORDINARY_UID, run_as

CHANGE = patch(*update("a", "@@", "-1", "+2"))


def applied(got: PatchApplied | RunnerError) -> PatchApplied:
    assert isinstance(got, PatchApplied), got
    return got


def refused(got: PatchApplied | RunnerError, code: ErrorCode) -> RunnerError:
    assert isinstance(got, RunnerError), got
    assert got.code is code, got
    return got


def apply_here(
    made: Workspace, text: str, fault: Callable[[str], None] = no_fault, expected: Mapping[str, str] | None = None
) -> PatchError | None:
    """The refusal of `text`, applied in this process with `fault`; None if it was applied."""
    served = Served(str(made.root), str(made.journal_dir), Steps(fault))
    request = {"patch": text, "expected_versions": expected or {}, "check_only": False}
    try:
        served.apply(request | {"operation_id": "op", "protect": []})
    except PatchError as error:
        return error
    finally:
        served.close()
    return None


def recover_here(made: Workspace) -> None:
    served = Served(str(made.root), str(made.journal_dir), Steps())
    try:
        served.recover()
    finally:
        served.close()


# --- attributes -----------------------------------------------------------------------------------------------------
@pytest.mark.covers("PATCH-1")
async def test_an_updated_file_keeps_mode_owner_and_extended_attributes(
    engine: PatchHelperEngine, demo: Workspace
) -> None:
    place = demo.put("a", "1\n", 0o640)
    os.setxattr(place, "user.note", b"kept")
    if os.geteuid() == 0:
        os.chown(place, ORDINARY_UID, ORDINARY_UID)
    before = place.stat()
    applied(await outcome(engine, demo.request(patch(*update("a", "*** Move to: d/b", "@@", "-1", "+2")))))
    after = (demo.root / "d/b").stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert os.getxattr(demo.root / "d/b", "user.note") == b"kept"


def acl(*entries: tuple[int, int, int]) -> bytes:
    """The kernel's form of an access control list: (tag, permissions, id) each. Source: linux/posix_acl_xattr.h."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.mark.covers("PATCH-1")
async def test_an_updated_file_gets_no_access_list_that_it_did_not_have(
    engine: PatchHelperEngine, demo: Workspace
) -> None:
    demo.put("a", "1\n", 0o600)
    everyone = acl(
        (1, 7, 0xFFFFFFFF), (2, 7, ORDINARY_UID), (4, 7, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)
    )
    try:
        os.setxattr(demo.root, "system.posix_acl_default", everyone)
    except OSError as error:
        pytest.skip(f"no access control lists in {demo.root}: {error.strerror}")
    applied(await outcome(engine, demo.request(patch(*update("a", "@@", "-1", "+2"), "*** Add File: n", "+x"))))
    assert "system.posix_acl_access" not in os.listxattr(demo.root / "a")
    assert stat.S_IMODE((demo.root / "a").stat().st_mode) == 0o600
    # The control: a new file gets what its directory gives.
    assert "system.posix_acl_access" in os.listxattr(demo.root / "n")


@pytest.mark.covers("PATCH-1")
async def test_a_new_file_belongs_to_the_owner_of_the_workspace(engine: PatchHelperEngine, demo: Workspace) -> None:
    if os.geteuid() == 0:
        os.chown(demo.root, ORDINARY_UID, ORDINARY_UID)
    owner = demo.root.stat()
    applied(await outcome(engine, demo.request(patch("*** Add File: d/e/n", "+x"))))
    umask = os.umask(0)
    os.umask(umask)
    for name, mode in (("d", 0o755), ("d/e", 0o755), ("d/e/n", 0o644)):
        status = (demo.root / name).stat()
        assert (status.st_uid, status.st_gid) == (owner.st_uid, owner.st_gid)
        assert stat.S_IMODE(status.st_mode) == mode & ~umask


@pytest.mark.covers("PATCH-1")
async def test_what_cannot_be_kept_is_refused_before_the_commit(engine: PatchHelperEngine, demo: Workspace) -> None:
    demo.put("b", "1\n")
    demo.put("a", "1\n", 0o4755)
    before = snapshot(demo.root, times=True)
    text = patch(*update("b", "@@", "-1", "+2"), *update("a", "@@", "-1", "+2"))
    error = refused(await outcome(engine, demo.request(text)), ErrorCode.FILE_OPERATION_FAILED)
    assert "set-id" in error.message
    assert error.details == {"path": "a", "errno": "EPERM"}
    assert snapshot(demo.root, times=True) == before


@pytest.mark.covers("PATCH-1")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a file of another user")
def test_an_ordinary_user_cannot_take_over_a_file_of_another() -> None:
    with workspace() as made:
        made.put("a", "1\n", 0o666)
        os.chown(made.root, ORDINARY_UID, ORDINARY_UID)
        made.root.parent.chmod(0o777)

        def body() -> tuple[str, bytes]:
            error = apply_here(made, CHANGE)
            return error.message if error else "", (made.root / "a").read_bytes()

        message, data = run_as(ORDINARY_UID, body)
        assert "belongs to another user" in message
        assert data == b"1\n"


@pytest.mark.covers("PATCH-1")
async def test_other_names_of_a_hard_linked_file_keep_the_old_content(
    engine: PatchHelperEngine, demo: Workspace
) -> None:
    demo.put("a", "1\n")
    outside = demo.root.parent / "outside"
    os.link(demo.root / "a", outside)
    applied(await outcome(engine, demo.request(CHANGE)))
    assert outside.read_bytes() == b"1\n"
    assert (demo.root / "a").read_bytes() == b"2\n"


# --- preconditions --------------------------------------------------------------------------------------------------
@pytest.mark.covers("PATCH-2", "PATCH-3")
async def test_a_stale_version_of_any_named_file_stops_the_patch(engine: PatchHelperEngine, demo: Workspace) -> None:
    demo.put("a", "1\n")
    demo.put("other", "x\n")
    before = snapshot(demo.root, times=True)
    for expected in ({"other": version(b"old")}, {"a": ABSENT}, {"gone": version(b"")}, {"other": "nonsense"}):
        for check_only in (True, False):
            asked = demo.request(CHANGE, expected_versions=expected, check_only=check_only)
            error = refused(await outcome(engine, asked), ErrorCode.VERSION_CONFLICT)
            (conflict,) = error.details["conflicts"]
            assert conflict["actual"] in (version(b"1\n"), version(b"x\n"), ABSENT)
            assert "status" not in error.details
    assert snapshot(demo.root, times=True) == before
    holds = {"a": version(b"1\n"), "./other": version(b"x\n"), "gone": ABSENT}
    applied(await outcome(engine, demo.request(CHANGE, expected_versions=holds)))


@pytest.mark.covers("PATCH-2", "PATCH-5")
@pytest.mark.parametrize("name", ["a", "other"])
@pytest.mark.parametrize("rename", [True, False])
def test_a_file_that_changes_between_reading_and_exchange_is_a_conflict(
    demo: Workspace, name: str, rename: bool
) -> None:
    demo.put("a", "1\n")
    demo.put("other", "x\n")
    changed: list[str] = []

    def meddle(step: str) -> None:
        # The last moment before the expected versions are compared again: the new content lies ready beside the old.
        if step == "after fsync a" and not changed:
            changed.append(step)
            if rename:
                demo.put("theirs", "theirs\n").rename(demo.root / name)
            else:
                demo.put(name, "theirs\n")

    error = apply_here(demo, CHANGE, meddle, {"other": version(b"x\n")})
    assert changed
    assert error is not None
    assert error.code == "VERSION_CONFLICT"
    assert error.details["status"] == "failed_rolled_back"
    assert error.details["conflicts"][0]["actual"] == version(b"theirs\n")
    assert demo.files() == {"a": b"1\n", "other": b"x\n", name: b"theirs\n"}


@pytest.mark.covers("PATCH-2")
def test_a_name_that_is_taken_meanwhile_is_a_conflict_and_not_overwritten(demo: Workspace) -> None:
    def meddle(step: str) -> None:
        if step == "after fsync new/n":
            demo.put("new/n", "theirs\n")

    error = apply_here(demo, patch("*** Add File: new/n", "+x"), meddle)
    assert error is not None
    assert error.code == "VERSION_CONFLICT"
    assert demo.files() == {"new/n": b"theirs\n"}


@pytest.mark.covers("PATCH-2", "FS-1")
def test_a_directory_swapped_for_a_link_during_the_commit_changes_nothing_outside(demo: Workspace) -> None:
    outside = demo.root.parent / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"1\n")
    for moment in ("before create", "before exchange a", "after exchange a", "before fsync directory"):
        demo.clear()
        shutil.rmtree(demo.journal_dir, ignore_errors=True)
        demo.put("d/a", "1\n")
        swapped: list[str] = []

        def meddle(step: str, moment: str = moment, swapped: list[str] = swapped) -> None:
            if step.startswith(moment) and ".journal" not in step and not swapped:
                swapped.append(step)
                (demo.root / "d").rename(demo.root / "held")
                (demo.root / "d").symlink_to(outside)

        error = apply_here(demo, patch(*update("d/a", "@@", "-1", "+2")), meddle)
        assert swapped
        assert error is not None
        assert error.details["status"] == "failed_rolled_back"
        assert demo.files() == {"held/a": b"1\n"}
        assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"a": b"1\n"}


# --- failures -------------------------------------------------------------------------------------------------------
@pytest.mark.covers("PATCH-5", "PATCH-6")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_system_error_at_any_step_leaves_all_or_nothing(number: int) -> None:
    text = patch(*update("a", "@@", "-1", "+2"), "*** Add File: n/e/w", "+x", "*** Delete File: d")
    step = 0
    statuses: set[str] = set()
    while "done" not in statuses:
        step += 1
        with workspace(in_memory=True) as made:
            made.put("a", "1\n")
            made.put("d", "bye\n")
            before = snapshot(made.root)
            left = [step]

            def fail(name: str, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise OSError(number, os.strerror(number), name)

            error = apply_here(made, text, fail)
            if error is not None:
                statuses.add(error.details["status"])
                assert error.details["errno"] == errno.errorcode[number]
                assert snapshot(made.root) == before
                continue
            recover_here(made)
            assert made.files() == {"a": b"2\n", "n/e/w": b"x\n"}
            statuses.add("applied" if left[0] <= 0 else "done")
    assert statuses == {"failed_rolled_back", "applied", "done"}


@pytest.mark.covers("PATCH-5")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become an ordinary user")
def test_a_read_only_directory_stops_the_patch_whole() -> None:
    with workspace() as made:
        made.put("a", "1\n")
        made.put("locked/b", "1\n")
        for path in (made.root, made.root / "a", made.root / "locked", made.root / "locked/b"):
            os.chown(path, ORDINARY_UID, ORDINARY_UID)
        (made.root / "locked").chmod(0o555)
        made.root.parent.chmod(0o777)
        before = snapshot(made.root)

        def body() -> tuple[str, object, object]:
            text = patch(*update("a", "@@", "-1", "+2"), *update("locked/b", "@@", "-1", "+2"), "*** Add File: x/y")
            error = apply_here(made, text)
            assert error is not None
            assert "while locked/b was being written: Permission denied. Nothing was changed." in error.message
            return error.details["path"], error.details["status"], error.details["errno"]

        assert run_as(ORDINARY_UID, body) == ("locked/b", "failed_rolled_back", "EACCES")
        assert snapshot(made.root) == before


# --- the rest ---------------------------------------------------------------------------------------------------------
@pytest.mark.covers("BOX-7", "PATCH-1")
async def test_protected_names_are_refused_and_others_beside_them_are_not(
    engine: PatchHelperEngine, demo: Workspace
) -> None:
    demo.put(".git/HEAD", "x\n")
    demo.put("a", "1\n")
    protect = (".git/hooks", ".git/config")
    before = snapshot(demo.root, times=True)
    for text in (
        patch("*** Add File: .git/hooks/pre-commit", "+x"),
        patch("*** Add File: .git/config", "+x"),
        patch(*update("a", "*** Move to: .git/hooks", "@@", "-1", "+2")),
    ):
        for check_only in (True, False):
            asked = demo.request(text, protect=protect, check_only=check_only)
            refused(await outcome(engine, asked), ErrorCode.UNAUTHORIZED)
    assert snapshot(demo.root, times=True) == before
    applied(await outcome(engine, demo.request(patch(*update(".git/HEAD", "@@", "-x", "+y")), protect=protect)))


@pytest.mark.covers("PATCH-6")
async def test_an_operation_is_never_applied_twice_and_needs_its_id(engine: PatchHelperEngine, demo: Workspace) -> None:
    demo.put("a", "1\n1\n1\n")
    applied(await outcome(engine, demo.request(CHANGE, operation_id="op_once")))
    again = refused(
        await outcome(engine, demo.request(CHANGE, operation_id="op_once")), ErrorCode.FILE_OPERATION_FAILED
    )
    assert "not run again" in again.message
    refused(await outcome(engine, demo.request(CHANGE, operation_id=None)), ErrorCode.INVALID_ARGUMENT)
    refused(await outcome(engine, demo.request(CHANGE, operation_id="../x")), ErrorCode.INVALID_ARGUMENT)
    assert demo.files() == {"a": b"2\n1\n1\n"}


@pytest.mark.covers("PATCH-5", "PATCH-6")
async def test_nothing_is_left_beside_the_files_and_one_journal_without_contents(
    engine: PatchHelperEngine, demo: Workspace
) -> None:
    demo.put("a", "secret one\n")
    for number in range(3):
        text = patch(*update("a", "@@", f"-secret {('one', 0, 1)[number]}", f"+secret {number}"))
        applied(await outcome(engine, demo.request(text)))
    assert demo.files() == {"a": b"secret 2\n"}
    assert [path.name for path in demo.root.iterdir()] == ["a"]
    journals = list(demo.journal_dir.iterdir())
    assert [path.name for path in journals] == ["op_1.journal"]
    assert b"secret" not in journals[0].read_bytes()
    recovered = (await engine.recover_patches(demo.recovery())).recovered
    assert [(one.operation_id, one.status, one.files) for one in recovered] == [("op_3", "applied", ("a",))]
    assert (await engine.recover_patches(demo.recovery())).recovered == recovered


@pytest.mark.covers("PATCH-1", "PATCH-5")
async def test_an_operation_that_changes_nothing_is_applied(engine: PatchHelperEngine, demo: Workspace) -> None:
    demo.put("a", "1\n")
    before = snapshot(demo.root, times=True)
    for text in (patch(*update("a", "@@", " 1")), patch("*** Add File: n", "+x", "*** Delete File: n")):
        got = applied(await outcome(engine, demo.request(text)))
        assert all(change.before_version == change.after_version for change in got.changes)
    assert snapshot(demo.root, times=True) == before


@pytest.mark.covers("PATCH-1")
async def test_files_as_deep_as_a_path_can_lead_cost_no_more_than_their_names_are_long(
    engine: PatchHelperEngine, demo: Workspace
) -> None:
    """Ten of them once took the helper minutes, and it was taken for lost."""
    deep = "/".join("d" * 1900)
    nearest = os.open(demo.root, os.O_PATH)
    try:
        for _ in deep.split("/"):
            os.mkdir("d", dir_fd=nearest)
            nearest, above = os.open("d", os.O_PATH, dir_fd=nearest), nearest
            os.close(above)
        got = applied(await outcome(engine, demo.request(patch(*(f"*** Add File: {deep}/{n}" for n in range(20))))))
        assert len(got.changes) == 20
        assert sorted(os.listdir(f"/proc/self/fd/{nearest}"), key=int) == [str(n) for n in range(20)]
    finally:
        os.close(nearest)
        # Deeper than Python's own removal goes.
        await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(demo.root / "d")], check=True)


@pytest.mark.covers("PATCH-1", "PATCH-6")
def test_more_directories_than_can_be_held_are_refused_before_anything_is_written(
    demo: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.patch_helper.tree.resource.getrlimit", lambda _: (64 + 3 * 20, 64 + 3 * 20))
    for made_before in (True, False):
        if made_before:
            for number in range(30):
                (demo.root / f"d{number}").mkdir()
        before = snapshot(demo.root, times=True)
        error = apply_here(demo, patch(*(f"*** Add File: d{number}/n" for number in range(30))))
        assert error is not None
        assert error.details == {"reason": "too_costly", "limit": "max_directories", "bound": 20}
        assert snapshot(demo.root, times=True) == before
        assert not list(demo.journal_dir.iterdir())
        demo.clear()
