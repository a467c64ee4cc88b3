"""`apply_patch`, `operation_status` and recovery: the order of decisions, the ledger's truth, no lease that leaks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.application import Application
from gateway.errors import Code, StartFailed
from gateway.locks import lock_directory
from gateway.request_keys import MAX_KEY_CHARS
from gateway.store.database import StoreFailed
from gateway.use_cases import recovery
from runner import api
from runner.api import ErrorCode, FileChange, RecoveredPatch, RecoveredPatches, RunnerError, RunnerLost
from tests.gateway.core.application_rig import WRITE, Core, core, soon
from tests.gateway.core.support import FakeRunner

CHANGE = FileChange(path="a", kind="update", before_version="sha256:1", after_version="sha256:2")
APPLIED = api.PatchApplied(status="applied", files=("a",), changes=(CHANGE,), warnings=({"kind": "fuzzy_match"},))
VERSION = "sha256:" + "0" * 64
PATCH = "*** Begin Patch\nthe secret words of the patch\n*** End Patch\n"


async def apply(c: Core, workspace_id: str = "demo", patch: str = PATCH, **more: Any) -> Any:
    return await soon(c.application.apply_patch(workspace_id, patch, **more))


async def status(c: Core, operation_id: str) -> Any:
    return await soon(c.application.operation_status(operation_id=operation_id))


def sent(c: Core) -> api.ApplyPatch:
    request = c.runner.requests[-1][1]
    assert isinstance(request, api.ApplyPatch)
    return request


@pytest.mark.covers("OP-1", "PATCH-2", "LEASE-1")
async def test_a_patch_is_minted_performed_under_the_lease_and_finished(tmp_path: Path) -> None:
    async with core(tmp_path, {"demo": {**WRITE, "protect": ["secret"]}}) as c:
        c.runner.answers["apply_patch"] = APPLIED
        c.runner.hold["apply_patch"] = asyncio.Event()
        call = asyncio.create_task(
            c.application.apply_patch("demo", PATCH, expected_versions={"a": VERSION, "b": "absent"}, operation_key="k")
        )
        await soon(c.runner.asked_for("apply_patch").wait())
        request = sent(c)
        assert request.operation_id is not None
        assert (request.protect, request.check_only) == (("secret",), False)
        assert request.expected_versions == {"a": VERSION, "b": "absent"}
        assert os.stat(request.journal_dir).st_mode & 0o777 == 0o700
        running = await status(c, request.operation_id)
        assert (running.status, [event.event for event in running.events]) == (None, ["minted"])
        busy = await c.refused(c.application.exec_command("demo", ("true",)), Code.WORKSPACE_BUSY)
        assert busy.details["holder"] == {"kind": "patch", "id": request.operation_id}
        c.runner.hold["apply_patch"].set()
        answer = await soon(call)
        assert (answer.status, answer.operation_id, answer.operation_key) == ("applied", request.operation_id, "k")
        assert (answer.changes, answer.warnings, answer.replayed) == ((CHANGE,), ({"kind": "fuzzy_match"},), None)
        assert await c.is_free()
        for found in (
            await status(c, request.operation_id),
            await soon(c.application.operation_status(operation_key="k", workspace_id="demo")),
        ):
            assert (found.status, found.changes, found.kind) == ("applied", (CHANGE,), "patch")
            assert [event.event for event in found.events] == ["minted", "finished"]
        assert c.audit.lines()[:2] == [
            ("decision", "apply_patch", "allowed", None),
            ("decision", "exec_command", "allowed", None),
        ]
        assert ("mutation", "apply_patch", "done", None) in c.audit.lines()


@pytest.mark.covers("POL-1", "PATCH-1")
async def test_policy_comes_before_anything_is_parsed_or_minted(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        for patch in (PATCH, "x" * (api.MAX_PATCH_BYTES + 1)):
            error = await c.refused(c.application.apply_patch("ro", patch), Code.UNAUTHORIZED)
            assert error.operation_id is None
        assert c.runner.count("apply_patch") == 0


@pytest.mark.covers("POL-3")
async def test_a_workspace_that_asks_for_approvals_runs_nothing_without_one(tmp_path: Path) -> None:
    async with core(tmp_path, {"demo": {**WRITE, "approvals": "confirm"}}) as c:
        await c.refused(c.application.apply_patch("demo", PATCH), Code.APPROVAL_REQUIRED)
        await c.refused(c.application.exec_command("demo", ("true",)), Code.APPROVAL_REQUIRED)
        assert c.runner.count("apply_patch") + c.runner.count("start_process") == 0
        assert (await apply(c, check_only=True)).status == "checked"


@pytest.mark.covers("PATCH-3", "OP-1")
async def test_a_preview_needs_no_lease_and_is_not_recorded(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        process_id, _ = await c.exec()
        answer = (await apply(c, check_only=True, operation_key="k")).model_dump(exclude_none=True)
        assert answer == {"status": "checked", "files": (), "changes": ()}
        assert sent(c).operation_id is None
        await c.refused(
            c.application.operation_status(operation_key="k", workspace_id="demo"), Code.OPERATION_NOT_FOUND
        )
        c.runner.exit(process_id)
        await apply(c, operation_key="k")
        await c.refused(
            c.application.apply_patch("demo", PATCH, operation_key="k", check_only=True), Code.OPERATION_KEY_CONFLICT
        )


@pytest.mark.parametrize(
    ("patch", "more", "code"),
    [
        ("x" * (api.MAX_PATCH_BYTES + 1), {}, Code.INVALID_PATCH),
        (PATCH, {"expected_versions": {"a": "deadbeef"}}, Code.INVALID_ARGUMENT),
        (PATCH, {"expected_versions": {"a": VERSION.upper()}}, Code.INVALID_ARGUMENT),
        (PATCH, {"operation_key": ""}, Code.INVALID_ARGUMENT),
        (PATCH, {"operation_key": "k" * (MAX_KEY_CHARS + 1)}, Code.INVALID_ARGUMENT),
    ],
)
async def test_what_cannot_be_a_request_is_refused_before_it_is_recorded(
    tmp_path: Path, patch: str, more: dict[str, Any], code: Code
) -> None:
    async with core(tmp_path) as c:
        error = await c.refused(c.application.apply_patch("demo", patch, **more), code)
        assert error.operation_id is None
        assert c.runner.count("apply_patch") == 0
        if code is Code.INVALID_PATCH:
            assert error.details == {"reason": "too_large", "limit": api.MAX_PATCH_BYTES}
        assert await c.is_free()


# --- keys -------------------------------------------------------------------------------------------------------------
@pytest.mark.covers("OP-2")
async def test_a_key_replays_its_result_and_refuses_another_request_also_after_a_restart(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        c.runner.answers["apply_patch"] = APPLIED
        first = await apply(c, operation_key="k")
        again = await apply(c, operation_key="k")
        assert again == first.model_copy(update={"replayed": True})
        await c.refused(c.application.apply_patch("demo", "other", operation_key="k"), Code.OPERATION_KEY_CONFLICT)
        versions = {"a": VERSION}
        await c.refused(
            c.application.apply_patch("demo", PATCH, versions, operation_key="k"), Code.OPERATION_KEY_CONFLICT
        )
        assert (await apply(c, "other", operation_key="k")).operation_id != first.operation_id
        assert c.runner.count("apply_patch") == 2
    async with core(tmp_path) as c:
        assert await apply(c, operation_key="k") == again
        assert c.runner.count("apply_patch") == 0


@pytest.mark.covers("OP-2")
async def test_callers_with_one_key_at_once_are_one_operation(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        c.runner.answers["apply_patch"] = APPLIED
        answers = await soon(asyncio.gather(*(apply(c, operation_key="k") for _ in range(6))))
        assert len({answer.operation_id for answer in answers}) == 1
        assert sorted(bool(answer.replayed) for answer in answers) == [False, True, True, True, True, True]
        assert c.runner.count("apply_patch") == 1


@pytest.mark.covers("OP-2", "TOOL-3", "LEASE-2")
async def test_a_caller_that_goes_away_finds_the_result_by_its_key(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        c.runner.answers["apply_patch"] = APPLIED
        c.runner.hold["apply_patch"] = asyncio.Event()
        call = asyncio.create_task(c.application.apply_patch("demo", PATCH, operation_key="k"))
        await soon(c.runner.asked_for("apply_patch").wait())
        call.cancel()
        await asyncio.wait({call})
        await c.refused(c.application.apply_patch("demo", "x", operation_key="k"), Code.OPERATION_KEY_CONFLICT)
        again = asyncio.create_task(c.application.apply_patch("demo", PATCH, operation_key="k"))
        c.runner.hold["apply_patch"].set()
        answer = await soon(again)
        assert (answer.status, answer.replayed, c.runner.count("apply_patch")) == ("applied", True, 1)
        assert await c.is_free()


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.covers("OP-1", "OP-5", "PATCH-2", "PATCH-5")
@pytest.mark.parametrize(
    ("code", "details", "ends_as"),
    [
        (ErrorCode.VERSION_CONFLICT, {"actual": {"a": VERSION}}, "rejected"),
        (ErrorCode.INVALID_PATCH, {"reason": "lines_not_found", "path": "a", "chunk": 1}, "rejected"),
        (ErrorCode.FILE_OPERATION_FAILED, {"status": "failed_rolled_back", "errno": "ENOSPC"}, "failed_rolled_back"),
        (ErrorCode.FILE_OPERATION_FAILED, {"status": "failed_partial"}, "failed_partial"),
    ],
)
async def test_a_patch_that_is_not_applied_is_recorded_as_such_and_its_replay_tells_the_same_plainly(
    tmp_path: Path, code: ErrorCode, details: dict[str, Any], ends_as: str
) -> None:
    async with core(tmp_path) as c:
        c.runner.answers["apply_patch"] = RunnerError(code, "it has the secret words of the patch", details=details)
        error = await c.refused(c.application.apply_patch("demo", PATCH, operation_key="k"), Code(code.value))
        assert error.details == details
        assert "secret words" in error.message
        assert error.operation_id is not None
        recorded = await status(c, error.operation_id)
        assert (recorded.status, [event.event for event in recorded.events]) == (ends_as, ["minted", "finished"])
        again = await c.refused(c.application.apply_patch("demo", PATCH, operation_key="k"), Code(code.value))
        assert again.details == {**details, "replayed": True}
        assert again.operation_id == error.operation_id
        assert "secret words" not in again.message
        assert c.runner.count("apply_patch") == 1
        assert await c.is_free()
    held = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert b"demo" in held
    assert b"secret words" not in held


async def test_a_runner_that_is_down_refuses_before_anything_is_minted(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        c.link.lose()
        error = await c.refused(c.application.apply_patch("demo", PATCH, operation_key="k"), Code.RUNNER_UNAVAILABLE)
        assert (error.retryable, error.operation_id) == (True, None)
        await c.refused(
            c.application.operation_status(operation_key="k", workspace_id="demo"), Code.OPERATION_NOT_FOUND
        )


async def test_a_patch_that_was_provably_not_sent_is_rejected_and_not_in_doubt(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        c.runner.answers["apply_patch"] = RunnerError(ErrorCode.RUNNER_UNAVAILABLE, "not sent", retryable=True)
        error = await c.refused(c.application.apply_patch("demo", PATCH), Code.RUNNER_UNAVAILABLE)
        assert error.operation_id is not None
        assert not error.retryable
        assert (await status(c, error.operation_id)).status == "rejected"
        assert await c.is_free()


@pytest.mark.covers("OP-2", "PATCH-5")
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_failure_is_retryable_where_the_same_call_would_run_again(tmp_path: Path, key: str | None) -> None:
    details = {"status": "failed_rolled_back", "reason": "no_space"}
    async with core(tmp_path) as c:
        c.runner.answers["apply_patch"] = RunnerError(
            ErrorCode.FILE_OPERATION_FAILED, "The disk is full.", retryable=True, details=details
        )
        call = c.application.apply_patch("demo", PATCH, operation_key=key)
        error = await c.refused(call, Code.FILE_OPERATION_FAILED)
        assert (error.retryable, error.details["status"]) == (key is None, "failed_rolled_back")
        assert ("under a new one" in error.message) is (key is not None)
        c.runner.answers.clear()
        if key is None:
            assert (await apply(c)).status == "applied"
        else:
            again = await c.refused(c.application.apply_patch("demo", PATCH, operation_key=key), error.code)
            assert (again.retryable, again.details["replayed"]) == (False, True)


@pytest.mark.covers("OP-3")
async def test_operation_status_takes_exactly_one_name_and_finds_no_command(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        operation_id = (await apply(c, operation_key="k")).operation_id
        process_id, _ = await c.exec()
        find = c.application.operation_status
        for call in (
            find(),
            find(operation_key="k"),
            find(workspace_id="demo"),
            find(operation_id=operation_id, operation_key="k", workspace_id="demo"),
        ):
            await c.refused(call, Code.INVALID_ARGUMENT)
        for call in (
            find(operation_id="nope"),
            find(operation_id=process_id),
            find(operation_key="nope", workspace_id="demo"),
            find(operation_key="k", workspace_id="other"),
        ):
            await c.refused(call, Code.OPERATION_NOT_FOUND)
        await c.refused(find(operation_key="k", workspace_id="nope"), Code.WORKSPACE_NOT_FOUND)
        c.write({"other": WRITE})
        await soon(c.application.reload())
        await c.refused(find(operation_id=operation_id), Code.OPERATION_NOT_FOUND)


# --- doubt and recovery -----------------------------------------------------------------------------------------------
def recovered(operation_id: str, ends_as: str) -> RecoveredPatches:
    one = RecoveredPatch(
        operation_id=operation_id,
        status=ends_as,
        files=("a",),
        changes=(CHANGE,),
        reason="read from the journal",
    )
    return RecoveredPatches(recovered=(one,))


@pytest.mark.covers("UDS-2", "OP-4", "PATCH-6", "LEASE-2")
@pytest.mark.parametrize("ends_as", ["applied", "failed_rolled_back", "failed_partial", "unknown", None])
async def test_a_lost_patch_is_unknown_until_death_and_journal_prove_its_end(
    tmp_path: Path, ends_as: str | None
) -> None:
    async with core(tmp_path) as c:
        c.runner.answers["apply_patch"] = RunnerLost("cut")
        error = await c.refused(c.application.apply_patch("demo", PATCH, operation_key="k"), Code.RUNNER_UNAVAILABLE)
        operation_id = error.operation_id
        assert operation_id is not None
        assert (error.retryable, error.details) == (False, {"status": "unknown"})
        assert c.audit.lines()[-1] == ("mutation", "apply_patch", "unknown", "RUNNER_UNAVAILABLE")
        doubtful = await status(c, operation_id)
        assert (doubtful.status, doubtful.finished_at) == ("unknown", None)
        lost = c.link.lose()
        second = FakeRunner("run-2")
        if ends_as is not None:
            second.answers["recover_patches"] = recovered(operation_id, ends_as)
        c.link.up(second)
        again = await c.refused(c.application.apply_patch("demo", PATCH, operation_key="k"), Code.RUNNER_UNAVAILABLE)
        assert again.operation_id == operation_id
        assert not await c.is_free()
        assert second.count("recover_patches") == 0, "its predecessor may still be at work on the tree"
        c.link.prove_dead(lost)
        await until_free(c)
        found = await status(c, operation_id)
        assert found.status == (ends_as or "failed_rolled_back")
        assert [event.event for event in found.events] == ["minted", "finished"]
        assert found.events[1].reason.startswith("recovered: ")
        if ends_as == "applied":
            replayed = await apply(c, operation_key="k")
            assert (replayed.status, replayed.changes, replayed.replayed) == ("applied", (CHANGE,), True)
        else:
            code = Code.RUNNER_UNAVAILABLE if ends_as == "unknown" else Code.FILE_OPERATION_FAILED
            told = await c.refused(c.application.apply_patch("demo", PATCH, operation_key="k"), code)
            assert (told.operation_id, told.details["status"]) == (operation_id, found.status)
            assert told.details["replayed"] is True
        assert second.count("apply_patch") == 0


async def all_leases_back(c: Core) -> None:
    """Yields to whatever runs until it is so."""

    async def turn() -> None:
        while c.application._services.leases.held():
            await asyncio.to_thread(lambda: None)

    await soon(turn())


async def until_free(c: Core, workspace_id: str = "demo") -> None:
    await all_leases_back(c)
    assert await c.is_free(workspace_id)


@pytest.mark.covers("OP-4", "LEASE-2")
async def test_a_recovery_that_fails_is_tried_again_and_the_workspace_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(recovery, "LAST_RETRY_S", 0.01)
    async with core(tmp_path) as c:
        c.runner.answers["apply_patch"] = RunnerLost("cut")
        error = await c.refused(c.application.apply_patch("demo", PATCH), Code.RUNNER_UNAVAILABLE)
        lost = c.link.lose()
        second = FakeRunner("run-2")
        second.answers["recover_patches"] = RunnerError(ErrorCode.FILE_OPERATION_FAILED, "the disk is full")
        c.link.up(second)
        c.link.prove_dead(lost)
        await soon(second.asked_for("recover_patches").wait())
        assert not await c.is_free()
        assert any("not recovered" in reason for reason in (await soon(c.application.readiness())).reasons)
        assert error.operation_id is not None
        second.answers["recover_patches"] = recovered(error.operation_id, "applied")
        await until_free(c)
        assert (await status(c, error.operation_id)).status == "applied"
        assert (await soon(c.application.readiness())).ready


@pytest.mark.covers("OP-4", "LEASE-2")
async def test_a_recovery_whose_runner_is_lost_waits_for_the_proof_that_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(recovery, "LAST_RETRY_S", 0.01)
    async with core(tmp_path) as c:
        first = c.runner
        first.answers["apply_patch"] = RunnerError(ErrorCode.INTERNAL, "?", details={"status": "unknown"})
        first.answers["recover_patches"] = RunnerLost("cut while it recovered")
        error = await c.refused(c.application.apply_patch("demo", PATCH), Code.RUNNER_UNAVAILABLE)
        assert error.operation_id is not None
        await soon(first.asked_for("recover_patches").wait())
        lost = c.link.lose()
        second = FakeRunner("run-2")
        second.answers["recover_patches"] = recovered(error.operation_id, "applied")
        c.link.up(second)
        for _ in range(5):  # the other workspace goes on, and every turn gives recovery the chance to be wrong
            assert await c.is_free("other")
        assert second.count("recover_patches") == 0
        c.link.prove_dead(lost)
        await until_free(c)
        assert (await status(c, error.operation_id)).status == "applied"


@pytest.mark.covers("OP-4")
@pytest.mark.parametrize("fault", [{"status": "unknown"}, {"error_id": "err_1"}])
async def test_a_runner_that_lives_and_does_not_know_is_asked_for_its_journal(
    tmp_path: Path, fault: dict[str, Any]
) -> None:
    async with core(tmp_path) as c:
        c.runner.answers["apply_patch"] = RunnerError(ErrorCode.INTERNAL, "the helper died", details=fault)
        c.runner.hold["recover_patches"] = asyncio.Event()
        error = await c.refused(c.application.apply_patch("demo", PATCH), Code.RUNNER_UNAVAILABLE)
        assert error.operation_id is not None
        assert not await c.is_free()
        c.runner.answers["recover_patches"] = recovered(error.operation_id, "failed_rolled_back")
        c.runner.hold["recover_patches"].set()
        await until_free(c)
        assert (await status(c, error.operation_id)).status == "failed_rolled_back"


@pytest.mark.covers("OP-4")
async def test_an_operation_that_a_crash_left_open_is_closed_before_the_next_start_serves(tmp_path: Path) -> None:
    lost, gone = await crashed_with_open_operations(tmp_path)
    one = Core(tmp_path, {"demo": WRITE, "fresh": WRITE})
    one.link.first.answers["recover_patches"] = recovered(lost, "applied")
    await soon(one.application.start())
    try:
        assert one.runner.count("recover_patches") == 1, "only where there is something to recover"
        found = await status(one, lost)
        assert (found.status, found.changes) == ("applied", (CHANGE,))
        await one.refused(one.application.operation_status(operation_id=gone), Code.OPERATION_NOT_FOUND)
        assert await one.is_free()
        one.write({"demo": WRITE, "other": WRITE})
        one.runner.answers["recover_patches"] = recovered(gone, "failed_rolled_back")
        await soon(one.application.reload())
        assert (await status(one, gone)).status == "failed_rolled_back", "its workspace came back, and its journal told"
        assert await one.is_free("other")
    finally:
        await soon(one.application.close())


@pytest.mark.covers("OP-4", "LEASE-2")
async def test_a_workspace_that_cannot_be_recovered_at_start_is_held_while_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(recovery, "LAST_RETRY_S", 0.01)
    lost, _ = await crashed_with_open_operations(tmp_path)
    one = Core(tmp_path, {"demo": WRITE, "fresh": WRITE})
    one.link.first.answers["recover_patches"] = RunnerError(ErrorCode.FILE_OPERATION_FAILED, "no")
    await soon(one.application.start())
    try:
        busy = await one.refused(one.application.exec_command("demo", ("true",)), Code.WORKSPACE_BUSY)
        assert busy.details["holder"] == {"kind": "patch", "id": lost}
        assert await one.is_free("fresh")
        one.runner.answers["recover_patches"] = recovered(lost, "applied")
        await until_free(one)
    finally:
        await soon(one.application.close())


async def crashed_with_open_operations(tmp_path: Path) -> tuple[str, str]:
    """Ids of two operations, in `demo` and `other`, whose gateway died before their end was recorded."""
    ids = []
    async with core(tmp_path) as c:
        for workspace_id in ("demo", "other"):
            c.runner.answers["apply_patch"] = RunnerLost("cut")
            error = await c.refused(c.application.apply_patch(workspace_id, PATCH), Code.RUNNER_UNAVAILABLE)
            assert error.operation_id is not None
            ids.append(error.operation_id)
        c.link.prove_dead = lambda instance_id: None  # type: ignore[method-assign]
    return ids[0], ids[1]


# --- a ledger that cannot be written ----------------------------------------------------------------------------------
def fail_writes(application: Application, monkeypatch: pytest.MonkeyPatch, *, after: int = 0) -> None:
    """Every write of the ledger from the one after `after` on fails, until the patch is undone."""
    database, real, seen = application._database, application._database.write, [0]

    async def write(job: Any, *, silent: bool = False) -> Any:
        seen[0] += 1
        if seen[0] > after:
            raise StoreFailed("database or disk is full")
        return await real(job, silent=silent)

    monkeypatch.setattr(database, "write", write)


@pytest.mark.covers("OP-1", "LEASE-2")
async def test_a_patch_that_cannot_be_minted_does_not_run(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        with pytest.MonkeyPatch.context() as patched:
            fail_writes(c.application, patched)
            error = await c.refused(c.application.apply_patch("demo", PATCH), Code.FILE_OPERATION_FAILED)
            assert (error.retryable, error.operation_id) == (True, None)
            assert c.runner.count("apply_patch") == 0
            assert "ledger" in (await soon(c.application.readiness())).reasons[0]
        assert await c.is_free()
        await apply(c)


@pytest.mark.covers("OP-4", "LEASE-2")
async def test_an_end_that_cannot_be_recorded_holds_the_workspace_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(recovery, "LAST_RETRY_S", 0.01)
    async with core(tmp_path) as c:
        c.runner.answers["apply_patch"] = APPLIED
        # Recovery is tried again at once; it may not ask before its answer is known.
        c.runner.hold["recover_patches"] = asyncio.Event()
        with pytest.MonkeyPatch.context() as patched:
            fail_writes(c.application, patched, after=1)
            error = await c.refused(c.application.apply_patch("demo", PATCH), Code.FILE_OPERATION_FAILED)
            assert error.operation_id is not None
            assert error.details == {"status": "applied", "reason": "ledger_not_writable"}
            c.runner.answers["recover_patches"] = recovered(error.operation_id, "applied")
            c.runner.hold["recover_patches"].set()
            assert not await c.is_free()
        await until_free(c)
        found = await status(c, error.operation_id)
        assert (found.status, found.changes) == ("applied", (CHANGE,))


@pytest.mark.covers("POL-5", "PATCH-6", "LEASE-2")
@pytest.mark.parametrize("doubt", [False, True], ids=["under way", "in doubt"])
@pytest.mark.parametrize("moved", [True, False], ids=["another root", "removed and back"])
async def test_a_reload_waits_with_a_workspace_whose_last_patch_has_not_ended(
    tmp_path: Path, doubt: bool, moved: bool
) -> None:
    """Both roots would use one journal, and the recovery of the one would close the operation of the other."""
    async with core(tmp_path) as c:
        c.runner.hold["apply_patch"] = asyncio.Event()
        if doubt:
            c.runner.answers["apply_patch"] = RunnerLost("cut")
        task = asyncio.ensure_future(c.application.apply_patch("demo", PATCH))
        await soon(c.runner.asked_for("apply_patch").wait())
        if doubt:
            c.runner.hold["apply_patch"].set()
            await c.refused(task, Code.RUNNER_UNAVAILABLE)
        if moved:
            (tmp_path / "moved").mkdir()
            c.write({"demo": {**WRITE, "root": str(tmp_path / "moved")}, "new": WRITE})
        else:
            c.write({"other": WRITE})
            await soon(c.application.reload())
            c.write({"demo": WRITE, "new": WRITE})
        with pytest.raises(StartFailed, match=r"op_.*reload again in a moment"):
            await soon(c.application.reload())
        await c.refused(c.application.exec_command("new", ("true",)), Code.WORKSPACE_NOT_FOUND)
        lock_directory(str(c.root("new")), "root").release()
        if doubt:
            lost = c.link.lose()
            c.link.up(FakeRunner("run-2"))
            c.link.prove_dead(lost)
        else:
            c.runner.hold["apply_patch"].set()
            assert (await soon(task)).status == "applied"
        await all_leases_back(c)
        await soon(c.application.reload())
        assert await c.is_free()
        assert (await apply(c)).status == "applied"


@pytest.mark.covers("UDS-2", "UDS-3", "LEASE-2")
async def test_a_patch_that_meets_a_fault_of_a_runner_in_this_process_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(request: api.Message) -> Any:
        raise OSError(5, "the disk of /somewhere")

    async with core(tmp_path) as c:
        monkeypatch.setattr(c.runner, "apply_patch", broken)
        monkeypatch.setattr(c.runner, "recover_patches", broken)
        error = await c.refused(c.application.apply_patch("demo", PATCH), Code.RUNNER_UNAVAILABLE)
        assert error.operation_id is not None
        assert "somewhere" not in str(error.to_structured())
        assert (await status(c, error.operation_id)).status == "unknown"
        assert not await c.is_free(), "its journal was not read yet"
        monkeypatch.undo()
        await until_free(c)
        assert (await status(c, error.operation_id)).status == "failed_rolled_back"
