"""What the forms of the console do: each unpacks its fields, makes the one call that the inbox or a tool makes, and
says where to go on.

Refuses to know: who may, which the console has asked before; the rules, which are the application's. Each action raises
`ToolError`, INVALID_ARGUMENT for a form that is not one of ours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from gateway.application import Application
from gateway.errors import Code, ToolError
from gateway.http.console import views
from gateway.http.console.views import Asked, View
from gateway.http.inbox_api import Edit, NewIntent, Resolve
from gateway.steering import CLAIMABLE
from runner import api

MAX_FIELDS = 64
B = TypeVar("B", bound=BaseModel)


@dataclass(frozen=True)
class Form:
    """`path`: parts of the address. `fields`: each once."""

    path: Mapping[str, str]
    fields: Mapping[str, str]

    def get(self, name: str) -> str:
        """Raises `ToolError` INVALID_ARGUMENT."""
        found = self.fields.get(name)
        if found is None:
            raise malformed(name, f'the form lacks "{name}": load the page again')
        return found

    def number(self, name: str) -> int:
        text = self.get(name)
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise malformed(name, f'"{name}" is no number: load the page again')
        return int(text)

    def text(self, name: str) -> str:
        """What a person typed. Forms send the line ends of another system (HTML, 4.10.22.5)."""
        return self.get(name).replace("\r\n", "\n").replace("\r", "\n")

    def model(self, model: type[B], **values: Any) -> B:
        """Raises `ToolError` INVALID_ARGUMENT."""
        try:
            return model.model_validate(values, strict=True)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise malformed(name, f"{name}: {first['msg']}") from None


@dataclass(frozen=True)
class Done:
    """`to`: the address to go on to. `said`: the name of what is told there, of `SAID`."""

    to: str
    said: str


SAID: Mapping[str, str] = {
    "granted": "Granted. The agent can resume the call now.",
    "denied": "Denied. The call never runs.",
    "drafted": "The draft is saved. The agent does not see it yet.",
    "queued": "Queued for the agent.",
    "edited": "The change is saved.",
    "moved": "The order is changed.",
    "cancelled": "Cancelled.",
    "work_cancelled": "The work is cancelled with all that was open in it.",
    "stopping": "The command was told to end.",
    "stopped": "Every command of the workspace has ended, and a notice is left for the agent.",
}


@dataclass(frozen=True)
class Action:
    """`view`, `template`: what is shown with the reason where it is refused."""

    path: str
    perform: Callable[[Application, Form], Awaitable[Done]]
    view: View
    template: str


def parse_form(raw: bytes) -> dict[str, str]:
    """application/x-www-form-urlencoded, in UTF-8. Raises `ToolError` INVALID_ARGUMENT."""
    try:
        text, strict = raw.decode("ascii"), bool(raw)
        pairs = parse_qsl(text, True, strict, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        raise malformed("form", "this is no form of the console: load the page again") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise malformed("form", "a field of the form is there twice: load the page again")
    return fields


def malformed(argument: str, message: str) -> ToolError:
    return ToolError(Code.INVALID_ARGUMENT, message, details={"argument": argument})


# --- commands and holds -----------------------------------------------------------------------------------------------
async def _stop_command(application: Application, form: Form) -> Done:
    process_id = form.path["process_id"]
    await application.terminate_process(api.TerminateProcess(process_id=process_id))
    return Done(f"/console/commands/{process_id}", "stopping")


async def _resolve(application: Application, form: Form) -> Done:
    decision = form.model(Resolve, decision=form.get("decision")).decision
    answer = await application.approval_resolve(form.path["approval_id"], decision)
    return Done(f"/console/holds/{answer.approval_id}", "granted" if decision == "grant" else "denied")


# --- works ------------------------------------------------------------------------------------------------------------
async def _draft(application: Application, form: Form) -> Done:
    new = form.model(NewIntent, body=form.text("body"), kind=form.get("kind"), delivery=form.get("delivery"))
    intent = await application.inbox.draft(form.path["work_id"], new.body, new.kind, new.delivery)
    if form.fields.get("then") == "queue":
        await application.inbox.queue(intent.intent_id, intent.revision)
    return Done(f"/console/works/{intent.work_id}", "queued" if form.fields.get("then") == "queue" else "drafted")


async def _stop_work(application: Application, form: Form) -> Done:
    await application.inbox.stop(form.path["work_id"], form.text("reason").strip() or None)
    return Done(f"/console/works/{form.path['work_id']}", "stopped")


async def _cancel_work(application: Application, form: Form) -> Done:
    await application.inbox.cancel_work(form.path["work_id"])
    return Done(f"/console/works/{form.path['work_id']}", "work_cancelled")


async def _reorder(application: Application, form: Form) -> Done:
    """Either `move` and `by` (-1 or 1), or the whole order as `intent_ids`."""
    work_id, revision = form.path["work_id"], form.number("queue_revision")
    if "move" in form.fields:
        order = await _swapped(application, work_id, form.get("move"), form.get("by"))
    else:
        order = form.get("intent_ids").split()
    if order:
        await application.inbox.reorder(work_id, order, revision)
    return Done(f"/console/works/{work_id}", "moved")


async def _swapped(application: Application, work_id: str, intent_id: str, by: str) -> list[str]:
    """One instruction and its neighbour, changed about; nothing at an end of the queue."""
    if by not in ("-1", "1"):
        raise malformed("by", '"by" is -1 or 1: load the page again')
    outlines = await application.inbox.outlines(work_id, 0)
    movable = [outline.intent_id for outline in outlines if outline.state in views.EDITABLE]
    if intent_id not in movable:
        outline = next((one for one in outlines if one.intent_id == intent_id), None)
        state = "not in this queue" if outline is None else outline.state
        raise ToolError(Code.INTENT_NOT_EDITABLE, f"instruction {intent_id[:80]} is {state}, so it cannot be moved")
    at = movable.index(intent_id)
    other = at + int(by)
    if not 0 <= other < len(movable):
        return []
    first, second = sorted((at, other))
    return [movable[second], movable[first]]


async def _edit(application: Application, form: Form) -> Done:
    edit = form.model(
        Edit, revision=form.number("revision"), body=form.text("body"), delivery=form.fields.get("delivery")
    )
    intent = await application.inbox.edit(form.path["intent_id"], edit.revision, edit.body, edit.delivery)
    return Done(f"/console/instructions/{intent.intent_id}", "edited")


async def _queue(application: Application, form: Form) -> Done:
    intent = await application.inbox.queue(form.path["intent_id"], form.number("revision"))
    return Done(f"/console/works/{intent.work_id}", "queued")


async def _cancel(application: Application, form: Form) -> Done:
    intent = await application.inbox.cancel(form.path["intent_id"], form.number("revision"))
    return Done(f"/console/works/{intent.work_id}", "cancelled")


async def _work_of_intent(application: Application, asked: Asked) -> dict[str, Any]:
    """The queue that an instruction is in: where its buttons are."""
    intent = await application.inbox.intent(asked.path["intent_id"])
    return await views.work(application, Asked({"work_id": intent.work_id or ""}))


DELIVERIES: Mapping[str, str] = {
    "after_current_work": "when it has finished what it is at",
    "next_checkpoint": "at once, at its next checkpoint",
    "next_work": "in the next work of this workspace",
}
assert DELIVERIES.keys() == CLAIMABLE.keys()

ACTIONS: tuple[Action, ...] = (
    Action("/console/commands/{process_id}/stop", _stop_command, views.command, "command.html"),
    Action("/console/holds/{approval_id}/resolve", _resolve, views.hold, "hold.html"),
    Action("/console/works/{work_id}/draft", _draft, views.work, "work.html"),
    Action("/console/works/{work_id}/reorder", _reorder, views.work, "work.html"),
    Action("/console/works/{work_id}/stop", _stop_work, views.work, "work.html"),
    Action("/console/works/{work_id}/cancel", _cancel_work, views.work, "work.html"),
    Action("/console/instructions/{intent_id}/edit", _edit, views.instruction, "instruction.html"),
    Action("/console/instructions/{intent_id}/queue", _queue, _work_of_intent, "work.html"),
    Action("/console/instructions/{intent_id}/cancel", _cancel, _work_of_intent, "work.html"),
)
