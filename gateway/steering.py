"""The rules of works and of the instructions in their queues, as tables (WORK-1 to WORK-3).

    work     active ── finish ──► closing ── close ──► closed          cancel, from active and closing: cancelled
    intent   draft ── queue ──► queued ── claim ──► claimed ── complete ──► done | blocked
                                  └── a later notice ──► superseded    cancel, from draft and queued: cancelled

A user writes drafts and queues them; an agent claims what is claimable and completes it. A work closes once nothing in
its queue is open for it. Pure. Refuses to know: the store, HTTP, tools. Used by `gateway.store.works`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.errors import Code, ToolError

WorkState = Literal["active", "closing", "closed", "cancelled"]
WorkStep = Literal["finish", "close", "cancel"]
IntentState = Literal["draft", "queued", "claimed", "done", "blocked", "cancelled", "superseded"]
IntentStep = Literal["edit", "reorder", "queue", "claim", "done", "blocked", "cancel", "withdraw", "supersede"]
IntentKind = Literal["follow_up", "note", "stop_notice"]
Delivery = Literal["next_checkpoint", "after_current_work", "next_work"]

WORK_NEXT: Mapping[WorkStep, tuple[frozenset[WorkState], WorkState]] = {
    "finish": (frozenset({"active", "closing"}), "closing"),
    "close": (frozenset({"closing"}), "closed"),
    "cancel": (frozenset({"active", "closing"}), "cancelled"),
}
INTENT_NEXT: Mapping[IntentStep, tuple[frozenset[IntentState], IntentState | None]] = {
    "edit": (frozenset({"draft", "queued"}), None),
    "reorder": (frozenset({"draft", "queued"}), None),
    "queue": (frozenset({"draft"}), "queued"),
    "claim": (frozenset({"queued"}), "claimed"),
    "done": (frozenset({"claimed"}), "done"),
    "blocked": (frozenset({"claimed"}), "blocked"),
    "cancel": (frozenset({"draft", "queued"}), "cancelled"),
    "withdraw": (frozenset({"draft", "queued", "claimed"}), "cancelled"),
    "supersede": (frozenset({"queued"}), "superseded"),
}
"""Step to the states it may leave and the state it reaches; None keeps the state. `withdraw`: with a cancelled work."""

CLAIMABLE: Mapping[Delivery, frozenset[WorkState]] = {
    "next_checkpoint": frozenset({"active", "closing"}),
    "after_current_work": frozenset({"closing"}),
    "next_work": frozenset({"active", "closing"}),
}
"""In which states of its work a queued intent can be claimed. A `next_work` one only once it was carried over."""

OPEN_WORK: frozenset[WorkState] = frozenset({"active", "closing"})
MAX_INTENT_BYTES = 1024 * 1024
MAX_OPEN_INTENTS = 1_000
"""Drafts, queued and claimed ones of one work."""
MAX_WORK_BYTES = 16 * 1024 * 1024
"""Text of all instructions of one work, whatever their state: they are listed together. Half of it may wait for a
workspace's next work, to which it comes together."""
ROW_BYTES = 256
"""What an instruction counts beside its text."""
MAX_REASON_BYTES = 16 * 1024
"""Of a stop, which is never refused for want of room."""
MAX_TITLE_CHARS = 1_000


@dataclass(frozen=True)
class Queued:
    """What the rules need of one intent. `carried`: it came from an earlier work."""

    intent_id: str
    state: IntentState
    delivery: Delivery
    carried: bool


@dataclass(frozen=True)
class Counts:
    """`queued`: for this work, so without what waits for the next one."""

    queued: int
    claimed: int
    claimable_now: int
    claimed_intent_ids: tuple[str, ...]


def is_for_this_work(delivery: Delivery, carried: bool) -> bool:
    return delivery != "next_work" or carried


def claimable(work_state: WorkState, intent: Queued) -> bool:
    return (
        intent.state == "queued"
        and is_for_this_work(intent.delivery, intent.carried)
        and work_state in CLAIMABLE[intent.delivery]
    )


def count(work_state: WorkState, intents: Iterable[Queued]) -> Counts:
    found = [i for i in intents if is_for_this_work(i.delivery, i.carried)]
    claimed = tuple(i.intent_id for i in found if i.state == "claimed")
    queued = sum(i.state == "queued" for i in found)
    return Counts(queued, len(claimed), sum(claimable(work_state, i) for i in found), claimed)


def next_work_state(work_id: str, state: WorkState, step: WorkStep) -> WorkState:
    """Raises `ToolError` WORK_CLOSED where the table has no such step."""
    before, after = WORK_NEXT[step]
    if state not in before:
        raise work_closed(work_id, state)
    return after


def next_intent_state(intent_id: str, state: IntentState, step: IntentStep) -> IntentState:
    """Raises `ToolError` INTENT_ALREADY_CLAIMED or INTENT_NOT_EDITABLE where the table has no such step."""
    before, after = INTENT_NEXT[step]
    if state in before:
        return after or state
    details = {"intent_id": intent_id, "state": state}
    if state == "claimed":
        raise ToolError(
            Code.INTENT_ALREADY_CLAIMED,
            f"instruction {intent_id} is claimed by the agent, so it cannot be changed: queue another one",
            details=details,
        )
    raise ToolError(
        Code.INTENT_NOT_EDITABLE,
        f"instruction {intent_id} is {state}, so it cannot go on to {step}: look at its state first",
        details=details,
    )


def work_closed(work_id: str, state: WorkState) -> ToolError:
    return ToolError(
        Code.WORK_CLOSED,
        f"work {work_id} is {state}: open another with work_open",
        details={"work_id": work_id, "state": state},
    )
