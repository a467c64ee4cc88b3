"""The endpoints of the inbox, as a table: what each takes, what it answers, and the one call it makes.

Refuses to know: HTTP messages. Read by `gateway.http.inbox` and `gateway.http.openapi`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from gateway.answers import HoldAnswer, HoldListed, IntentAnswer, ProcessListed, StopAnswer, WorkListed
from gateway.application import Application
from gateway.errors import Code, ToolError
from gateway.steering import Delivery, IntentKind
from gateway.store.approvals import State
from gateway.store.works import MAX_LISTED

B = TypeVar("B", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NewIntent(_Body):
    """`body`: text, 1 MiB at most."""

    body: str
    kind: Literal["follow_up", "note"] = "follow_up"
    delivery: Delivery = "after_current_work"


class Edit(_Body):
    """`revision`: the one that was read; another is a conflict."""

    revision: int
    body: str
    delivery: Delivery | None = None


class Queue(_Body):
    revision: int


class Reorder(_Body):
    """In the wanted order. Those left out keep their places. `queue_revision`: the one that was read; another is a
    conflict."""

    intent_ids: list[str] = Field(min_length=1, max_length=1_000)
    queue_revision: int | None = None


class Cancel(_Body):
    """`revision`: the one that was read; another is a conflict."""

    revision: int | None = None


class Stop(_Body):
    reason: str | None = None


class Resolve(_Body):
    decision: Literal["grant", "deny"]


class Nothing(_Body):
    """An empty object, or no body."""


@dataclass(frozen=True)
class Call:
    """One request, unpacked. `body`: of the endpoint's model."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: BaseModel | None

    def of(self, model: type[B]) -> B:
        assert isinstance(self.body, model)
        return self.body


@dataclass(frozen=True)
class Endpoint:
    """`query`: names of optional parameters, with what they mean. `answer`: the type of the JSON that comes back."""

    method: Literal["GET", "POST", "PATCH"]
    path: str
    about: str
    answer: Any
    perform: Callable[[Application, Call], Awaitable[Any]]
    body: type[BaseModel] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


WORKSPACE = {"workspace_id": "Only those of this workspace."}


async def _draft(application: Application, call: Call) -> IntentAnswer:
    new = call.of(NewIntent)
    kind: IntentKind = new.kind
    return await application.inbox.draft(call.path["work_id"], new.body, kind, new.delivery)


async def _edit(application: Application, call: Call) -> IntentAnswer:
    edit = call.of(Edit)
    return await application.inbox.edit(call.path["intent_id"], edit.revision, edit.body, edit.delivery)


async def _reorder(application: Application, call: Call) -> tuple[IntentAnswer, ...]:
    reorder = call.of(Reorder)
    return await application.inbox.reorder(call.path["work_id"], reorder.intent_ids, reorder.queue_revision)


async def _holds(application: Application, call: Call) -> tuple[HoldListed, ...]:
    state = call.query.get("state")
    if state is not None and state not in get_args(State):
        raise ToolError(
            Code.INVALID_ARGUMENT,
            f"state is one of {', '.join(get_args(State))}",
            details={"argument": "state"},
        )
    states: tuple[State, ...] = tuple(s for s in get_args(State) if s == state)
    return await application.list_holds(call.query.get("workspace_id"), states, MAX_LISTED)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/inbox/works",
        f"The newest {MAX_LISTED} works, newest first.",
        tuple[WorkListed, ...],
        lambda app, call: app.inbox.listed(call.query.get("workspace_id")),
        query=WORKSPACE,
    ),
    Endpoint(
        "GET",
        "/inbox/works/{work_id}",
        "One work.",
        WorkListed,
        lambda app, call: app.inbox.shown(call.path["work_id"]),
    ),
    Endpoint(
        "GET",
        "/inbox/works/{work_id}/intents",
        "Its instructions in order, whatever their state.",
        tuple[IntentAnswer, ...],
        lambda app, call: app.inbox.intents(call.path["work_id"]),
    ),
    Endpoint(
        "POST",
        "/inbox/works/{work_id}/intents",
        "Write a draft, at the end of the queue.",
        IntentAnswer,
        _draft,
        body=NewIntent,
        status=201,
    ),
    Endpoint(
        "POST",
        "/inbox/works/{work_id}/reorder",
        "Put drafts and queued instructions into another order.",
        tuple[IntentAnswer, ...],
        _reorder,
        body=Reorder,
    ),
    Endpoint(
        "POST",
        "/inbox/works/{work_id}/stop",
        "End every command of the work's workspace and leave a notice for the agent.",
        StopAnswer,
        lambda app, call: app.inbox.stop(call.path["work_id"], call.of(Stop).reason),
        body=Stop,
    ),
    Endpoint(
        "POST",
        "/inbox/works/{work_id}/cancel",
        "Cancel the work with all that is open in it.",
        WorkListed,
        lambda app, call: app.inbox.cancel_work(call.path["work_id"]),
        body=Nothing,
    ),
    Endpoint(
        "GET",
        "/inbox/intents/{intent_id}",
        "One instruction.",
        IntentAnswer,
        lambda app, call: app.inbox.intent(call.path["intent_id"]),
    ),
    Endpoint(
        "PATCH",
        "/inbox/intents/{intent_id}",
        "Change a draft or a queued instruction.",
        IntentAnswer,
        _edit,
        body=Edit,
    ),
    Endpoint(
        "POST",
        "/inbox/intents/{intent_id}/queue",
        "Give a draft to the agent.",
        IntentAnswer,
        lambda app, call: app.inbox.queue(call.path["intent_id"], call.of(Queue).revision),
        body=Queue,
    ),
    Endpoint(
        "POST",
        "/inbox/intents/{intent_id}/cancel",
        "Take an instruction back that is not claimed.",
        IntentAnswer,
        lambda app, call: app.inbox.cancel(call.path["intent_id"], call.of(Cancel).revision),
        body=Cancel,
    ),
    Endpoint(
        "GET",
        "/inbox/holds",
        f"The newest {MAX_LISTED} holds, newest first, without what they are for.",
        tuple[HoldListed, ...],
        _holds,
        query={**WORKSPACE, "state": f"Only those in this state: {', '.join(get_args(State))}."},
    ),
    Endpoint(
        "GET",
        "/inbox/holds/{approval_id}",
        "One hold, with the held call while it is live.",
        HoldListed,
        lambda app, call: app.show_hold(call.path["approval_id"]),
    ),
    Endpoint(
        "POST",
        "/inbox/holds/{approval_id}/resolve",
        "Grant or deny a pending hold.",
        HoldAnswer,
        lambda app, call: app.approval_resolve(call.path["approval_id"], call.of(Resolve).decision),
        body=Resolve,
    ),
    Endpoint(
        "GET",
        "/inbox/processes",
        "Commands that run, or ended a short while ago.",
        tuple[ProcessListed, ...],
        lambda app, call: app.list_processes(call.query.get("workspace_id")),
        query=WORKSPACE,
    ),
)
