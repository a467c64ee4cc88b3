"""Works and their instructions: opened, claimed and finished by an agent, written and stopped by a user (WORK-1 to -3).

A work of a workspace that is no longer registered is not found. Refuses to know: the rules (`gateway.steering`), HTTP,
tools. Called by the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from gateway import steering
from gateway.answers import (
    ClaimAnswer,
    CompleteAnswer,
    Coordination,
    FinishAnswer,
    IntentAnswer,
    IntentOutline,
    SteerStatus,
    StopAnswer,
    WorkListed,
    WorkOpened,
)
from gateway.errors import Code, ToolError
from gateway.policy import Action
from gateway.ports import AuditRecord
from gateway.steering import Delivery, IntentKind
from gateway.store.work_rows import intent_not_found, work_not_found
from gateway.store.works import WorkStore
from gateway.use_cases.patching import stored
from gateway.use_cases.services import Services
from runner.api import RunnerError, RunnerLost, TerminateWorkspace

STOPPED = "The user stopped what runs in this workspace. Ask what to do before you go on."


class Works:
    """One a gateway. Every method raises `ToolError`: WORK_NOT_FOUND or INTENT_NOT_FOUND for an unknown id,
    FILE_OPERATION_FAILED where the store cannot be used, and what its own text names. Safe to cancel."""

    def __init__(self, services: Services, store: WorkStore) -> None:
        self._services = services
        self._store = store

    # --- the agent's side ---------------------------------------------------------------------------------------------
    async def open(self, workspace_id: str, title: str | None) -> WorkOpened:
        """Raises the decisions' codes, INVALID_ARGUMENT."""
        self._services.decide("work_open", workspace_id, Action.READ)
        if title is not None and len(title) > steering.MAX_TITLE_CHARS:
            raise _invalid("title", f"has more than {steering.MAX_TITLE_CHARS} characters: shorten it")
        work_id = self._services.ids.new("work")
        await stored(self._store.open(work_id, workspace_id, title))
        self._audit("work_open", workspace_id, work_id=work_id)
        return WorkOpened(work_id=work_id, workspace_id=workspace_id, state="active")

    async def status(self, work_id: str) -> SteerStatus:
        await self._workspace(work_id)
        return await stored(self._store.status(work_id))

    async def coordination(self, work_id: str, workspace_id: str | None = None) -> Coordination:
        """The hint. `workspace_id`: the work has to be of this one (INVALID_ARGUMENT)."""
        own = await self._workspace(work_id)
        if workspace_id not in (None, own):
            raise _invalid("work_id", f'is of workspace "{own}", and this call is about "{workspace_id}": leave it out')
        status = await stored(self._store.status(work_id))
        return Coordination(work_id=work_id, pending_user_items=status.queued, queue_revision=status.queue_revision)

    async def claim_next(self, work_id: str) -> ClaimAnswer:
        """Raises WORK_CLOSED."""
        workspace_id = await self._workspace(work_id)
        item = await stored(self._store.claim_next(work_id))
        if item is not None:
            self._audit("steer_claim_next", workspace_id, work_id=work_id, intent_id=item.intent_id)
        return ClaimAnswer(item=item)

    async def complete(self, work_id: str, intent_id: str, outcome: Literal["done", "blocked"]) -> CompleteAnswer:
        """Raises INTENT_NOT_EDITABLE."""
        workspace_id = await self._workspace(work_id)
        await stored(self._store.complete(work_id, intent_id, outcome))
        self._audit("steer_complete", workspace_id, work_id=work_id, intent_id=intent_id)
        return CompleteAnswer(work_id=work_id, intent_id=intent_id, state=outcome)

    async def finish(self, work_id: str) -> FinishAnswer:
        workspace_id = await self._workspace(work_id)
        answer = await stored(self._store.finish(work_id))
        self._audit("work_finish", workspace_id, work_id=work_id)
        return answer

    # --- the user's side ----------------------------------------------------------------------------------------------
    async def listed(self, workspace_id: str | None) -> tuple[WorkListed, ...]:
        """Newest first. Raises WORKSPACE_NOT_FOUND."""
        if workspace_id is not None:
            self._services.registry.workspace(workspace_id)
        found = await stored(self._store.works(workspace_id))
        return tuple(work for work in found if work.workspace_id in self._services.registry.workspaces)

    async def shown(self, work_id: str) -> WorkListed:
        await self._workspace(work_id)
        return await stored(self._store.work(work_id))

    async def intents(self, work_id: str) -> tuple[IntentAnswer, ...]:
        await self._workspace(work_id)
        return await stored(self._store.intents(work_id))

    async def outlines(self, work_id: str, body_chars: int) -> tuple[IntentOutline, ...]:
        """As `intents`, with the beginnings of the bodies."""
        await self._workspace(work_id)
        return await stored(self._store.outlines(work_id, body_chars))

    async def intent(self, intent_id: str) -> IntentAnswer:
        await self._find_intent(intent_id)
        return await stored(self._store.intent(intent_id))

    async def draft(self, work_id: str, body: str, kind: IntentKind, delivery: Delivery) -> IntentAnswer:
        """Raises WORK_CLOSED, INVALID_ARGUMENT."""
        workspace_id = await self._workspace(work_id)
        _check_body(body)
        if kind == "stop_notice":
            raise _invalid("kind", "cannot be stop_notice: a stop writes that itself")
        intent_id = self._services.ids.new("int")
        drafted = await stored(self._store.draft(intent_id, work_id, body, kind, delivery))
        self._audit("inbox_draft", workspace_id, work_id=work_id, intent_id=intent_id)
        return drafted

    async def edit(self, intent_id: str, revision: int, body: str, delivery: Delivery | None) -> IntentAnswer:
        """Raises INTENT_ALREADY_CLAIMED, INTENT_NOT_EDITABLE, INTENT_REVISION_CONFLICT, WORK_CLOSED,
        INVALID_ARGUMENT."""
        _check_body(body)
        return await self._changed(
            "inbox_edit", intent_id, lambda: self._store.edit(intent_id, revision, body, delivery)
        )

    async def queue(self, intent_id: str, revision: int) -> IntentAnswer:
        """As `edit`."""
        return await self._changed("inbox_queue", intent_id, lambda: self._store.queue(intent_id, revision))

    async def cancel(self, intent_id: str, revision: int | None = None) -> IntentAnswer:
        """Raises INTENT_ALREADY_CLAIMED, INTENT_NOT_EDITABLE, and INTENT_REVISION_CONFLICT where another revision than
        the present one is named."""
        return await self._changed("inbox_cancel", intent_id, lambda: self._store.cancel(intent_id, revision))

    async def reorder(
        self, work_id: str, intent_ids: Sequence[str], queue_revision: int | None = None
    ) -> tuple[IntentAnswer, ...]:
        """Raises INTENT_ALREADY_CLAIMED, INTENT_NOT_EDITABLE, INVALID_ARGUMENT, and INTENT_REVISION_CONFLICT where
        another revision of the queue than the present one is named."""
        workspace_id = await self._workspace(work_id)
        ordered = await stored(self._store.reorder(work_id, intent_ids, queue_revision))
        self._audit("inbox_reorder", workspace_id, work_id=work_id)
        return ordered

    async def stop(self, work_id: str, reason: str | None) -> StopAnswer:
        """Leaves the notice, then ends every command of the work's workspace and waits for their death. Raises
        WORK_CLOSED, INVALID_ARGUMENT, RUNNER_UNAVAILABLE (the notice stands; stop again)."""
        workspace_id = await self._workspace(work_id)
        if reason is not None:
            _check_body(reason, "reason", steering.MAX_REASON_BYTES)
        # A task of its own: a user who closes the page after pressing stop has stopped it all the same.
        task = asyncio.get_running_loop().create_task(self._stop(work_id, workspace_id, reason), name="stop")
        self._services.keep(task)
        return await asyncio.shield(task)

    async def cancel_work(self, work_id: str) -> WorkListed:
        """Raises WORK_CLOSED."""
        workspace_id = await self._workspace(work_id)
        work = await stored(self._store.cancel_work(work_id))
        self._audit("inbox_cancel_work", workspace_id, work_id=work_id)
        return work

    async def _stop(self, work_id: str, workspace_id: str, reason: str | None) -> StopAnswer:
        notice = await stored(self._store.notice(self._services.ids.new("int"), work_id, reason or STOPPED))
        killed = await self._kill(workspace_id)
        self._audit("inbox_stop", workspace_id, work_id=work_id, intent_id=notice.intent_id)
        return StopAnswer(killed=killed, intent=notice)

    # --- inside -------------------------------------------------------------------------------------------------------
    async def _changed(self, tool: str, intent_id: str, change: Callable[[], Awaitable[IntentAnswer]]) -> IntentAnswer:
        await self._find_intent(intent_id)
        changed = await stored(change())
        self._audit(tool, changed.workspace_id, intent_id=intent_id)
        return changed

    async def _find_intent(self, intent_id: str) -> None:
        """It is there for callers."""
        if len(intent_id) > 200:
            raise intent_not_found(intent_id)
        if await stored(self._store.workspace_of_intent(intent_id)) not in self._services.registry.workspaces:
            raise intent_not_found(intent_id)

    async def _workspace(self, work_id: str) -> str:
        """Of a work that is there for callers."""
        if len(work_id) > 200:
            raise work_not_found(work_id)
        workspace_id = await stored(self._store.workspace_of(work_id))
        if workspace_id not in self._services.registry.workspaces:
            raise work_not_found(work_id)
        return workspace_id

    async def _kill(self, workspace_id: str) -> int:
        runner, _ = self._services.present_runner()
        try:
            ended = await runner.terminate_workspace(TerminateWorkspace(workspace_id=workspace_id))
        except RunnerLost:
            # What a lost runner ran dies with it (PROC-7), but how much that was is not known here.
            raise ToolError(
                Code.RUNNER_UNAVAILABLE,
                f'the runner was lost while it ended the commands of workspace "{workspace_id}", which die with it: '
                "the notice stands",
                retryable=True,
            ) from None
        except RunnerError as error:
            raise ToolError.from_runner(error) from None
        return len(ended.process_ids)

    def _audit(self, tool: str, workspace_id: str, **ids: str) -> None:
        self._services.audit.record(AuditRecord("mutation", tool, workspace_id, "done", None, ids))


def _check_body(body: str, name: str = "body", most: int = steering.MAX_INTENT_BYTES) -> None:
    size = len(body.encode())
    if not body.strip():
        raise _invalid(name, "is empty: write what is to be done")
    if size > most:
        raise _invalid(name, f"has {size} bytes, more than the {most} that are taken: shorten it")


def _invalid(argument: str, problem: str) -> ToolError:
    return ToolError(Code.INVALID_ARGUMENT, f'argument "{argument}" {problem}', details={"argument": argument})
