"""Works and instructions through the application: who may do what, and what stays after a stop or a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.answers import IntentAnswer
from gateway.errors import Code
from gateway.steering import MAX_INTENT_BYTES, MAX_REASON_BYTES, Delivery
from gateway.use_cases.works import Works
from runner.api import RunnerLost
from tests.gateway.core.application_rig import WRITE, Core, core, soon


async def opened(c: Core, workspace_id: str = "demo", title: str | None = None) -> str:
    return (await soon(c.application.work_open(workspace_id, title))).work_id  # type: ignore[no-any-return]


async def queued(c: Core, work_id: str, body: str, delivery: Delivery = "next_checkpoint") -> IntentAnswer:
    draft = await soon(c.application.inbox.draft(work_id, body, "follow_up", delivery))
    answer = await soon(c.application.inbox.queue(draft.intent_id, draft.revision))
    assert isinstance(answer, IntentAnswer)
    return answer


async def claimed(c: Core, work_id: str) -> str | None:
    """What the next item says, completed at once."""
    item = (await soon(c.application.steer_claim_next(work_id))).item
    if item is None:
        return None
    await soon(c.application.steer_complete(work_id, item.intent_id, "done"))
    return item.content  # type: ignore[no-any-return]


def inbox(c: Core) -> Works:
    return c.application.inbox


@pytest.mark.covers("WORK-1")
async def test_a_work_is_of_a_registered_workspace(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        await c.refused(c.application.work_open("nope"), Code.WORKSPACE_NOT_FOUND)
        await c.refused(c.application.work_open("demo", "x" * 1001), Code.INVALID_ARGUMENT)
        work_id = await opened(c, "ro", "read it")
        assert (await soon(inbox(c).shown(work_id))).title == "read it"
        c.write({"demo": WRITE})
        await soon(c.application.reload())
        await c.refused(c.application.steer_status(work_id), Code.WORK_NOT_FOUND)
        assert await soon(inbox(c).listed(None)) == ()


@pytest.mark.covers("WORK-1", "WORK-2")
async def test_unknown_ids_are_not_found(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        app, box, work_id = c.application, inbox(c), await opened(c)
        for name in ("nope", "x" * 10_000, "", "a\0b"):
            for call in (
                app.steer_status(name),
                app.steer_claim_next(name),
                app.steer_complete(name, "int_1", "done"),
                app.work_finish(name),
                app.coordination(name),
                box.intents(name),
                box.draft(name, "b", "note", "next_work"),
                box.reorder(name, ["a"]),
                box.stop(name, None),
                box.cancel_work(name),
            ):
                await c.refused(call, Code.WORK_NOT_FOUND)
            for other in (
                app.steer_complete(work_id, name, "done"),
                box.edit(name, 1, "b", None),
                box.queue(name, 1),
                box.cancel(name),
                box.reorder(work_id, [name]),
            ):
                await c.refused(other, Code.INTENT_NOT_FOUND)


@pytest.mark.covers("WORK-1")
async def test_an_instruction_is_claimed_once_and_by_its_own_work(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        first, second = await opened(c), await opened(c)
        for number in range(3):
            await queued(c, first, f"do {number}")
        assert (await soon(c.application.steer_claim_next(second))).item is None
        answers = await soon(asyncio.gather(*(c.application.steer_claim_next(first) for _ in range(6))))
        items = [answer.item for answer in answers if answer.item is not None]
        assert sorted(item.content for item in items) == ["do 0", "do 1", "do 2"]
        status = await soon(c.application.steer_status(first))
        assert (status.queued, status.claimed) == (0, 3)
        assert sorted(status.claimed_intent_ids) == sorted(item.intent_id for item in items)
        await c.refused(c.application.steer_complete(second, items[0].intent_id, "done"), Code.INTENT_NOT_FOUND)
        for _ in range(2):
            assert (await soon(c.application.steer_complete(first, items[0].intent_id, "blocked"))).state == "blocked"
        await c.refused(c.application.steer_complete(first, items[0].intent_id, "done"), Code.INTENT_NOT_EDITABLE)


@pytest.mark.covers("WORK-2")
async def test_a_draft_is_unseen_and_an_edit_needs_the_revision_that_was_seen(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id, box = await opened(c), inbox(c)
        draft = await soon(box.draft(work_id, "one", "note", "next_checkpoint"))
        status = await soon(c.application.steer_status(work_id))
        assert (status.queued, status.claimable_now) == (0, 0)
        await c.refused(c.application.steer_complete(work_id, draft.intent_id, "done"), Code.INTENT_NOT_EDITABLE)
        edited = await soon(box.edit(draft.intent_id, draft.revision, "two", None))
        assert (edited.body, edited.revision, edited.state) == ("two", draft.revision + 1, "draft")
        for stale in (draft.revision, edited.revision + 1):
            error = await c.refused(box.edit(draft.intent_id, stale, "three", None), Code.INTENT_REVISION_CONFLICT)
            assert error.details["revision"] == edited.revision
            await c.refused(box.queue(draft.intent_id, stale), Code.INTENT_REVISION_CONFLICT)
        in_queue = await soon(box.queue(draft.intent_id, edited.revision))
        again = await soon(box.edit(draft.intent_id, in_queue.revision, "four", "after_current_work"))
        assert (again.state, again.delivery) == ("queued", "after_current_work")
        both = [box.edit(draft.intent_id, again.revision, f"tab {n}", "next_checkpoint") for n in range(2)]
        answers = await soon(asyncio.gather(*both, return_exceptions=True))
        assert sum(isinstance(a, IntentAnswer) for a in answers) == 1, "two tabs both won"
        item = (await soon(c.application.steer_claim_next(work_id))).item
        assert item.content in ("tab 0", "tab 1")
        for call in (
            box.edit(draft.intent_id, item.revision, "late", None),
            box.cancel(draft.intent_id),
            box.queue(draft.intent_id, item.revision),
            box.reorder(work_id, [draft.intent_id]),
        ):
            await c.refused(call, Code.INTENT_ALREADY_CLAIMED)


@pytest.mark.covers("WORK-2")
async def test_what_is_over_cannot_be_changed_and_a_cancel_can_be_repeated(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id, box = await opened(c), inbox(c)
        gone = await queued(c, work_id, "gone")
        for _ in range(2):
            assert (await soon(box.cancel(gone.intent_id))).state == "cancelled"
        done = await queued(c, work_id, "done")
        assert await claimed(c, work_id) == "done"
        for intent in (gone, done):
            await c.refused(box.edit(intent.intent_id, intent.revision, "x", None), Code.INTENT_NOT_EDITABLE)
            await c.refused(box.queue(intent.intent_id, intent.revision), Code.INTENT_NOT_EDITABLE)
            await c.refused(box.reorder(work_id, [intent.intent_id]), Code.INTENT_NOT_EDITABLE)
        await c.refused(box.cancel(done.intent_id), Code.INTENT_NOT_EDITABLE)


@pytest.mark.covers("WORK-2")
@pytest.mark.parametrize("body", ["", " \n", "x" * (MAX_INTENT_BYTES + 1)])
async def test_a_body_that_says_nothing_or_too_much_is_refused(body: str, tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id, box = await opened(c), inbox(c)
        await c.refused(box.draft(work_id, body, "note", "next_work"), Code.INVALID_ARGUMENT)
        draft = await queued(c, work_id, "y" * MAX_INTENT_BYTES)
        await c.refused(box.edit(draft.intent_id, draft.revision, body, None), Code.INVALID_ARGUMENT)
        await c.refused(box.draft(work_id, "b", "stop_notice", "next_work"), Code.INVALID_ARGUMENT)
        assert await claimed(c, work_id) == "y" * MAX_INTENT_BYTES


@pytest.mark.covers("WORK-2")
async def test_open_instructions_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.steering.MAX_OPEN_INTENTS", 2)
    async with core(tmp_path) as c:
        work_id = await opened(c)
        first = await queued(c, work_id, "1")
        await queued(c, work_id, "2")
        await c.refused(inbox(c).draft(work_id, "3", "note", "next_checkpoint"), Code.INVALID_ARGUMENT)
        await soon(inbox(c).cancel(first.intent_id))
        await queued(c, work_id, "3")


@pytest.mark.covers("WORK-2")
async def test_the_instructions_of_a_work_have_a_bound_in_all_whatever_their_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed together, so they are in memory together."""
    monkeypatch.setattr("gateway.steering.MAX_WORK_BYTES", 5_000)
    monkeypatch.setattr("gateway.steering.ROW_BYTES", 0)
    async with core(tmp_path) as c:
        work_id, box = await opened(c), inbox(c)
        await soon(box.cancel((await queued(c, work_id, "\u20ac" * 1_000)).intent_id))
        second = await queued(c, work_id, "y" * 1_000)
        await c.refused(box.draft(work_id, "z" * 1_001, "note", "next_checkpoint"), Code.INVALID_ARGUMENT)
        await c.refused(box.edit(second.intent_id, second.revision, "y" * 2_001, None), Code.INVALID_ARGUMENT)
        assert (await soon(box.intent(second.intent_id))).body == "y" * 1_000, "a refused edit changed it"
        full = await soon(box.edit(second.intent_id, second.revision, "y" * 2_000, None))
        await soon(box.edit(second.intent_id, full.revision, "y", None))
        await queued(c, await opened(c), "z" * 5_000)
        assert (await soon(box.stop(work_id, "r" * 5_000))).intent.state == "queued", "a stop needs no room"
        await c.refused(box.stop(work_id, "r" * (MAX_REASON_BYTES + 1)), Code.INVALID_ARGUMENT)


@pytest.mark.covers("WORK-2")
async def test_what_waits_for_the_next_work_has_a_bound_over_all_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.steering.MAX_WORK_BYTES", 4_000)
    monkeypatch.setattr("gateway.steering.ROW_BYTES", 0)
    async with core(tmp_path) as c:
        first, second, box = await opened(c), await opened(c), inbox(c)
        waiting = await queued(c, first, "x" * 1_500, delivery="next_work")
        await c.refused(box.draft(second, "y" * 501, "note", "next_work"), Code.INVALID_ARGUMENT)
        now = await queued(c, second, "y" * 501)
        edit = box.edit(now.intent_id, now.revision, "y" * 501, "next_work")
        await c.refused(edit, Code.INVALID_ARGUMENT)
        await soon(box.draft(second, "y" * 500, "note", "next_work"))
        third = await opened(c)
        assert [i.intent_id for i in await soon(box.intents(third))] == [waiting.intent_id]
        await soon(box.draft(third, "y" * 501, "note", "next_work"))


@pytest.mark.covers("WORK-2")
async def test_a_new_order_is_the_order_of_the_claims(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id, box = await opened(c), inbox(c)
        a, b, d, e = [(await queued(c, work_id, body)).intent_id for body in "abde"]
        before = (await soon(c.application.steer_status(work_id))).queue_revision
        ordered = await soon(box.reorder(work_id, [e, a]))
        assert [intent.body for intent in ordered] == ["e", "a"]
        assert (await soon(c.application.steer_status(work_id))).queue_revision != before
        assert [i.body for i in await soon(box.intents(work_id))] == ["e", "b", "d", "a"]
        await c.refused(box.reorder(work_id, [b, b]), Code.INVALID_ARGUMENT)
        await c.refused(box.reorder(await opened(c), [b]), Code.INTENT_NOT_FOUND)
        assert [await claimed(c, work_id) for _ in range(5)] == ["e", "b", "d", "a", None]
        assert d


@pytest.mark.covers("WORK-2", "WORK-3")
async def test_a_delivery_says_when_an_instruction_can_be_claimed(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id = await opened(c)
        await queued(c, work_id, "later", "after_current_work")
        await queued(c, work_id, "then", "next_work")
        await queued(c, work_id, "now")
        status = await soon(c.application.steer_status(work_id))
        assert (status.queued, status.claimable_now) == (2, 1)
        assert [await claimed(c, work_id) for _ in range(2)] == ["now", None]
        finish = await soon(c.application.work_finish(work_id))
        assert (finish.closed, finish.reason, finish.queued, finish.state) == (
            *(False, "pending_user_input", 1),
            "closing",
        )
        assert [await claimed(c, work_id) for _ in range(2)] == ["later", None]
        for _ in range(2):
            finish = await soon(c.application.work_finish(work_id))
            assert (finish.closed, finish.queued, finish.state) == (True, 0, "closed")
        other = await opened(c, "other")
        assert await claimed(c, other) is None, "it came to another workspace"
        following = await opened(c)
        await queued(c, following, "own")
        assert [await claimed(c, following) for _ in range(3)] == ["then", "own", None]
        assert await claimed(c, await opened(c)) is None, "it was carried over twice"


@pytest.mark.covers("WORK-3")
async def test_a_work_does_not_close_over_what_is_claimed(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id = await opened(c)
        await queued(c, work_id, "b")
        item = (await soon(c.application.steer_claim_next(work_id))).item
        finish = await soon(c.application.work_finish(work_id))
        assert (finish.closed, finish.reason, finish.queued) == (False, "pending_user_input", 0)
        await soon(c.application.steer_complete(work_id, item.intent_id, "done"))
        assert (await soon(c.application.work_finish(work_id))).closed


@pytest.mark.covers("WORK-2", "WORK-3")
async def test_a_closed_work_takes_nothing_but_what_is_for_the_next(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id, box = await opened(c), inbox(c)
        left = await soon(box.draft(work_id, "left", "note", "next_checkpoint"))
        assert (await soon(c.application.work_finish(work_id))).closed, "a draft held it up"
        for call in (
            c.application.steer_claim_next(work_id),
            box.draft(work_id, "b", "note", "next_checkpoint"),
            box.queue(left.intent_id, left.revision),
            box.stop(work_id, None),
            box.cancel_work(work_id),
        ):
            await c.refused(call, Code.WORK_CLOSED)
        moved = await soon(box.edit(left.intent_id, left.revision, "left", "next_work"))
        waiting = await soon(box.queue(moved.intent_id, moved.revision))
        back = box.edit(waiting.intent_id, waiting.revision, "left", "next_checkpoint")
        await c.refused(back, Code.WORK_CLOSED)
        assert await claimed(c, await opened(c)) == "left"


@pytest.mark.covers("WORK-2")
async def test_a_cancelled_work_withdraws_all_that_is_open(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id, box = await opened(c), inbox(c)
        await soon(box.draft(work_id, "draft", "note", "next_checkpoint"))
        await queued(c, work_id, "claimed")
        item = (await soon(c.application.steer_claim_next(work_id))).item
        await queued(c, work_id, "queued")
        await queued(c, work_id, "carried", "next_work")
        for _ in range(2):
            assert (await soon(box.cancel_work(work_id))).state == "cancelled"
        states = {i.body: i.state for i in await soon(box.intents(work_id))}
        assert states == {"draft": "cancelled", "claimed": "cancelled", "queued": "cancelled", "carried": "queued"}
        await c.refused(c.application.steer_complete(work_id, item.intent_id, "done"), Code.INTENT_NOT_EDITABLE)
        finish = await soon(c.application.work_finish(work_id))
        assert (finish.closed, finish.reason, finish.state) == (True, "cancelled", "cancelled")
        assert await claimed(c, await opened(c)) == "carried"


# --- stop -------------------------------------------------------------------------------------------------------------
@pytest.mark.covers("WORK-2")
async def test_a_stop_ends_the_workspaces_command_and_comes_before_everything_else(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id, box = await opened(c), inbox(c)
        await queued(c, work_id, "first")
        mine, _ = await c.exec()
        aside, _ = await c.exec("other")
        stopped = await soon(box.stop(work_id, "wrong branch"))
        assert (stopped.ok, stopped.killed) == (True, 1)
        assert (stopped.intent.kind, stopped.intent.state, stopped.intent.body) == (
            *("stop_notice", "queued"),
            "wrong branch",
        )
        assert list(c.runner.running) == [aside]
        assert await c.is_free()
        second = await soon(box.stop(work_id, None))
        assert second.killed == 0
        kinds = {i.intent_id: i.state for i in await soon(box.intents(work_id)) if i.kind == "stop_notice"}
        assert kinds == {stopped.intent.intent_id: "superseded", second.intent.intent_id: "queued"}
        assert await claimed(c, work_id) == second.intent.body
        assert await claimed(c, work_id) == "first"
        assert mine


@pytest.mark.covers("WORK-2")
async def test_a_stop_without_a_runner_leaves_its_notice_and_says_so(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id = await opened(c)
        c.runner.answers["terminate_workspace"] = RunnerLost("gone")
        assert (await c.refused(inbox(c).stop(work_id, "r"), Code.RUNNER_UNAVAILABLE)).retryable
        c.link.prove_dead(c.link.lose())
        await c.refused(inbox(c).stop(work_id, "again"), Code.RUNNER_UNAVAILABLE)
        assert await claimed(c, work_id) == "again"
        assert await claimed(c, work_id) is None


@pytest.mark.covers("WORK-2")
async def test_a_stop_goes_on_when_the_page_that_asked_for_it_is_closed(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id = await opened(c)
        await c.exec()
        c.runner.hold["terminate_workspace"] = asyncio.Event()
        stop = asyncio.ensure_future(inbox(c).stop(work_id, None))
        await soon(c.runner.asked_for("terminate_workspace").wait())
        stop.cancel()
        await asyncio.wait([stop])
        c.runner.hold["terminate_workspace"].set()
        await soon(asyncio.gather(*c.application._services.tasks))
        assert c.runner.running == {}


# --- the hint ---------------------------------------------------------------------------------------------------------
@pytest.mark.covers("WORK-3")
async def test_the_hint_counts_and_is_of_the_works_own_workspace(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id = await opened(c)
        before = await soon(c.application.coordination(work_id, "demo"))
        await queued(c, work_id, "secret words")
        await queued(c, work_id, "for then", "next_work")
        after = await soon(c.application.coordination(work_id))
        assert after.pending_user_items == 1
        assert after.queue_revision != before.queue_revision
        assert "secret" not in after.model_dump_json()
        await c.refused(c.application.coordination(work_id, "other"), Code.INVALID_ARGUMENT)


@pytest.mark.covers("WORK-1")
async def test_works_and_queues_outlive_a_restart(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        work_id = await opened(c)
        await queued(c, work_id, "kept")
        shown: Any = await soon(inbox(c).shown(work_id))
        intents = await soon(inbox(c).intents(work_id))
    async with core(tmp_path) as c:
        assert await soon(inbox(c).shown(work_id)) == shown
        assert await soon(inbox(c).intents(work_id)) == intents
        assert await claimed(c, work_id) == "kept"


@pytest.mark.covers("NETIF-3")
async def test_the_metrics_count_holds_works_and_instructions_and_time_the_starts(tmp_path: Path) -> None:
    async with core(tmp_path, {"demo": WRITE, "held": {**WRITE, "approvals": "confirm"}}) as c:
        work_id = await opened(c)
        await queued(c, work_id, "1")
        await queued(c, work_id, "2")
        await claimed(c, work_id)
        await c.refused(c.application.exec_command("held", ("true",)), Code.APPROVAL_REQUIRED)
        assert await soon(c.application.stored_counts()) == {
            ("holds", "pending"): 1,
            ("works", "active"): 1,
            ("intents", "done"): 1,
            ("intents", "queued"): 1,
        }
        await c.exec()
        started = [record for record in c.audit.records if record.tool == "exec_command" and record.seconds is not None]
        assert [(record.outcome, record.workspace_id) for record in started] == [("done", "demo")]
