"""`codespace holds` and `codespace work`. Each function prints and returns 0, or raises `OperatorError`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from gateway.cli.inbox_client import inbox, print_json, print_table, shown, shown_lines

LIVE = ("pending", "granted", "resuming")


# --- holds ------------------------------------------------------------------------------------------------------------
def list_holds(socket: Path, workspace: str | None, *, every: bool, as_json: bool) -> int:
    wanted = [{}] if every else [{"state": state} for state in LIVE]  # an old live hold may be beyond the newest of all
    found = [hold for query in wanted for hold in inbox(socket, "GET", "holds", query={**_of(workspace), **query})]
    found.sort(key=lambda hold: hold["approval_id"], reverse=True)
    if as_json:
        print_json(found)
    else:
        rows = [(h["approval_id"], h["state"], h["workspace_id"], h["tool"], h["created_at"]) for h in found]
        print_table(("APPROVAL_ID", "STATE", "WORKSPACE", "TOOL", "SINCE"), rows)
    return 0


def show_hold(socket: Path, approval_id: str, *, as_json: bool) -> int:
    hold = inbox(socket, "GET", "holds", approval_id)
    if as_json:
        print_json(hold)
        return 0
    for name in ("approval_id", "state", "workspace_id", "tool", "created_at", "resolved_at", "finished_at"):
        if name in hold:
            print(f"{name:13} {shown(str(hold[name]))}")
    request: dict[str, Any] = hold.get("request", {})
    for name, value in request.items():
        if name == "patch":
            print(f"\n{shown_lines(value.rstrip())}")
        elif name == "command":
            print(f"{name:13} {' '.join(ascii(word) for word in value)}")
        elif value:
            print(f"{name:13} {shown(str(value))}")
    return 0


def resolve(socket: Path, approval_id: str, decision: Literal["grant", "deny"]) -> int:
    answer = inbox(socket, "POST", "holds", approval_id, "resolve", body={"decision": decision})
    print(f"{answer['approval_id']} {answer['state']}")
    return 0


# --- works ------------------------------------------------------------------------------------------------------------
def list_works(socket: Path, workspace: str | None, *, every: bool, as_json: bool) -> int:
    found = inbox(socket, "GET", "works", query=_of(workspace))
    if not every:
        found = [work for work in found if work["state"] in ("active", "closing")]
    if as_json:
        print_json(found)
    else:
        rows = [
            (w["work_id"], w["state"], w["workspace_id"], w["queued"], w["claimed"], w.get("title", "")) for w in found
        ]
        print_table(("WORK_ID", "STATE", "WORKSPACE", "QUEUED", "CLAIMED", "TITLE"), rows)
    return 0


def show_work(socket: Path, work_id: str, *, as_json: bool) -> int:
    found = inbox(socket, "GET", "works", work_id, "intents")
    if as_json:
        print_json(found)
    else:
        rows = [(i["intent_id"], i["state"], i["kind"], i["delivery"], i["body"]) for i in found]
        print_table(("INTENT_ID", "STATE", "KIND", "DELIVERY", "BODY"), rows)
    return 0


def add_intent(socket: Path, work_id: str, text: str, *, delivery: str, note: bool, draft: bool) -> int:
    body = {
        "body": sys.stdin.read() if text == "-" else text,
        "delivery": delivery,
        "kind": "note" if note else "follow_up",
    }
    made = inbox(socket, "POST", "works", work_id, "intents", body=body)
    if not draft:
        made = _queue(socket, made)
    _say(made)
    return 0


def queue_intent(socket: Path, intent_id: str) -> int:
    """At the revision that it has now, which is shown."""
    _say(_queue(socket, inbox(socket, "GET", "intents", intent_id)))
    return 0


def cancel_intent(socket: Path, intent_id: str) -> int:
    _say(inbox(socket, "POST", "intents", intent_id, "cancel", body={}))
    return 0


def stop(socket: Path, work_id: str, reason: str | None) -> int:
    answer = inbox(socket, "POST", "works", work_id, "stop", body={} if reason is None else {"reason": reason})
    print(f"{answer['killed']} command(s) ended; notice {answer['intent']['intent_id']} is left")
    return 0


def _queue(socket: Path, intent: dict[str, Any]) -> dict[str, Any]:
    body = {"revision": intent["revision"]}
    queued: dict[str, Any] = inbox(socket, "POST", "intents", intent["intent_id"], "queue", body=body)
    return queued


def _say(intent: dict[str, Any]) -> None:
    print(f"{intent['intent_id']} {intent['state']}: {shown(intent['body'])[:200]}")


def _of(workspace: str | None) -> dict[str, str]:
    return {} if workspace is None else {"workspace_id": workspace}
