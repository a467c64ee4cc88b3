"""The runner's patch engine: a warm helper process for each workspace, asked over pipes (PATCH-4).

Helpers are started when first needed, at most `max_helpers` at once; the one idle longest makes room, and one that is
idle for `idle_s` ends. A helper that dies is replaced. If it dies during an operation, the new one reads the journal
and the answer is what that proves: applied, rolled back, or an error that says it is unknown. What had begun to write
is never run again.

It knows processes and lines, no patch and no file. Joined by `runner.__main__`.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from runner.api import (
    ApplyPatch,
    ErrorCode,
    PatchApplied,
    RecoveredPatch,
    RecoveredPatches,
    RecoverPatches,
    RunnerError,
)

REQUEST_TIMEOUT_S = 60.0
"""Far beyond what the helper's own limits let a patch cost; a helper that is stopped must not hold the lease longer."""
START_TIMEOUT_S = 20.0
END_GRACE_S = 2.0
CLOSE_WAIT_S = 3.0
MAX_ANSWER_BYTES = 32 * 1024 * 1024
MAX_HELPERS = 8
IDLE_S = 300.0
T = TypeVar("T")
_PASSING = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The machine is short of something: it says nothing of the program."""
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")


def helper_command() -> tuple[str, ...]:
    """Interpreter and program, isolated from the environment and from installed packages."""
    return (sys.executable, "-I", "-S", "-B", "-X", "frozen_modules=on", "-X", "utf8", _PROGRAM)


class HelperLost(Exception):
    """The helper ended before it answered."""


class NotExecutable(Exception):
    """The helper's program could not be started at all."""


class _Helper:
    """One running helper process. Requests take turns."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._next_id = 0
        self._ended = False
        self.confinement: Mapping[str, str] = {}

    @classmethod
    async def start(cls, command: Sequence[str], root: str, journal_dir: str, liveness: Sequence[int]) -> _Helper:
        """Raises `RunnerError` where it cannot start (RUNNER_UNAVAILABLE; FILE_OPERATION_FAILED for a root that cannot
        be opened), `NotExecutable` where it is no program."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                root,
                journal_dir,
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={},
                cwd="/",
                start_new_session=True,
                pass_fds=liveness,
                limit=MAX_ANSWER_BYTES,
            )
        except OSError as error:
            if error.errno in _PASSING:
                raise _unavailable(f"no process can be started ({error.strerror}); try again later") from error
            raise NotExecutable(error.strerror) from error
        helper = cls(process)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                first = await helper._line()
        except (HelperLost, TimeoutError):
            await helper.end()
            raise _unavailable("it ended before it was ready, or was not ready in time") from None
        except BaseException:
            await helper.end()
            raise
        if "hello" not in first:
            await helper.end()
            raise _failed_start(first["failed"])
        helper.confinement = first["hello"]["confinement"]
        return helper

    @property
    def alive(self) -> bool:
        return self._process.returncode is None and not self._ended

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request. Raises `HelperLost`, also where it took longer than REQUEST_TIMEOUT_S."""
        assert self._process.stdin is not None
        self._next_id += 1
        line = json.dumps({"id": self._next_id, **request}, separators=(",", ":")).encode() + b"\n"
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                self._process.stdin.write(line)
                await self._process.stdin.drain()
                answer = await self._line()
        except TimeoutError:
            raise HelperLost("it did not answer in time") from None
        except (ConnectionError, BrokenPipeError) as error:
            raise HelperLost(str(error)) from None
        if answer.pop("id", None) != self._next_id:
            raise HelperLost("it answered another request")
        self._ended = bool(answer.pop("ends", False))
        return answer

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
            if not line.endswith(b"\n"):
                raise HelperLost("it ended")
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise HelperLost("its answer is too long or no JSON") from None
        return answer

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def end(self) -> None:
        """End of input, then SIGKILL after a grace; returns once it is reaped. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_GRACE_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        except asyncio.CancelledError:
            self.kill()
            raise


class _Slot:
    """The place of one workspace's helper. `lock` is held while a request is under way."""

    def __init__(self, root: str, journal_dir: str) -> None:
        self.root = root
        self.journal_dir = journal_dir
        self.lock = asyncio.Lock()
        self.helper: _Helper | None = None
        self.users = 0
        self.idle_timer: asyncio.TimerHandle | None = None


class PatchHelperEngine:
    """Implements `runner.ports.PatchEngine`.

    `command`: interpreter and program of the helper; root, journal directory and our pid are added. `max_helpers`: that
    are kept running. `liveness_fd`: inherited by every helper; its other end reads EOF once all of them are gone, so
    that nobody recovers a journal while a helper whose runner was killed may still write. Use from one event loop.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] | None = None,
        liveness_fd: int | None = None,
        max_helpers: int = MAX_HELPERS,
        idle_s: float = IDLE_S,
    ) -> None:
        self._command = tuple(command or helper_command())
        self._liveness = () if liveness_fd is None else (liveness_fd,)
        self._executable = True
        self._max_helpers = max_helpers
        self._idle_s = idle_s
        self._slots: dict[tuple[str, str], _Slot] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def available(self) -> bool:
        """False once the program could not be executed."""
        return self._executable

    async def apply_patch(self, request: ApplyPatch) -> PatchApplied:
        """Raises `RunnerError`; `details.status` says what became of a patch whose commit had begun.

        Cancelling the call does not undo or stop the patch.
        """
        asked = {
            "method": "apply",
            "patch": request.patch,
            "expected_versions": request.expected_versions,
            "check_only": request.check_only,
            "operation_id": request.operation_id,
            "protect": request.protect,
        }
        task = self._start(self._apply(request, asked))
        return await asyncio.shield(task)

    async def recover_patches(self, request: RecoverPatches) -> RecoveredPatches:
        """Every operation that left a journal, finished or not. Idempotent: asked again before the next patch, the
        answer is the same. An operation that is not listed has changed nothing. Raises `RunnerError`."""
        task = self._start(self._recover(request.workspace.root, request.journal_dir))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Waits a bounded time for what is under way, then ends all helpers. Idempotent.

        A patch that takes longer is cut off; its journal tells the next start what to do.
        """
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_WAIT_S)
        for slot in self._slots.values():
            if slot.helper is not None and slot.users:
                slot.helper.kill()
        slots, self._slots = list(self._slots.values()), {}
        for slot in slots:
            await self._end(slot)

    # --- one request --------------------------------------------------------------------------------------------------
    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of its own: a patch under way must reach its end, whoever stops waiting for it."""
        if self._closed:
            work.close()
            raise RunnerError(ErrorCode.RUNNER_UNAVAILABLE, "the patch engine is closed.")
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # seen, even if nobody waits any more

    async def _apply(self, request: ApplyPatch, asked: Mapping[str, Any]) -> PatchApplied:
        slot = await self._enter(request.workspace.root, request.journal_dir)
        try:
            try:
                return PatchApplied.model_validate(await self._ask(slot, asked))
            except HelperLost as lost:
                if not request.check_only and (applied := await self._truth(slot, request.operation_id or "", lost)):
                    return applied
            # It had not begun to write: most likely it ended while it was idle, and now there is a new one.
            try:
                return PatchApplied.model_validate(await self._ask(slot, asked))
            except HelperLost as lost:
                if request.check_only:
                    raise _unavailable(f"{lost}; nothing was written") from lost
                if applied := await self._truth(slot, request.operation_id or "", lost):
                    return applied
                raise _cut_off(lost, "failed_rolled_back", "it had not begun to write") from lost
        finally:
            self._leave(slot)

    async def _truth(self, slot: _Slot, operation_id: str, lost: HelperLost) -> PatchApplied | None:
        """What the journal says of an operation whose helper was lost. None: it has none, so nothing was written.
        Raises `RunnerError` for any outcome but `applied`."""
        try:
            recovered = RecoveredPatches.model_validate(await self._ask(slot, {"method": "recover"})).recovered
        except (HelperLost, RunnerError) as error:
            raise RunnerError(
                ErrorCode.FILE_OPERATION_FAILED,
                f"the patch helper was lost ({lost}) and its journal cannot be read ({error}). "
                "Whether the patch was applied is unknown until the next start; read the files.",
                details={"status": "unknown"},
            ) from error
        found = next((one for one in recovered if one.operation_id == operation_id), None)
        if found is None:
            return None
        if found.status == "applied":
            return PatchApplied(status="applied", files=found.files, changes=found.changes)
        raise _cut_off(lost, found.status, found.reason) from lost

    async def _recover(self, root: str, journal_dir: str) -> RecoveredPatches:
        slot = await self._enter(root, journal_dir)
        try:
            answer = await self._ask(slot, {"method": "recover"})
        except HelperLost as lost:
            raise _unavailable(f"it was lost during recovery ({lost}); recovery can be repeated") from lost
        finally:
            self._leave(slot)
        return RecoveredPatches(recovered=tuple([RecoveredPatch.model_validate(one) for one in answer["recovered"]]))

    async def _ask(self, slot: _Slot, request: Mapping[str, Any]) -> dict[str, Any]:
        """The result of one request by a live helper. Raises `HelperLost` where it was lost with the request, and
        `RunnerError` for the errors it answers."""
        answer: dict[str, Any] = {}
        for _ in range(2):
            if self._closed:
                raise _unavailable("the patch engine is being closed")
            if slot.helper is None or not slot.helper.alive:
                await self._drop(slot)
                slot.helper = await self._start_helper(slot)
            try:
                answer = await slot.helper.ask(request)
            except HelperLost:
                slot.helper.kill()
                await self._drop(slot)
                raise
            if "stale" not in answer:
                break
            # Another directory has taken the root's name; this helper did nothing and ends.
            await self._drop(slot)
        if "error" in answer:
            error = answer["error"]
            code = ErrorCode(error["code"])
            raise RunnerError(code, error["message"], retryable=error["retryable"], details=error["details"])
        if "result" not in answer:
            raise _unavailable("the workspace's root changes its place all the time")
        result: dict[str, Any] = answer["result"]
        return result

    async def _start_helper(self, slot: _Slot) -> _Helper:
        try:
            helper = await _Helper.start(self._command, slot.root, slot.journal_dir, self._liveness)
        except NotExecutable as error:
            self._executable = False
            raise _unavailable(f"it cannot be executed ({error})") from error
        self._executable = True
        return helper

    # --- helpers kept warm --------------------------------------------------------------------------------------------
    async def _enter(self, root: str, journal_dir: str) -> _Slot:
        slot = self._slots.setdefault((root, journal_dir), _Slot(root, journal_dir))
        slot.users += 1
        if slot.idle_timer is not None:
            slot.idle_timer.cancel()
            slot.idle_timer = None
        try:
            await slot.lock.acquire()
        except BaseException:
            slot.users -= 1
            raise
        # Last in the order of use, so that the first without users is the one idle longest.
        self._slots[root, journal_dir] = self._slots.pop((root, journal_dir), slot)
        await self._make_room(slot)
        return slot

    def _leave(self, slot: _Slot) -> None:
        slot.users -= 1
        slot.lock.release()
        if slot.users == 0 and not self._closed:
            slot.idle_timer = asyncio.get_running_loop().call_later(self._idle_s, self._retire, slot)

    async def _make_room(self, entering: _Slot) -> None:
        others = [slot for slot in self._slots.values() if slot.helper is not None and slot is not entering]
        idle = [slot for slot in others if slot.users == 0]
        for slot in idle[: max(0, len(others) + 1 - self._max_helpers)]:
            await self._end(slot)

    def _retire(self, slot: _Slot) -> None:
        if slot.users == 0 and not self._closed:
            task = asyncio.create_task(self._end(slot))
            self._under_way.add(task)
            task.add_done_callback(self._done)

    async def _end(self, slot: _Slot) -> None:
        async with slot.lock:
            if slot.idle_timer is not None:
                slot.idle_timer.cancel()
                slot.idle_timer = None
            await self._drop(slot)
            if slot.users == 0 and self._slots.get((slot.root, slot.journal_dir)) is slot:
                del self._slots[slot.root, slot.journal_dir]

    async def _drop(self, slot: _Slot) -> None:
        helper, slot.helper = slot.helper, None
        if helper is not None:
            await helper.end()


def _cut_off(lost: HelperLost, status: str, reason: str) -> RunnerError:
    return RunnerError(
        ErrorCode.FILE_OPERATION_FAILED,
        f"the patch helper was lost while it applied the patch ({lost}): {reason}.",
        retryable=status == "failed_rolled_back",
        details={"status": status},
    )


def _failed_start(failed: Mapping[str, str]) -> RunnerError:
    name = failed["errno"]
    if failed["of"] != "root" or getattr(errno, name, 0) in _PASSING:
        return _unavailable(f"{failed['message']} ({name})")
    closed = name in ("EACCES", "EPERM")
    remedy = "run chmod u+rwx on the workspace's root" if closed else "put the root back, or correct the registry"
    return RunnerError(
        ErrorCode.FILE_OPERATION_FAILED,
        f"the root of the workspace cannot be opened ({name}), so nothing was changed: the operator can {remedy}.",
        details={
            "reason": "root_unreadable" if closed else "root_replaced",
            "errno": name,
            "remedy": remedy,
        },
    )


def _unavailable(why: str) -> RunnerError:
    return RunnerError(
        ErrorCode.RUNNER_UNAVAILABLE, f"the patch helper is not available: {why}.", retryable=True, details={}
    )
