"""Holds: when a call waits, who may run it, once, and what is left of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from gateway.answers import ResumeAnswer
from gateway.errors import Code
from runner import api
from runner.api import ErrorCode, RunnerError, RunnerLost
from tests.gateway.core.application_rig import WRITE, Core, core, soon

CONFIRM: dict[str, object] = {**WRITE, "approvals": "confirm"}
PATCH = "*** Begin Patch\n*** Add File: a\n+marker-of-the-patch\n*** End Patch\n"
COMMAND = ("sh", "-c", "echo marker-of-the-command")


def held(base: Path, **more: Any) -> Any:
    return core(base, {"demo": CONFIRM, "off": WRITE, "ro": {"approvals": "confirm"}}, **more)


async def hold_of(c: Core, workspace_id: str = "demo", tool: str = "apply_patch", **more: Any) -> str:
    """The hold that answers a call of a workspace that asks for approvals."""
    call: Awaitable[Any]
    if tool == "apply_patch":
        call = c.application.apply_patch(workspace_id, more.pop("patch", PATCH), **more)
    else:
        call = c.application.exec_command(workspace_id, more.pop("command", COMMAND), **more)
    error = await c.refused(call, Code.APPROVAL_REQUIRED)
    assert error.approval_id is not None
    assert error.operation_id is None
    return error.approval_id


async def granted(c: Core, tool: str = "apply_patch", **more: Any) -> str:
    approval_id = await hold_of(c, tool=tool, **more)
    assert (await soon(c.application.approval_resolve(approval_id, "grant"))).state == "granted"
    return approval_id


async def resume(c: Core, approval_id: str) -> ResumeAnswer:
    answer = await soon(c.application.operation_resume(approval_id))
    assert isinstance(answer, ResumeAnswer)
    return answer


async def state_of(c: Core, approval_id: str) -> str:
    return (await soon(c.application.show_hold(approval_id))).state  # type: ignore[no-any-return]


def begun(c: Core) -> int:
    return c.runner.count("apply_patch") + c.runner.count("start_process")


# --- opening ----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("APPR-1", "APPR-6")
@pytest.mark.parametrize(
    ("tool", "same", "other"),
    [
        ("apply_patch", {"expected_versions": {}}, {"patch": PATCH + "\n"}),
        ("apply_patch", {}, {"expected_versions": {"a": "absent"}}),
        ("apply_patch", {}, {"operation_key": "k"}),
        ("exec_command", {"request_key": "k"}, {"tty": True}),
        ("exec_command", {"tty": False}, {"command": (*COMMAND, "")}),
    ],
)
async def test_the_same_request_is_held_once_and_another_one_apart(
    tool: str, same: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    async with held(tmp_path) as c:
        approval_id = await hold_of(c, tool=tool)
        assert await hold_of(c, tool=tool, **same) == approval_id
        assert await hold_of(c, tool=tool, **other) != approval_id
        await soon(c.application.approval_resolve(approval_id, "grant"))
        assert await hold_of(c, tool=tool) == approval_id
        assert begun(c) == 0
        assert ("decision", tool, "refused", "APPROVAL_REQUIRED") in c.audit.lines()


@pytest.mark.covers("APPR-1")
async def test_two_callers_at_once_share_one_hold(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        assert len(set(await asyncio.gather(*(hold_of(c) for _ in range(8))))) == 1


@pytest.mark.covers("APPR-1", "PATCH-3")
async def test_a_preview_and_a_replay_by_key_are_not_held(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        approval_id = await granted(c, operation_key="k")
        first = await resume(c, approval_id)
        assert first.apply_patch is not None
        again = await soon(c.application.apply_patch("demo", PATCH, operation_key="k"))
        assert (again.operation_id, again.replayed) == (first.apply_patch.operation_id, True)
        assert (await soon(c.application.apply_patch("demo", PATCH, check_only=True))).status == "checked"
        assert len(await soon(c.application.list_holds())) == 1


@pytest.mark.covers("APPR-2")
async def test_a_workspace_without_approvals_runs_at_once_and_a_hold_can_be_opened_for_it(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        process_id, _ = await c.exec("off")
        c.runner.exit(process_id)
        made = await soon(c.application.hold_patch("off", PATCH))
        assert made.state == "pending"
        assert (await soon(c.application.hold_patch("off", PATCH))).approval_id == made.approval_id
        assert c.runner.count("apply_patch") == 0
        await soon(c.application.approval_resolve(made.approval_id, "grant"))
        answer = await resume(c, made.approval_id)
        assert answer.apply_patch is not None
        assert answer.apply_patch.status == "applied"


@pytest.mark.covers("APPR-5", "POL-1")
async def test_what_the_profile_forbids_cannot_be_held(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        for call in (
            c.application.apply_patch("ro", PATCH),
            c.application.exec_command("ro", COMMAND),
            c.application.hold_patch("ro", PATCH),
            c.application.hold_exec("ro", COMMAND),
        ):
            assert (await c.refused(call, Code.UNAUTHORIZED)).approval_id is None
        assert await soon(c.application.list_holds()) == ()


@pytest.mark.covers("APPR-2")
async def test_a_call_that_could_never_run_is_not_held(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        app = c.application
        await c.refused(app.hold_exec("demo", ()), Code.INVALID_COMMAND)
        await c.refused(app.hold_exec("demo", ("a\0b",)), Code.INVALID_COMMAND)
        await c.refused(app.hold_patch("demo", "x" * (api.MAX_PATCH_BYTES + 1)), Code.INVALID_PATCH)
        await c.refused(app.hold_patch("demo", PATCH, {"a": "sha256:1"}), Code.INVALID_ARGUMENT)
        await c.refused(app.hold_patch("nope", PATCH), Code.WORKSPACE_NOT_FOUND)
        assert await soon(app.list_holds()) == ()


@pytest.mark.covers("APPR-6")
async def test_live_holds_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.store.approvals.MAX_LIVE_HOLDS", 3)
    async with held(tmp_path) as c:
        holds = [await hold_of(c, tool="exec_command", command=("true", str(n))) for n in range(3)]
        full = c.application.exec_command("demo", ("true", "3"))
        assert (await c.refused(full, Code.APPROVAL_CONFLICT)).details["reason"] == "too_many"
        await soon(c.application.approval_resolve(holds[0], "deny"))
        await hold_of(c, tool="exec_command", command=("true", "3"))


# --- deciding ---------------------------------------------------------------------------------------------------------
@pytest.mark.covers("APPR-3")
async def test_a_hold_is_decided_once(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        for first in ("grant", "deny"):
            approval_id = await hold_of(c)
            await soon(c.application.approval_resolve(approval_id, first))
            for second in ("grant", "deny"):
                error = await c.refused(c.application.approval_resolve(approval_id, second), Code.APPROVAL_CONFLICT)
                assert error.details["state"] == {"grant": "granted", "deny": "denied"}[first]
            if first == "grant":
                await resume(c, approval_id)
        for call in (c.application.approval_resolve("nope", "grant"), c.application.operation_resume("nope")):
            await c.refused(call, Code.APPROVAL_NOT_FOUND)


@pytest.mark.covers("APPR-3", "APPR-4")
async def test_only_a_granted_hold_runs(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        approval_id = await hold_of(c)
        error = await c.refused(c.application.operation_resume(approval_id), Code.APPROVAL_CONFLICT)
        assert error.details["state"] == "pending"
        await soon(c.application.approval_resolve(approval_id, "deny"))
        error = await c.refused(c.application.operation_resume(approval_id), Code.APPROVAL_CONFLICT)
        assert error.details["state"] == "denied"
        assert begun(c) == 0
        assert await hold_of(c) != approval_id


# --- resuming ---------------------------------------------------------------------------------------------------------
@pytest.mark.covers("APPR-4", "APPR-3")
@pytest.mark.parametrize("tool", ["apply_patch", "exec_command"])
async def test_a_resume_runs_once_and_later_ones_give_its_result(tool: str, tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        approval_id = await granted(c, tool)
        first = await resume(c, approval_id)
        assert first.state == "consumed"
        assert [await resume(c, approval_id) for _ in range(3)] == [first] * 3
        assert begun(c) == 1
        assert await hold_of(c, tool=tool) != approval_id, "a consumed hold was used for another call"


@pytest.mark.covers("APPR-4")
@pytest.mark.parametrize(("tool", "method"), [("apply_patch", "apply_patch"), ("exec_command", "start_process")])
async def test_of_two_resumes_at_once_one_runs_and_the_other_is_told(tool: str, method: str, tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        approval_id = await granted(c, tool)
        c.runner.hold[method] = asyncio.Event()
        first = asyncio.ensure_future(c.application.operation_resume(approval_id))
        await soon(c.runner.asked_for(method).wait())
        for _ in range(2):
            error = await c.refused(c.application.operation_resume(approval_id), Code.APPROVAL_CONFLICT)
            assert (error.details["state"], error.retryable) == ("resuming", True)
        c.runner.hold[method].set()
        answer = await soon(first)
        assert await resume(c, approval_id) == answer
        assert begun(c) == 1


@pytest.mark.covers("APPR-4")
async def test_many_resumes_in_the_same_instant_run_it_once(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        for round_ in range(5):
            approval_id = await granted(c, patch=PATCH + "\n" * round_)
            calls = [c.application.operation_resume(approval_id) for _ in range(6)]
            answers = await soon(asyncio.gather(*calls, return_exceptions=True))
            told = [a for a in answers if isinstance(a, ResumeAnswer)]
            assert told
            assert all(isinstance(a, ResumeAnswer) or a.code is Code.APPROVAL_CONFLICT for a in answers), answers
            assert all(answer == told[0] for answer in told)
            assert c.runner.count("apply_patch") == round_ + 1


@pytest.mark.covers("APPR-4")
async def test_a_caller_that_goes_away_changes_nothing(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        approval_id = await granted(c, "exec_command")
        c.runner.hold["start_process"] = asyncio.Event()
        first = asyncio.ensure_future(c.application.operation_resume(approval_id))
        await soon(c.runner.asked_for("start_process").wait())
        first.cancel()
        await asyncio.wait([first])
        c.runner.hold["start_process"].set()
        while await state_of(c, approval_id) != "consumed":
            await asyncio.to_thread(os.sched_yield)
        assert (await resume(c, approval_id)).exec_command is not None
        assert begun(c) == 1


@pytest.mark.covers("APPR-6", "LEASE-1")
@pytest.mark.parametrize("tool", ["apply_patch", "exec_command"])
async def test_a_busy_workspace_leaves_the_hold_granted(tool: str, tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        holder = (await resume(c, await granted(c, "exec_command", command=("sleep", "9")))).exec_command
        assert holder is not None
        approval_id = await granted(c, tool)
        for _ in range(2):
            error = await c.refused(c.application.operation_resume(approval_id), Code.WORKSPACE_BUSY)
            assert (error.approval_id, error.operation_id) == (approval_id, None)
            assert await state_of(c, approval_id) == "granted"
        c.runner.exit(holder.process_id)
        assert (await resume(c, approval_id)).state == "consumed"
        assert begun(c) == 2


@pytest.mark.covers("APPR-4")
async def test_a_runner_that_is_away_leaves_the_hold_granted(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        approval_id = await granted(c)
        runner = c.runner
        c.link.prove_dead(c.link.lose())
        await c.refused(c.application.operation_resume(approval_id), Code.RUNNER_UNAVAILABLE)
        assert await state_of(c, approval_id) == "granted"
        c.link.up(runner)
        await resume(c, approval_id)


@pytest.mark.covers("APPR-4", "APPR-5", "POL-5")
@pytest.mark.parametrize(
    ("after", "code"), [({"demo": {"approvals": "confirm"}}, "UNAUTHORIZED"), ({"off": WRITE}, "WORKSPACE_NOT_FOUND")]
)
async def test_a_right_that_is_gone_at_the_resume_is_the_result_for_good(
    after: dict[str, dict[str, object]], code: str, tmp_path: Path
) -> None:
    async with held(tmp_path) as c:
        for tool in ("apply_patch", "exec_command"):
            c.write({"demo": CONFIRM, "off": WRITE})
            await soon(c.application.reload())
            approval_id = await granted(c, tool)
            c.write(after)
            await soon(c.application.reload())
            first = await c.refused(c.application.operation_resume(approval_id), Code(code))
            assert first.approval_id == approval_id
            c.write({"demo": CONFIRM, "off": WRITE})
            await soon(c.application.reload())
            later = await c.refused(c.application.operation_resume(approval_id), Code(code))
            assert later.details == {**first.details, "replayed": True}
            assert await state_of(c, approval_id) == "consumed"
        assert begun(c) == 0


@pytest.mark.covers("APPR-4", "APPR-5")
async def test_a_grant_lets_one_call_through_and_changes_no_profile(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        before = await soon(c.application.workspace_info("demo"))
        await resume(c, await granted(c))
        assert await soon(c.application.workspace_info("demo")) == before
        await hold_of(c, patch=PATCH + "\n")


@pytest.mark.covers("APPR-4", "APPR-6")
@pytest.mark.parametrize(
    ("tool", "error"),
    [
        (
            "apply_patch",
            RunnerError(ErrorCode.INVALID_PATCH, "no marker-of-the-patch", details={"reason": "context_not_found"}),
        ),
        (
            "exec_command",
            RunnerError(
                ErrorCode.PROCESS_SPAWN_FAILED,
                "no marker-of-the-command",
                details={"stage": "exec", "errno": "ENOENT", "path": "marker-of-the-command"},
            ),
        ),
    ],
)
async def test_a_call_that_fails_has_its_error_as_the_result_without_words_of_the_request(
    tool: str, error: RunnerError, tmp_path: Path
) -> None:
    async with held(tmp_path) as c:
        c.runner.answers[{"apply_patch": "apply_patch", "exec_command": "start_process"}[tool]] = error
        approval_id = await granted(c, tool)
        first = await c.refused(c.application.operation_resume(approval_id), Code(error.code.value))
        later = await c.refused(c.application.operation_resume(approval_id), Code(error.code.value))
        assert "marker" in first.message
        assert "marker" not in later.message + str(later.details)
        assert later.details["replayed"] is True
        assert (later.operation_id, later.approval_id) == (first.operation_id, approval_id)
        assert begun(c) == 1


@pytest.mark.covers("APPR-4", "UDS-2")
async def test_a_command_that_may_have_started_is_told_so_and_never_started_again(tmp_path: Path) -> None:
    async with held(tmp_path) as c:
        c.runner.answers["start_process"] = RunnerLost("gone")
        approval_id = await granted(c, "exec_command")
        answer = await resume(c, approval_id)
        assert answer.exec_command is not None
        assert answer.exec_command.dispatch_status == "unknown"
        assert await resume(c, approval_id) == answer
        assert begun(c) == 1


@pytest.mark.covers("APPR-4", "OP-4")
@pytest.mark.parametrize("applied", [True, False])
async def test_a_patch_in_doubt_gets_its_result_from_the_ledger_once_that_is_known(
    applied: bool, tmp_path: Path
) -> None:
    async with held(tmp_path) as c:
        approval_id = await granted(c)
        c.runner.hold["apply_patch"] = asyncio.Event()
        c.runner.answers["apply_patch"] = RunnerLost("gone")
        call = asyncio.ensure_future(c.application.operation_resume(approval_id))
        await soon(c.runner.asked_for("apply_patch").wait())
        lost = c.link.lose()
        c.link.first.hold["apply_patch"].set()
        error = await c.refused(call, Code.RUNNER_UNAVAILABLE)
        operation_id = error.operation_id
        assert operation_id is not None
        assert error.approval_id == approval_id
        doubt = await c.refused(c.application.operation_resume(approval_id), Code.APPROVAL_AMBIGUOUS)
        assert (doubt.operation_id, doubt.retryable) == (operation_id, True)
        assert await state_of(c, approval_id) == "resuming"

        successor = type(c.link.first)("run-2")
        if applied:
            told = api.RecoveredPatch(operation_id=operation_id, status="applied", files=("a",), reason="finished")
            successor.answers["recover_patches"] = api.RecoveredPatches(recovered=(told,))
        c.link.up(successor)
        c.link.prove_dead(lost)
        while not (await c.application.readiness()).ready:
            await asyncio.to_thread(os.sched_yield)
        if applied:
            answer = await resume(c, approval_id)
            assert answer.apply_patch is not None
            assert (answer.apply_patch.operation_id, answer.apply_patch.files) == (operation_id, ("a",))
            assert await resume(c, approval_id) == answer
        else:
            for _ in range(2):
                error = await c.refused(c.application.operation_resume(approval_id), Code.FILE_OPERATION_FAILED)
                assert (error.operation_id, error.details["status"]) == (operation_id, "failed_rolled_back")
        assert c.link.first.count("apply_patch") + successor.count("apply_patch") == 1
        assert await state_of(c, approval_id) == "consumed"


@pytest.mark.covers("APPR-4", "APPR-3")
@pytest.mark.parametrize("tool", ["apply_patch", "exec_command"])
async def test_a_result_that_cannot_be_written_is_told_and_written_by_the_next_resume(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held(tmp_path) as c:
        approval_id = await granted(c, tool)
        with monkeypatch.context() as broken:
            fail_consuming(c, broken)
            first = await resume(c, approval_id)
            assert await state_of(c, approval_id) == "resuming"
            await c.refused(c.application.operation_resume(approval_id), Code.FILE_OPERATION_FAILED)
        assert await resume(c, approval_id) == first
        assert begun(c) == 1


def fail_consuming(c: Core, patch: pytest.MonkeyPatch) -> None:
    """The disk is full for what ends a hold, and for nothing else."""
    from gateway.store.database import StoreFailed

    async def consume(*_: object) -> bool:
        raise StoreFailed("disk full")

    patch.setattr(c.application._approvals._store, "consume", consume)


# --- what is left -----------------------------------------------------------------------------------------------------
def found_in_files(folder: Path, marker: str) -> list[str]:
    return [path.name for path in sorted(folder.glob("codespace.sqlite*")) if marker.encode() in path.read_bytes()]


@pytest.mark.covers("APPR-6")
@pytest.mark.parametrize("size", [10, 3_000, 300_000])
@pytest.mark.parametrize("end", ["deny", "consume", "fail"])
async def test_a_request_is_gone_from_the_database_file_once_its_hold_is_over(
    size: int, end: str, tmp_path: Path
) -> None:
    async with held(tmp_path) as c:
        kept = await hold_of(c, patch=f"kept-{size}")
        ids = []
        for number in range(12):
            patch = PATCH.replace("+marker", "+" + "x" * size + f"secret-{number}-")
            ids.append(await hold_of(c, patch=patch))
        data = c.base / "data"
        assert found_in_files(data, "secret-3-"), "the request is not in the file while its hold is live"
        if end == "fail":
            c.runner.answers["apply_patch"] = RunnerError(ErrorCode.INVALID_PATCH, "secret-3-", details={"reason": "x"})
        for approval_id in ids:
            await soon(c.application.approval_resolve(approval_id, "deny" if end == "deny" else "grant"))
            if end == "consume":
                await resume(c, approval_id)
            elif end == "fail":
                await c.refused(c.application.operation_resume(approval_id), Code.INVALID_PATCH)
        assert await asyncio.to_thread(found_in_files, data, "secret-") == []
        assert (await soon(c.application.show_hold(ids[0]))).request is None
        shown = await soon(c.application.show_hold(kept))
        assert shown.request["patch"] == f"kept-{size}"
        assert found_in_files(data, f"kept-{size}")


@pytest.mark.covers("APPR-6")
async def test_a_reader_in_the_way_delays_the_erasure_to_the_next_end(tmp_path: Path) -> None:
    import sqlite3

    async with held(tmp_path) as c:
        first, second = await hold_of(c, patch="secret-1-"), await hold_of(c, patch="secret-2-")
        reader = sqlite3.connect(c.base / "data" / "codespace.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM approvals").fetchone()
        await soon(c.application.approval_resolve(first, "deny"))
        assert found_in_files(c.base / "data", "secret-1-"), "the reader was not in the way"
        reader.close()
        await soon(c.application.approval_resolve(second, "deny"))
        assert found_in_files(c.base / "data", "secret-") == []
