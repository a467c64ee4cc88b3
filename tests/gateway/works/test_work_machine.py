"""Works and instructions against a model: any order of drafts, edits, claims, finishes, stops and restarts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from gateway.answers import IntentAnswer
from gateway.errors import ToolError
from tests.gateway.core.application_rig import WRITE, Core

DELIVERIES = st.sampled_from(["next_checkpoint", "after_current_work", "next_work"])
OPEN = ("active", "closing")


@dataclass
class Intent:
    """One instruction as it should be; written down apart from the rules under test."""

    intent_id: str
    body: str
    delivery: str
    state: str = "draft"
    revision: int = 1
    carried: bool = False
    is_notice: bool = False

    def is_here(self) -> bool:
        return self.delivery != "next_work" or self.carried

    def can_be_claimed(self, work_state: str) -> bool:
        if self.state != "queued" or work_state not in OPEN or not self.is_here():
            return False
        return self.delivery != "after_current_work" or work_state == "closing"


@dataclass
class Work:
    state: str
    queue: list[Intent]

    def queued(self) -> int:
        return sum(i.state == "queued" and i.is_here() for i in self.queue)

    def claimed(self) -> int:
        return sum(i.state == "claimed" for i in self.queue)


class WorkMachine(RuleBasedStateMachine):
    """`seen`: answers by rule, over all runs, so that the test can tell that each was met."""

    works: Bundle[str] = Bundle("works")
    intents: Bundle[str] = Bundle("intents")
    seen: ClassVar[Counter[tuple[str, str]]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="cs"))
        self.data = Path(tempfile.mkdtemp(prefix="cs", dir="/dev/shm"))  # syncs cost nothing there
        self.loop = asyncio.new_event_loop()
        self.model: dict[str, Work] = {}
        self.written = 0
        self.core = self.started()

    def run(self, awaitable: Any) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(awaitable, 5)

        return self.loop.run_until_complete(bounded())

    def started(self) -> Core:
        async def make() -> Core:
            made = Core(self.base, {"demo": WRITE, "aside": WRITE}, data=self.data)
            await made.application.start()
            return made

        return self.run(make())  # type: ignore[no-any-return]

    def outcome(self, rule_: str, awaitable: Any) -> Any:
        """The answer, or the error's code."""
        try:
            answer = self.run(awaitable)
        except ToolError as error:
            self.seen[(rule_, error.code.value)] += 1
            return error.code.value
        self.seen[(rule_, "OK")] += 1
        return answer

    def place(self, intent_id: str) -> tuple[str, Intent]:
        for work_id, work in self.model.items():
            for intent in work.queue:
                if intent.intent_id == intent_id:
                    return work_id, intent
        raise AssertionError(intent_id)

    @staticmethod
    def not_editable(intent: Intent) -> str | None:
        """The refusal of a change, by the state alone."""
        if intent.state == "claimed":
            return "INTENT_ALREADY_CLAIMED"
        return None if intent.state in ("draft", "queued") else "INTENT_NOT_EDITABLE"

    # --- rules --------------------------------------------------------------------------------------------------------
    @initialize(target=works)
    def first(self) -> str:
        return self.open_work()

    @rule(target=works)
    def open_another(self) -> Any:
        return self.open_work() if len(self.model) < 8 else multiple()

    @rule(target=intents, work=works)
    def write_for_the_next_and_open_it(self, work: str) -> Any:
        intent = self.write(work, "next_work", queue=True)
        if len(self.model) < 12:
            self.open_work()
        return intent

    def open_work(self) -> str:
        work_id = str(self.run(self.core.application.work_open("demo")).work_id)
        carried = [
            (work, intent)
            for work in self.model.values()
            for intent in work.queue
            if intent.state == "queued" and intent.delivery == "next_work" and not intent.carried
        ]
        carried.sort(key=lambda pair: pair[1].intent_id)
        for work, intent in carried:
            work.queue.remove(intent)
            intent.carried = True
        self.model[work_id] = Work("active", [intent for _, intent in carried])
        self.seen[("open", "carried" if carried else "plain")] += 1
        return work_id

    @rule(target=intents, work=works, delivery=DELIVERIES, queue=st.booleans())
    def write(self, work: str, delivery: str, queue: bool) -> Any:
        self.written += 1
        body = f"body {self.written}"
        answer = self.outcome("draft", self.core.application.inbox.draft(work, body, "follow_up", delivery))  # type: ignore[arg-type]
        if self.model[work].state not in OPEN and delivery != "next_work":
            assert answer == "WORK_CLOSED"
            return multiple()
        assert isinstance(answer, IntentAnswer)
        intent = Intent(answer.intent_id, body, delivery)
        self.model[work].queue.append(intent)
        if queue:
            self.queue(answer.intent_id, stale=False)
        return answer.intent_id

    @rule(intent=intents, stale=st.booleans())
    def queue(self, intent: str, stale: bool) -> None:
        work_id, one = self.place(intent)
        answer = self.outcome("queue", self.core.application.inbox.queue(intent, one.revision - stale))
        if one.state != "draft":
            assert answer == ("INTENT_ALREADY_CLAIMED" if one.state == "claimed" else "INTENT_NOT_EDITABLE")
        elif stale:
            assert answer == "INTENT_REVISION_CONFLICT"
        elif one.is_here() and self.model[work_id].state not in OPEN:
            assert answer == "WORK_CLOSED"
        else:
            one.state, one.revision = "queued", one.revision + 1
            assert (answer.state, answer.revision) == ("queued", one.revision)

    @rule(intent=intents, stale=st.booleans(), delivery=st.none() | DELIVERIES)
    def edit(self, intent: str, stale: bool, delivery: str | None) -> None:
        work_id, one = self.place(intent)
        self.written += 1
        body = f"body {self.written}"
        edit = self.core.application.inbox.edit(intent, one.revision + stale, body, delivery)  # type: ignore[arg-type]
        answer = self.outcome("edit", edit)
        refusal = self.not_editable(one)
        chosen = Intent(intent, body, delivery or one.delivery, one.state, one.revision + 1, one.carried, one.is_notice)
        if refusal is not None:
            assert answer == refusal
        elif stale:
            assert answer == "INTENT_REVISION_CONFLICT"
        elif one.state == "queued" and chosen.is_here() and self.model[work_id].state not in OPEN:
            assert answer == "WORK_CLOSED"
        else:
            assert (answer.body, answer.revision) == (body, one.revision + 1)
            self.model[work_id].queue[self.model[work_id].queue.index(one)] = chosen

    @rule(intent=intents)
    def cancel(self, intent: str) -> None:
        _, one = self.place(intent)
        answer = self.outcome("cancel", self.core.application.inbox.cancel(intent))
        refusal = self.not_editable(one)
        if one.state == "cancelled" or refusal is None:
            one.state = "cancelled"
            assert answer.state == "cancelled"
        else:
            assert answer == refusal

    @rule(work=works, data=st.data())
    def reorder(self, work: str, data: st.DataObject) -> None:
        queue = self.model[work].queue
        free = [i for i, intent in enumerate(queue) if intent.state in ("draft", "queued")]
        if len(free) < 2:
            return
        wanted = data.draw(st.permutations(free))[: data.draw(st.integers(2, len(free)))]
        moved = [queue[i] for i in wanted]
        answer = self.outcome("reorder", self.core.application.inbox.reorder(work, [i.intent_id for i in moved]))
        for place, intent in zip(sorted(wanted), moved, strict=True):
            queue[place] = intent
        assert [i.intent_id for i in answer] == [i.intent_id for i in moved]

    @rule(work=works, complete=st.sampled_from(["done", "blocked", None]))
    def claim(self, work: str, complete: str | None) -> None:
        model = self.model[work]
        answer = self.outcome("claim", self.core.application.steer_claim_next(work))
        if model.state not in OPEN:
            assert answer == "WORK_CLOSED"
            return
        one = next((i for i in model.queue if i.can_be_claimed(model.state)), None)
        self.seen[("claim", "nothing" if one is None else "item")] += 1
        assert (answer.item is None) == (one is None)
        if one is None:
            return
        assert (answer.item.intent_id, answer.item.content, answer.item.revision) == (
            *(one.intent_id, one.body),
            one.revision,
        )
        one.state = "claimed"
        if complete is not None:
            self.complete(one.intent_id, complete)

    @rule(target=intents, work=works)
    def change_what_is_claimed(self, work: str) -> Any:
        intent = self.write(work, "next_checkpoint", queue=True)
        if self.model[work].state not in OPEN:
            return multiple()
        assert isinstance(intent, str)
        while self.place(intent)[1].state != "claimed":
            self.claim(work, None)
        self.queue(intent, stale=False)
        self.edit(intent, stale=False, delivery=None)
        self.cancel(intent)
        return intent

    @rule(target=intents, work=works)
    def change_what_is_left_in_a_work_that_is_over(self, work: str) -> Any:
        if self.model[work].state in OPEN:
            return multiple()
        waiting = self.write(work, "next_work", queue=True)
        self.edit(waiting, stale=False, delivery="next_checkpoint")
        left = self.write(work, "next_work", queue=False)
        self.edit(left, stale=False, delivery="after_current_work")
        self.queue(left, stale=False)
        self.claim(work, None)
        self.stop(work)
        return multiple(waiting, left)

    @rule(intent=intents, outcome=st.sampled_from(["done", "blocked"]))
    def complete(self, intent: str, outcome: str) -> None:
        work_id, one = self.place(intent)
        call = self.core.application.steer_complete(work_id, intent, outcome)  # type: ignore[arg-type]
        answer = self.outcome("complete", call)
        if one.state in ("claimed", outcome):
            one.state = outcome
            assert answer.state == outcome
        else:
            assert answer == "INTENT_NOT_EDITABLE"

    @rule(work=works)
    def finish(self, work: str) -> None:
        model = self.model[work]
        answer = self.outcome("finish", self.core.application.work_finish(work))
        if model.state in OPEN:
            model.state = "closing" if model.queued() or model.claimed() else "closed"
        self.seen[("finish", model.state)] += 1
        assert answer.state == model.state
        assert answer.closed == (model.state not in OPEN)
        assert answer.queued == (model.queued() if model.state in OPEN else 0)

    @rule(target=intents, work=works)
    def stop(self, work: str) -> Any:
        model = self.model[work]
        answer = self.outcome("stop", self.core.application.inbox.stop(work, "because"))
        if model.state not in OPEN:
            assert answer == "WORK_CLOSED"
            return multiple()
        for intent in model.queue:
            if intent.is_notice and intent.state == "queued":
                intent.state = "superseded"
                self.seen[("stop", "superseded")] += 1
        notice = Intent(answer.intent.intent_id, "because", "next_checkpoint", "queued", is_notice=True)
        model.queue.insert(0, notice)
        return answer.intent.intent_id

    @rule(work=works, sure=st.integers(0, 9))
    def cancel_work(self, work: str, sure: int) -> None:
        if sure:
            return
        model = self.model[work]
        answer = self.outcome("cancel_work", self.core.application.inbox.cancel_work(work))
        if model.state == "closed":
            assert answer == "WORK_CLOSED"
            return
        if model.state in OPEN:
            for intent in model.queue:
                if intent.state in ("draft", "queued", "claimed") and intent.is_here():
                    intent.state = "cancelled"
        model.state = "cancelled"
        assert answer.state == "cancelled"

    @rule()
    def restarted(self) -> None:
        self.run(self.core.application.close())
        self.core = self.started()

    # --- always -------------------------------------------------------------------------------------------------------
    @invariant()
    def every_queue_is_as_the_model_has_it(self) -> None:
        for work_id, model in self.model.items():
            listed = self.run(self.core.application.inbox.intents(work_id))
            assert [(i.intent_id, i.state, i.revision, i.body, i.delivery) for i in listed] == [
                (i.intent_id, i.state, i.revision, i.body, i.delivery) for i in model.queue
            ]
            status = self.run(self.core.application.steer_status(work_id))
            assert (status.state, status.queued, status.claimed) == (model.state, model.queued(), model.claimed())
            assert status.claimable_now == sum(i.can_be_claimed(model.state) for i in model.queue)

    def teardown(self) -> None:
        self.run(self.core.application.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.base)
        shutil.rmtree(self.data)


@pytest.mark.timeout(120)
@pytest.mark.covers("WORK-1", "WORK-2", "WORK-3")
def test_works_follow_their_model_for_two_thousand_steps() -> None:
    run_state_machine_as_test(
        WorkMachine,
        settings=settings(
            max_examples=40,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate,),  # a failure is the same one each time; to shrink it takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
    changes = {("queue", "INTENT_REVISION_CONFLICT"), ("edit", "INTENT_REVISION_CONFLICT"), ("edit", "WORK_CLOSED")}
    changes |= {(rule_, "INTENT_ALREADY_CLAIMED") for rule_ in ("queue", "edit", "cancel")}
    changes |= {(rule_, "INTENT_NOT_EDITABLE") for rule_ in ("queue", "edit", "cancel", "complete")}
    closed = {(rule_, "WORK_CLOSED") for rule_ in ("draft", "queue", "claim", "stop")}
    ends = {("finish", "closing"), ("finish", "closed"), ("claim", "item"), ("claim", "nothing")}
    ends |= {("open", "carried"), ("stop", "superseded"), ("reorder", "OK"), ("cancel_work", "OK")}
    missed = (changes | closed | ends) - WorkMachine.seen.keys()
    assert not missed, f"never met: {sorted(missed)}"
