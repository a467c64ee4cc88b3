"""What each page of the console shows: the application's answers, put together for one template.

Every list is bounded, and says so where it ends. Refuses to know: HTTP, markup. Each view raises `ToolError` where what
it is about is not there. Used by the console's pages, and by its actions to show the fresh state.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.answers import HoldListed, ProcessListed, WorkListed
from gateway.application import Application
from gateway.errors import Code, ToolError
from gateway.http.console import diff
from gateway.http.console.ansi import Renderer
from gateway.http.console.visible import escaped
from gateway.steering import OPEN_WORK
from gateway.store.approvals import State
from runner import api

LISTED = 100
"""Rows of a list; older ones are on the command line."""
PATCHES_LISTED = 50
BODY_CHARS = 600
"""Of an instruction in a list."""
TOLD_BYTES = 16 * 1024
"""Of a hold's request that is told in a list."""
ROW_CHARS = 400
ARGUMENTS_SHOWN = 200
ARGUMENT_CHARS = 64 * 1024
VERSIONS_SHOWN = 200
LIVE_HOLDS: tuple[State, ...] = ("pending", "granted", "resuming")
EDITABLE = ("draft", "queued")


@dataclass(frozen=True)
class Asked:
    """What a page is asked for. `path`: parts of its address; `query`: what follows it."""

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)


View = Callable[[Application, Asked], Awaitable[dict[str, Any]]]


async def overview(application: Application, asked: Asked) -> dict[str, Any]:
    commands = await _commands(application)
    pending = await application.list_holds(None, ("pending",), LISTED, TOLD_BYTES)
    return {
        "pending": pending,
        "about": _about(pending),
        "running": [command for command in commands or () if command.state == "running"],
        "runner_away": commands is None,
        "works": [work for work in await application.inbox.listed(None) if work.state in OPEN_WORK][:LISTED],
        "patches": await application.list_operations(None, None, 5),
        "workspaces": list(application.registry),
    }


# --- workspaces -------------------------------------------------------------------------------------------------------
async def workspaces(application: Application, asked: Asked) -> dict[str, Any]:
    return {"workspaces": list(application.registry)}


async def workspace(application: Application, asked: Asked) -> dict[str, Any]:
    workspace_id = asked.path["workspace_id"]
    found = application.registry.workspace(workspace_id)
    execution, problem = None, None
    try:
        execution = (await application.workspace_info(workspace_id)).execution
    except ToolError as error:
        if error.code is Code.WORKSPACE_NOT_FOUND:
            raise
        problem = error.message  # the runner is away: what the registry grants is still so
    works = await application.inbox.listed(workspace_id)
    return {
        "workspace": found,
        "limits": [_limit(name, value) for name, value in found.limits.model_dump().items()],
        "execution": execution,
        "problem": problem,
        "works": [work for work in works if work.state in OPEN_WORK][:LISTED],
        "running": [
            command
            for command in await _commands(application) or ()
            if command.workspace_id == workspace_id and command.state == "running"
        ],
    }


def _limit(name: str, value: int) -> tuple[str, str]:
    """Its name without the unit, and the value with it."""
    words, _, unit = name.rpartition("_")
    unit = {"s": "s", "mb": "MB", "kb": "KB"}.get(unit, "")
    return (words if unit else name), (f"{value:,} {unit}".strip() if value else "none")


# --- commands ---------------------------------------------------------------------------------------------------------
async def commands(application: Application, asked: Asked) -> dict[str, Any]:
    found = await _commands(application)
    listed = sorted(found or (), key=lambda one: (one.state == "running", one.process_id), reverse=True)
    return {"commands": listed[:LISTED], "runner_away": found is None}


async def command(application: Application, asked: Asked) -> dict[str, Any]:
    process_id = asked.path["process_id"]
    status = await application.process_status(api.QueryProcess(process_id=process_id))
    listed = await _commands(application) or ()
    found = next((one for one in listed if one.process_id == process_id), None)
    if found is None:
        raise ToolError(Code.PROCESS_NOT_FOUND, f"no process {process_id[:80]!r}: its record has expired")
    # What a browser without scripts gets; the stream replaces it.
    read = await application.read_process(
        api.ReadProcess(
            process_id=process_id,
            cursor=max(status.output_retained_from, status.output_total - 16 * 1024),
            max_bytes=16 * 1024,
        )
    )
    return {
        "command": found,
        "shell_line": shlex.join(found.command),
        "status": status,
        "runs": Renderer().feed(read.chunk, final=True),
    }


async def _commands(application: Application) -> tuple[ProcessListed, ...] | None:
    """None while there is no runner to ask."""
    try:
        return await application.list_processes(None)
    except ToolError as error:
        if error.code is not Code.RUNNER_UNAVAILABLE:
            raise
        return None


# --- holds ------------------------------------------------------------------------------------------------------------
async def holds(application: Application, asked: Asked) -> dict[str, Any]:
    live = await application.list_holds(None, LIVE_HOLDS, LISTED, TOLD_BYTES)
    return {
        "live": live,
        "about": _about(live),
        "over": await application.list_holds(None, ("denied", "consumed"), LISTED),
    }


def _about(listed: Sequence[HoldListed]) -> dict[str, list[str]]:
    """What each is about in a few words: the command's, or what the patch does with which files. Empty where that is
    too much for a list."""
    about: dict[str, list[str]] = {}
    for one in listed:
        request = one.request or {}
        if one.tool == "exec_command":
            words = request.get("command", [])
            about[one.approval_id] = [word[:ROW_CHARS] for word in words[:12]] + ["…"] * (len(words) > 12)
        else:
            about[one.approval_id] = diff.files_of(request.get("patch", ""), 4)
    return about


async def hold(application: Application, asked: Asked) -> dict[str, Any]:
    found = await application.show_hold(asked.path["approval_id"])
    return {"hold": found, **_request(found, asked)}


def _request(found: HoldListed, asked: Asked) -> dict[str, Any]:
    request = found.request
    if request is None:
        return {"kept": False}
    if found.tool == "exec_command":
        words = request["command"]
        return {
            "kept": True,
            "words": [word[:ARGUMENT_CHARS] for word in words[:ARGUMENTS_SHOWN]],
            "all_shown": len(words) <= ARGUMENTS_SHOWN and all(len(word) <= ARGUMENT_CHARS for word in words),
            "tty": request["tty"],
        }
    wanted = asked.query.get("part", "1")
    part = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 9 else 1
    versions = sorted(request["expected_versions"].items())
    return {
        "kept": True,
        "diff": diff.part_of(request["patch"], part),
        "size": len(request["patch"].encode()),
        "versions": versions[:VERSIONS_SHOWN],
        "versions_more": len(versions) - len(versions[:VERSIONS_SHOWN]),
        "operation_key": request["operation_key"],
    }


async def hold_text(application: Application, asked: Asked) -> str:
    """The whole of what is asked for: a patch as it is, a command as JSON that hides nothing. Raises APPROVAL_NOT_FOUND
    also where it is no longer kept."""
    found = await application.show_hold(asked.path["approval_id"])
    if found.request is None:
        raise ToolError(Code.APPROVAL_NOT_FOUND, f"what hold {found.approval_id} was about is no longer kept")
    if found.tool == "apply_patch":
        return str(found.request["patch"])
    return escaped(json.dumps(found.request["command"], indent=2, ensure_ascii=False))


# --- patches ----------------------------------------------------------------------------------------------------------
async def patches(application: Application, asked: Asked) -> dict[str, Any]:
    before = asked.query.get("before")
    listed = await application.list_operations(None, before, PATCHES_LISTED + 1)
    return {
        "patches": listed[:PATCHES_LISTED],
        "older": listed[PATCHES_LISTED - 1].operation_id if len(listed) > PATCHES_LISTED else None,
        "newest": before is None,
    }


async def patch(application: Application, asked: Asked) -> dict[str, Any]:
    return {"patch": await application.operation_status(operation_id=asked.path["operation_id"])}


# --- works ------------------------------------------------------------------------------------------------------------
async def works(application: Application, asked: Asked) -> dict[str, Any]:
    listed = await application.inbox.listed(None)
    return {
        "open": [work for work in listed if work.state in OPEN_WORK][:LISTED],
        "over": [work for work in listed if work.state not in OPEN_WORK][:LISTED],
    }


async def work(application: Application, asked: Asked) -> dict[str, Any]:
    work_id = asked.path["work_id"]
    # The work first: its queue may be newer than the revision then, and a step on the older one is refused.
    shown: WorkListed = await application.inbox.shown(work_id)
    outlines = await application.inbox.outlines(work_id, BODY_CHARS)
    return {
        "work": shown,
        "is_open": shown.state in OPEN_WORK,
        "queue": [intent for intent in outlines if intent.state in ("draft", "queued", "claimed")],
        "over": [intent for intent in outlines if intent.state not in ("draft", "queued", "claimed")][-LISTED:],
        "movable": [intent.intent_id for intent in outlines if intent.state in EDITABLE],
    }


async def instruction(application: Application, asked: Asked) -> dict[str, Any]:
    intent = await application.inbox.intent(asked.path["intent_id"])
    return {"intent": intent, "size": len(intent.body.encode()), "editable": intent.state in EDITABLE}
