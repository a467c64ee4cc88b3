"""What a load client does, and what must be true of every answer. Each scene leaves the workspace as it may be left.

Refuses to know transports. `SCENES` names them with their weights; a scene raises `load_truth.Wrong`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from benchmarks.load_actor import WAIT_MS, Actor
from benchmarks.load_client import Refused
from benchmarks.load_truth import (
    NOTE_LINES,
    Transcript,
    check,
    check_pages,
    extra,
    needles,
    note,
    numbers,
    patch,
    revision_of,
    static_files,
    static_paths,
    version,
    wide,
)

Scene = Callable[[Actor], Awaitable[None]]
A_WEEK_MS = 7 * 24 * 3600 * 1000


# --- files ------------------------------------------------------------------------------------------------------------
async def read_a_note(actor: Actor) -> None:
    """Anybody's note is wholly one revision: not older than what was known before, not newer than what was tried."""
    owner = actor.rng.choice(actor.world.owners[actor.workspace])
    revisions = actor.world.notes[actor.workspace, owner]
    oldest = revisions.known
    answer = await actor.here("read", path=f"{owner}/notes.txt")
    content = answer["content"]
    revision = revision_of(content.partition("\n")[0], actor.workspace, owner)
    check(oldest <= revision <= revisions.tried, "a revision out of time", owner, oldest, revision, revisions)
    check(content == note(actor.workspace, owner, revision), "a note that is no one revision", owner, content)
    check(answer["version"] == version(content), "a version of other content", owner, answer["version"])
    check(answer["size"] == len(content.encode()) and not answer["truncated"], "a size of other content", answer)


async def read_lines(actor: Actor) -> None:
    path = actor.rng.choice(static_paths())
    lines = static_files()[path].splitlines(keepends=True)
    first = actor.rng.randint(1, len(lines))
    count = actor.rng.randint(1, 20)
    answer = await actor.here("read", path=path, offset=first, limit=count)
    check(answer["content"] == "".join(lines[first - 1 : first - 1 + count]), "other lines", path, first, count)
    check(answer["version"] == version(static_files()[path]), "a version of other content", path)


async def find_all(actor: Actor) -> None:
    limit = actor.rng.choice((7, 25, 200))
    found = await _pages(actor, "find", limit, pattern="static/**/*.txt")
    sizes = [(path, len(static_files()[path])) for path in static_paths()]
    check([(m["path"], m["size"]) for m in found] == sizes, "find gave other files", limit, len(found))
    notes = await _pages(actor, "find", limit, pattern="*/notes.txt")
    owned = sorted(f"{owner}/notes.txt" for owner in actor.world.owners[actor.workspace])
    check([m["path"] for m in notes] == owned, "a note went missing", notes)


async def grep_all(actor: Actor) -> None:
    limit = actor.rng.choice((2, 200))
    found = await _pages(actor, "grep", limit, pattern="^needle [0-9]+$", glob="static/**")
    check([(m["path"], m["line"], m["text"]) for m in found] == list(needles()), "grep gave other lines", found)
    oldest = {owner: actor.world.notes[actor.workspace, owner].known for owner in actor.world.owners[actor.workspace]}
    notes = await _pages(actor, "grep", 200, pattern="^revision ", glob="*/notes.txt")
    check([m["path"].partition("/")[0] for m in notes] == sorted(oldest), "grep missed a note", notes)
    for match in notes:
        owner = match["path"].partition("/")[0]
        revision = revision_of(match["text"], actor.workspace, owner)
        newest = actor.world.notes[actor.workspace, owner].tried
        check(oldest[owner] <= revision <= newest, "grep gave a revision out of time", owner, revision)


async def _pages(actor: Actor, tool: str, limit: int, **arguments: str) -> list[dict[str, Any]]:
    pages = [await actor.here(tool, limit=limit, **arguments)]
    while pages[-1]["truncated"]:
        pages.append(await actor.here(tool, limit=limit, cursor=pages[-1]["next_cursor"], **arguments))
    return check_pages(pages, limit)


# --- patches ----------------------------------------------------------------------------------------------------------
async def patch_mine(actor: Actor) -> None:
    """One revision on: with the right version, then again with its key, then with a version that is old by now."""
    await _one_on(actor, actor.new_key("patch"), abandon=False)
    revision = actor.mine.known
    path = f"{actor.name}/notes.txt"
    stale = {path: version(note(actor.workspace, actor.name, revision - 1))}
    text = patch(actor.workspace, actor.name, revision)
    try:
        await actor.leased("apply_patch", patch=text, expected_versions=stale)
        check(False, "a stale patch was let through", actor.name, revision)
    except Refused as refused:
        check(refused.code == "VERSION_CONFLICT", "a stale patch was refused otherwise", str(refused))
    checked = await actor.here("apply_patch", patch=text, check_only=True)
    check(checked["status"] == "checked", "a preview that is none", checked)
    await _mine_is_on_disk(actor)


async def patch_and_go_away(actor: Actor) -> None:
    """The answer is given up; the key then finds out, and it is applied once."""
    await _one_on(actor, actor.new_key("lost"), abandon=True)
    await _mine_is_on_disk(actor)


async def _one_on(actor: Actor, key: str, *, abandon: bool) -> None:
    revision = actor.mine.known
    path = f"{actor.name}/notes.txt"
    arguments = {
        "patch": patch(actor.workspace, actor.name, revision),
        "expected_versions": {path: version(note(actor.workspace, actor.name, revision))},
        "operation_key": key,
    }
    actor.mine.tried = revision + 1
    if abandon:
        await actor.client.abandon("apply_patch", {"workspace_id": actor.workspace, **arguments})
    applied = await actor.leased("apply_patch", **arguments)
    check(applied["status"] == "applied", "a patch that was not applied", applied)
    after = {change["path"]: change.get("after_version") for change in applied["changes"]}
    check(after[path] == version(note(actor.workspace, actor.name, revision + 1)), "another result", applied)
    actor.mine.known = revision + 1
    again = await actor.leased("apply_patch", **arguments)
    check(again["operation_id"] == applied["operation_id"] and again["replayed"], "a key that ran twice", again)
    told = await actor.call("operation_status", operation_key=key, workspace_id=actor.workspace)
    check((told["operation_id"], told["status"]) == (applied["operation_id"], "applied"), "the ledger differs", told)
    other = {**arguments, "patch": patch(actor.workspace, actor.name, revision + 1)}
    await actor.refused("OPERATION_KEY_CONFLICT", "apply_patch", workspace_id=actor.workspace, **other)


async def _mine_is_on_disk(actor: Actor) -> None:
    revision = actor.mine.known
    answer = await actor.here("read", path=f"{actor.name}/notes.txt")
    check(answer["content"] == note(actor.workspace, actor.name, revision), "a patch that is not there", revision)
    found = await actor.here("find", pattern=f"{actor.name}/*")
    names = ["extra.txt", "notes.txt"] if extra(actor.name, revision) is not None else ["notes.txt"]
    paths = [match["path"] for match in found["matches"]]
    check(paths == [f"{actor.name}/{name}" for name in names], "half a patch", revision, paths)


# --- commands ---------------------------------------------------------------------------------------------------------
async def short_command(actor: Actor) -> None:
    """It sees its own note as it is, says so, ends with its code, and leaves a daemon that must not matter."""
    code = actor.rng.randrange(256)
    script = f"{actor.logged()}; cat {actor.name}/notes.txt; (setsid sleep 600 &) ; exit {code}"
    process_id = await actor.start("/bin/sh", "-c", script)
    await actor.output(process_id, note(actor.workspace, actor.name, actor.mine.known).encode())
    await actor.ended_with(process_id, code)


async def chatty_command(actor: Actor) -> None:
    """More than is retained, read while it comes and exactly."""
    last = actor.rng.choice((20_000, 200_000))
    process_id = await actor.start("/bin/sh", "-c", f"{actor.logged()}; exec seq 1 {last}")
    encoding = actor.rng.choice(("utf-8", "base64"))
    transcript = await actor.output(process_id, numbers(last), encoding=encoding, max_bytes=256 * 1024)
    await actor.ended_with(process_id, 0)
    status = await actor.status(process_id)
    check(status["output_total"] == len(numbers(last)) == transcript.cursor, "a wrong total", status)


async def wide_characters(actor: Actor) -> None:
    """No chunk splits a character, whatever was asked for."""
    lines = 400
    process_id = await actor.start("/bin/sh", "-c", f"{actor.logged()}; yes '{wide(1).decode().strip()}' | head -n 400")
    await actor.output(process_id, wide(lines), max_bytes=actor.rng.choice((1_001, 4_093)))
    await actor.ended_with(process_id, 0)


async def conversation(actor: Actor) -> None:
    """What is written comes back, in order, until the end of the input."""
    process_id = await actor.start("/bin/sh", "-c", f"{actor.logged()}; exec cat")
    transcript = Transcript(numbers(900))
    at = 0
    while at < len(transcript.expected):
        data = transcript.expected[at : at + 1_300].decode()
        last = at + 1_300 >= len(transcript.expected)
        answer = await actor.call("write_stdin", process_id=process_id, data=data, eof=last)
        check(answer["written_bytes"] == len(data), "a pipe that was not full took less", answer)
        at += len(data)
        transcript.take(
            await actor.call("read_process", process_id=process_id, cursor=transcript.cursor, wait_ms=WAIT_MS)
        )
        if actor.rng.random() < 0.1:
            await actor.client.reconnect()
    while not transcript.eof:
        transcript.take(
            await actor.call("read_process", process_id=process_id, cursor=transcript.cursor, wait_ms=WAIT_MS)
        )
    await actor.ended_with(process_id, 0)
    await actor.refused("PROCESS_NOT_RUNNING", "write_stdin", process_id=process_id, data="late")


async def terminal(actor: Actor) -> None:
    rows, cols = actor.rng.randint(1, 1000), actor.rng.randint(1, 1000)
    script = f"{actor.logged()}; stty -echo -onlcr; echo ready; read line; stty size"
    process_id = await actor.start("/bin/sh", "-c", script, tty=True)
    transcript = Transcript(f"ready\n{rows} {cols}\n".encode())
    while transcript.cursor < len("ready\n"):
        transcript.take(
            await actor.call("read_process", process_id=process_id, cursor=transcript.cursor, wait_ms=WAIT_MS)
        )
    await actor.call("process_resize", process_id=process_id, rows=rows, cols=cols)
    await actor.call("write_stdin", process_id=process_id, data="go\n")
    while not transcript.eof:
        transcript.take(
            await actor.call("read_process", process_id=process_id, cursor=transcript.cursor, wait_ms=WAIT_MS)
        )
    await actor.ended_with(process_id, 0)
    await actor.refused("PROCESS_NOT_RUNNING", "process_resize", process_id=process_id, rows=2, cols=2)


async def cancel(actor: Actor) -> None:
    """A command that would run on, with a child that ignores TERM, is ended as asked; twice is once."""
    script = "(trap '' TERM; sleep 600) & exec sleep 600"
    process_id = await actor.start("/bin/sh", "-c", script)
    waiting = asyncio.create_task(actor.exited(process_id))
    try:
        for _ in range(2):
            await actor.call("terminate_process", process_id=process_id)
        status = await waiting
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    check(status["termination"] == "terminated" and "exit_code" not in status, "another end than asked", status)
    answer = await actor.call("terminate_process", process_id=process_id)
    check(answer["state"] == "exited", "terminate of what is over", answer)


async def abandoned_command(actor: Actor) -> None:
    """The start's answer is given up; its key finds the one command, which has run once."""
    code = actor.rng.randrange(256)
    key = actor.new_key("run")
    command = ["/bin/sh", "-c", f"{actor.logged()}; exit {code}"]
    arguments = {"command": command, "request_key": key}
    await actor.client.abandon("exec_command", {"workspace_id": actor.workspace, **arguments})
    process_id = await actor.start(*command, request_key=key)
    again = await actor.here("exec_command", **arguments)
    check(again["process_id"] == process_id, "a key that ran twice", again, process_id)
    other = {"workspace_id": actor.workspace, "command": ["true"], "request_key": key}
    await actor.refused("OPERATION_KEY_CONFLICT", "exec_command", **other)
    await actor.output(process_id, b"")
    await actor.ended_with(process_id, code)


async def abandoned_waits(actor: Actor) -> None:
    """Long waits that are given up, and the connection with them, change nothing for the command."""
    process_id = await actor.start("/bin/sh", "-c", f"{actor.logged()}; read line; echo $line")
    for tool in ("read_process", "process_status"):
        await actor.client.abandon(tool, {"process_id": process_id, "wait_ms": 60_000})
    await actor.client.reconnect()
    await actor.call("write_stdin", process_id=process_id, data="on\n")
    await actor.output(process_id, b"on\n")
    await actor.ended_with(process_id, 0)


async def runs_are_logged_once(actor: Actor) -> None:
    """Every logged command of this client ran, once, in order."""
    if actor.runs:
        answer = await actor.here("read", path=f"runs/{actor.name}.log")
        check(answer["content"].encode() == numbers(actor.runs), "commands ran twice or never", actor.runs, answer)


async def refusals(actor: Actor) -> None:
    here = {"workspace_id": actor.workspace}
    await actor.refused("FILE_NOT_FOUND", "read", path="missing", **here)
    await actor.refused("PATH_ESCAPE", "read", path="../x", **here)
    await actor.refused("SPECIAL_FILE_REJECTED", "read", path="static", **here)
    await actor.refused("WORKSPACE_NOT_FOUND", "read", path="x", workspace_id="nobody")
    await actor.refused("INVALID_COMMAND", "exec_command", command=[], **here)
    await actor.refused("PROCESS_NOT_FOUND", "process_status", process_id="proc_of_nobody")
    await actor.refused("INVALID_ARGUMENT", "process_status", process_id="proc_of_nobody", wait_ms=A_WEEK_MS)
    await actor.refused("INVALID_PATCH", "apply_patch", patch="no patch", check_only=True, **here)
    text = f"*** Begin Patch\n*** Update File: {actor.name}/notes.txt\n@@\n-line {NOTE_LINES} none\n+x\n*** End Patch\n"
    refused = None
    try:
        await actor.leased("apply_patch", patch=text)
    except Refused as error:
        refused = error
    check(refused is not None and refused.code == "INVALID_PATCH", "a patch that fits nowhere", str(refused))
    check(refused is not None and refused.operation_id is not None, "an error without its operation", str(refused))


SCENES: Mapping[str, tuple[Scene, int]] = {
    scene.__name__.replace("_", " "): (scene, weight)
    for scene, weight in (
        (read_a_note, 12),
        (read_lines, 6),
        (find_all, 4),
        (grep_all, 3),
        (patch_mine, 4),
        (patch_and_go_away, 2),
        (short_command, 5),
        (chatty_command, 3),
        (wide_characters, 2),
        (conversation, 2),
        (terminal, 2),
        (cancel, 2),
        (abandoned_command, 3),
        (abandoned_waits, 2),
        (runs_are_logged_once, 2),
        (refusals, 2),
    )
}
