"""kill -9 before and after every write and every effect of a hold's life: the successor gives the answer all the same.

A forked child lives through open, grant and resume, and is ended at its n-th point, for every n that it reaches: it is
killed, or told to end, which it does in order while what it was at goes on as far as it comes. The runner is a file to
which each call that is carried out adds a line, so that what runs twice is seen.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Code, ToolError
from gateway.store.database import Database
from runner import api
from tests.gateway.approvals.test_holds import COMMAND, CONFIRM, PATCH, found_in_files
from tests.gateway.core.application_rig import Core, core, soon
from tests.gateway.core.support import NOW, FakeRunner

Point = Callable[[], None]
MOST_POINTS = 60


def effects_in(base: Path) -> list[str]:
    """Ids of the calls that were carried out."""
    path = base / "effects"
    return path.read_text().split() if path.exists() else []


class FileRunner(FakeRunner):
    """Carries calls out by a line in a file that outlives us, and recovers patches from it."""

    def __init__(self, effects: Path, point: Point) -> None:
        super().__init__()
        self.effects, self.point = effects, point

    def _effect(self, name: str) -> None:
        self.point()
        with self.effects.open("a") as file:
            file.write(f"{name}\n")
        self.point()

    async def apply_patch(self, request: api.ApplyPatch) -> api.PatchApplied:
        await asyncio.to_thread(self._effect, str(request.operation_id))
        return api.PatchApplied(status="applied", files=("a",), changes=())

    async def recover_patches(self, request: api.RecoverPatches) -> api.RecoveredPatches:
        done = await asyncio.to_thread(effects_in, self.effects.parent)
        told = [api.RecoveredPatch(operation_id=o, status="applied", files=("a",), reason="finished") for o in done]
        return api.RecoveredPatches(recovered=tuple(told))

    async def start_process(self, request: api.StartProcess) -> api.ProcessStarted:
        await asyncio.to_thread(self._effect, request.process_id)
        self.running[request.process_id] = request.terms.workspace_id
        return api.ProcessStarted(process_id=request.process_id, started_at_utc=NOW)


def with_points(point: Point) -> None:
    """Makes every transaction a point before and after, and the emptying of the log another two."""
    transaction, erase = Database._transaction, Database._erase

    def watched(self: Database, job: Callable[[sqlite3.Connection], Any], tell: Callable[[], object] | None) -> Any:
        point()
        result = transaction(self, job, tell)
        point()
        return result

    def erasing(self: Database) -> bool:
        point()
        erased = erase(self)
        point()
        return erased

    Database._transaction = watched  # type: ignore[method-assign]
    Database._erase = erasing  # type: ignore[method-assign]


ENDED = 3
"""Exit status of a child that was told to end."""


def ended_at(number: int, base: Path, life: Callable[[Core], Any], ends: signal.Signals) -> bool:
    """Forks a gateway that gets the signal at its n-th point; False where it lived to the end."""
    child = os.fork()
    if child == 0:
        try:
            passed = 0

            def point() -> None:
                nonlocal passed
                passed += 1
                if passed == number:
                    os.kill(os.getpid(), ends)

            async def run() -> int:
                told = asyncio.Event()
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
                started = Core(base, {"demo": CONFIRM})
                started.link.first = FileRunner(base / "effects", point)
                await started.application.start()
                with_points(point)
                living = asyncio.ensure_future(life(started))
                telling = asyncio.ensure_future(told.wait())
                await asyncio.wait((living, telling), return_when=asyncio.FIRST_COMPLETED)
                if passed < number:
                    await living  # raises what went wrong
                    return 0
                await started.application.close()
                living.cancel()
                await asyncio.gather(living, return_exceptions=True)
                return ENDED

            os._exit(asyncio.run(run()))
        except BaseException:  # noqa: BLE001 - a child of a fork must not come back
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == ends == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) in (0, ENDED), "the child failed"
    return os.WEXITSTATUS(status) == ENDED


async def call(c: Core, tool: str) -> str:
    """Makes the held call; its hold."""
    made = c.application.apply_patch("demo", PATCH) if tool == "apply_patch" else None
    error = await c.refused(made or c.application.exec_command("demo", COMMAND), Code.APPROVAL_REQUIRED)
    assert error.approval_id is not None
    return error.approval_id


async def whole_life(c: Core, tool: str) -> None:
    approval_id = await call(c, tool)
    await c.application.approval_resolve(approval_id, "grant")
    await c.application.operation_resume(approval_id)


async def answer_after_restart(base: Path, tool: str) -> tuple[dict[str, Any] | str, dict[str, Any] | str]:
    """The successor goes on where the life was cut off; the results of two resumes, an error as its code."""
    async with core_of(base) as c:
        holds = await soon(c.application.list_holds())
        assert len(holds) <= 1
        approval_id = holds[0].approval_id if holds else await soon(call(c, tool))
        if holds and holds[0].state == "consumed":
            assert await asyncio.to_thread(found_in_files, base / "data", "marker-of-the-") == []
        if not holds or holds[0].state in ("pending", "granted", "resuming"):
            assert await soon(call(c, tool)) == approval_id, "a live hold was not reused"
        if not holds or holds[0].state == "pending":
            await soon(c.application.approval_resolve(approval_id, "grant"))
        first = await resumed(c, approval_id)
    async with core_of(base) as c:
        second = await resumed(c, approval_id)
        (hold,) = await soon(c.application.list_holds())
        assert hold.state == "consumed"
    assert await asyncio.to_thread(found_in_files, base / "data", "marker-of-the-") == []
    return first, second


def core_of(base: Path) -> Any:
    class Successor(Core):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.link.first = FileRunner(base / "effects", lambda: None)

    return core(base, {"demo": CONFIRM}, kind=Successor)


async def resumed(c: Core, approval_id: str) -> dict[str, Any] | str:
    try:
        answer = await soon(c.application.operation_resume(approval_id))
    except ToolError as error:
        return f"{error.code.value} {error.approval_id == approval_id}"
    return answer.model_dump(exclude_none=True)  # type: ignore[no-any-return]


@pytest.mark.timeout(120)
@pytest.mark.covers("APPR-3", "APPR-4", "APPR-5", "APPR-6", "OP-4")
@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("tool", ["apply_patch", "exec_command"])
def test_a_gateway_ended_at_any_point_of_a_hold_changes_no_answer(
    tool: str, ends: signal.Signals, tmp_path: Path
) -> None:
    cut, results = 0, []
    for number in range(1, MOST_POINTS):
        base = tmp_path / str(number)
        base.mkdir()
        if not ended_at(number, base, lambda c: whole_life(c, tool), ends):
            break
        cut += 1
        first, second = asyncio.run(answer_after_restart(base, tool))
        assert first == second, f"ended at point {number}"
        effects = effects_in(base)
        results.append((first if isinstance(first, str) else "done", len(effects)))
        if isinstance(first, dict) and tool == "apply_patch":
            assert [first["apply_patch"]["operation_id"]] == effects
        if isinstance(first, dict) and tool == "exec_command":
            assert [first["exec_command"]["process_id"]] == effects
    assert cut >= 10, "the child reached fewer points than a life has: the test has lost its aim"
    if ends is signal.SIGTERM:
        # Which of these it is at a point is a matter of how far it still came.
        expected = {
            ("done", 1),
            ("FILE_OPERATION_FAILED True", 0),
            ("APPROVAL_AMBIGUOUS True", 0),
            ("APPROVAL_AMBIGUOUS True", 1),
        }
        assert set(results) <= expected
        assert ("done", 1) in results
    elif tool == "apply_patch":
        # Minted, and cut off before the patch: the ledger says that it changed nothing, and it is never run again.
        assert set(results) == {("done", 1), ("FILE_OPERATION_FAILED True", 0)}
    else:
        # A command between its claim and its result may or may not have started: told so, and never started again.
        assert set(results) == {("done", 1), ("APPROVAL_AMBIGUOUS True", 0), ("APPROVAL_AMBIGUOUS True", 1)}
