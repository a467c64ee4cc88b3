"""What the pages show and what their forms do, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.http.console import diff, views
from gateway.http.console.visible import shown
from gateway.steering import MAX_INTENT_BYTES
from gateway.store.database import StoreFailed
from tests.gateway.http.console.rig import HOSTILE, Browser, browser, held, opened, soon

pytestmark = pytest.mark.timeout(60)

PATCH = "*** Begin Patch\n*** Update File: a.txt\n@@\n-old <b>\n+new \u202e\n*** End Patch\n"


async def draft(b: Browser, work_id: str, body: str = "Do it", **fields: Any) -> str:
    """Through the form; the instruction's id."""
    sent: dict[str, Any] = {"body": body, "kind": "follow_up", "delivery": "next_checkpoint", "then": "draft", **fields}
    await b.post(f"/console/works/{work_id}/draft", **sent)
    return (await soon(b.core.application.inbox.intents(work_id)))[-1].intent_id  # type: ignore[no-any-return]


# --- holds ------------------------------------------------------------------------------------------------------------
@pytest.mark.covers("APPR-3", "APPR-6")
async def test_a_held_patch_is_shown_line_by_line_and_granted_once(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        app = b.core.application
        versions = {"a.txt": "sha256:" + "0" * 64, "b.txt": "absent"}
        hold = await soon(app.hold_patch("demo", PATCH, versions))
        await b.login()
        overview = await b.page("/")
        assert "Update a.txt" in overview.text
        path = f"/console/holds/{hold.approval_id}"
        page = await b.page(path)
        kinds = [
            (a["class"] or "").removeprefix("l ") for a in page.of("span") if (a.get("class") or "").startswith("l ")
        ]
        assert kinds == ["file", "file", "mark", "remove", "add", "file"]
        for line in (*PATCH.splitlines(), *versions, *versions.values()):
            assert shown(line) in page.text
        whole = await b.get(f"{path}/request.txt")
        assert whole.text == PATCH
        assert whole.headers["content-type"].startswith("text/plain")
        assert whole.headers["content-disposition"].startswith("attachment")
        reply = await b.post(f"{path}/resolve", decision="grant")
        assert reply.headers["location"] == f"{path}?said=granted"
        assert "Granted" in (await b.page(reply.headers["location"])).text
        stale = await b.post(f"{path}/resolve", 409, decision="deny")
        assert "Not done." in stale.text
        assert "granted" in stale.text
        assert (await soon(app.show_hold(hold.approval_id))).state == "granted"


@pytest.mark.covers("APPR-3", "APPR-6")
async def test_a_denied_hold_shows_no_request_any_more(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        approval_id = await held(b, command=("echo", HOSTILE, "two words"))
        await b.login()
        page = await b.page(f"/console/holds/{approval_id}")
        assert shown(HOSTILE) in page.text
        await b.post(f"/console/holds/{approval_id}/resolve", decision="deny")
        page = await b.page(f"/console/holds/{approval_id}")
        assert "no longer kept" in page.text
        assert not page.of("form", action=f"/console/holds/{approval_id}/resolve")
        await b.get(f"/console/holds/{approval_id}/request.txt", 404)


@pytest.mark.covers("APPR-3")
async def test_a_large_patch_comes_in_parts_and_says_so(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        count = 4 * diff.PART_CHARS // 20
        lines = "".join(f"+line {n:06} of it..\n" for n in range(count))
        text = f"*** Begin Patch\n*** Add File: a.txt\n{lines}*** End Patch\n"
        hold = await soon(b.core.application.hold_patch("demo", text))
        await b.login()
        path = f"/console/holds/{hold.approval_id}"
        first = await b.get(path)
        assert "Part 1 of 5" in first.text
        assert "part 1 of 5; a grant is for all of them" in first.text
        assert len(first.content) < 1024 * 1024
        assert f"line {count - 1:06} of it" in (await b.get(f"{path}?part=5")).text
        assert "in demo" in (await b.get("/")).text
        for odd in ("0", "-1", "x", "9" * 30, "٣"):
            await b.get(f"{path}?part={odd}")


async def test_a_command_of_many_words_is_cut_and_says_so(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        approval_id = await held(b, command=("echo", *["x"] * 2 * views.ARGUMENTS_SHOWN))
        await b.login()
        assert "<code>x</code> <code>…</code></span>" in (await b.get("/console/holds")).text
        page = await b.page(f"/console/holds/{approval_id}")
        assert len(page.of("pre")) == views.ARGUMENTS_SHOWN
        assert "not all of it" in page.text
        assert (await b.get(f"/console/holds/{approval_id}/request.txt")).text.count('"x"') == 2 * views.ARGUMENTS_SHOWN


# --- instructions -----------------------------------------------------------------------------------------------------
@pytest.mark.covers("WORK-2")
async def test_an_instruction_is_written_changed_queued_and_taken_back(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        app, work_id = b.core.application, await opened(b, HOSTILE)
        await b.login()
        intent_id = await draft(b, work_id, f"{HOSTILE}\r\nsecond line")
        (intent,) = await soon(app.inbox.intents(work_id))
        assert (intent.body, intent.state, intent.delivery) == (f"{HOSTILE}\nsecond line", "draft", "next_checkpoint")
        path = f"/console/instructions/{intent_id}"
        page = await b.page(path)
        assert page.of("input", name="revision")[0]["value"] == "1"
        await b.post(f"{path}/edit", revision="1", body="Changed", delivery="next_work")
        intent = await soon(app.inbox.intent(intent_id))
        assert (intent.body, intent.delivery, intent.revision) == ("Changed", "next_work", 2)
        await b.post(f"{path}/queue", revision="2")
        await b.post(f"{path}/cancel", 409, revision="2")
        await b.post(f"{path}/cancel", revision="3")
        assert (await soon(app.inbox.intent(intent_id))).state == "cancelled"
        await draft(b, work_id, "At once", then="queue")
        assert [i.state for i in await soon(app.inbox.intents(work_id))] == ["cancelled", "queued"]


@pytest.mark.covers("WORK-2")
async def test_an_edit_from_a_stale_page_shows_both_texts_and_overwrites_nothing(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        app, work_id = b.core.application, await opened(b)
        await b.login()
        intent_id = await draft(b, work_id)
        path = f"/console/instructions/{intent_id}"
        await b.post(f"{path}/edit", revision="1", body="Theirs")
        stale = await b.post(f"{path}/edit", 409, revision="1", body="Mine <b>", delivery="next_work")
        assert (await soon(app.inbox.intent(intent_id))).body == "Theirs"
        assert "Mine &lt;b&gt;" in stale.text
        assert "Theirs" in stale.text
        assert "Save over revision 2" in stale.text
        assert 'name="revision" value="2"' in stale.text
        assert '<option value="next_work" selected>' in stale.text
        await b.post(f"{path}/edit", revision="2", body="Mine, knowingly")
        # Claimed meanwhile: nothing can be saved any more, and the text is still there.
        await soon(app.inbox.queue(intent_id, 3))
        await soon(app.steer_claim_next(work_id))
        late = await b.post(f"{path}/edit", 409, revision="4", body="Too late")
        assert "Too late" in late.text
        assert (await soon(app.inbox.intent(intent_id))).body == "Mine, knowingly"


@pytest.mark.covers("WORK-2")
async def test_the_order_is_changed_by_one_step_or_as_a_whole_and_never_from_a_stale_page(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        app, work_id = b.core.application, await opened(b)
        await b.login()
        ids = [await draft(b, work_id, body) for body in "abc"]
        path = f"/console/works/{work_id}/reorder"

        async def order() -> str:
            return "".join(i.body for i in await soon(app.inbox.intents(work_id)))

        async def revision() -> str:
            return str((await soon(app.inbox.shown(work_id))).queue_revision)

        old = await revision()
        await b.post(path, queue_revision=old, move=ids[2], by="-1")
        assert await order() == "acb"
        stale = await b.post(path, 409, queue_revision=old, move=ids[0], by="1")
        assert "look at it again" in stale.text
        await b.post(path, 409, queue_revision=old, intent_ids=" ".join(ids))
        assert await order() == "acb"
        await b.post(path, queue_revision=await revision(), intent_ids=f"{ids[1]} {ids[0]} {ids[2]}")
        assert await order() == "bac"
        await b.post(path, queue_revision=await revision(), move=ids[1], by="-1")
        assert await order() == "bac"
        await b.post(path, 400, queue_revision=await revision(), move=ids[1], by="2")
        await b.post(path, 409, queue_revision=await revision(), move="int_nope", by="1")
        await b.post(path, 400, queue_revision="one", move=ids[1], by="1")


@pytest.mark.covers("WORK-2")
async def test_a_work_is_stopped_and_cancelled(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        work_id = await opened(b, workspace_id="free")
        process_id, _ = await b.core.exec("free", "sleep", "1")
        await b.login()
        await b.post(f"/console/works/{work_id}/stop", reason="  ")
        assert process_id not in b.core.runner.running
        (notice,) = await soon(b.core.application.inbox.intents(work_id))
        assert notice.kind == "stop_notice"
        assert "notice" in (await b.page(f"/console/works/{work_id}?said=stopped")).text
        await b.post(f"/console/works/{work_id}/cancel")
        await b.post(f"/console/works/{work_id}/cancel")
        closed = await b.post(f"/console/works/{work_id}/draft", 409, body="x", kind="note", delivery="next_checkpoint")
        assert "cancelled" in closed.text


@pytest.mark.covers("WORK-2")
async def test_an_instruction_of_a_mebibyte_is_taken_shown_whole_and_outlined_in_the_queue(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        work_id = await opened(b)
        await b.login()
        body = "<script>" + "ä\n" * 1_000
        body += "x" * (MAX_INTENT_BYTES - len(body.encode()))
        intent_id = await draft(b, work_id, body)
        assert (await soon(b.core.application.inbox.intent(intent_id))).body == body
        assert len((await b.get(f"/console/works/{work_id}")).content) < 64 * 1024
        page = await b.get(f"/console/instructions/{intent_id}")
        assert page.text.count("ä") == body.count("ä")
        reply = await b.post(
            f"/console/works/{work_id}/draft", 400, body=body + "x", kind="follow_up", delivery="next_work"
        )
        assert "more than the" in reply.text


@pytest.mark.covers("WORK-2")
@pytest.mark.parametrize(
    "fields",
    [
        {"body": " \n"},
        {"body": "x", "kind": "stop_notice"},
        {"body": "x", "delivery": "now"},
        {"body": "-"},
        {"body": "x", "kind": "-"},
    ],
)
async def test_a_malformed_draft_is_refused_and_nothing_is_written(tmp_path: Path, fields: dict[str, str]) -> None:
    async with browser(tmp_path) as b:
        work_id = await opened(b)
        await b.login()
        sent: dict[str, Any] = {"kind": "follow_up", "delivery": "next_work", **fields}
        await b.post(f"/console/works/{work_id}/draft", 400, **sent)
        assert await soon(b.core.application.inbox.intents(work_id)) == ()


# --- the rest ---------------------------------------------------------------------------------------------------------
@pytest.mark.covers("POL-1", "BOX-4")
async def test_a_workspace_is_shown_with_its_rights_protections_and_limits(tmp_path: Path) -> None:
    more = {"network": "enabled", "network_allow": ["*.example.org"], "limits": {"timeout_s": 77}}
    async with browser(tmp_path, net={"profile": "read-only", **more}, bare={"sandbox": "off"}) as b:
        await b.login()
        page = await b.page("/console/workspaces/net")
        for words in ("read-only", "*.example.org", "77 s", ".git/hooks", "user namespace", "active"):
            assert words in page.text
        assert [a["class"] for a in page.of("span") if (a.get("class") or "").startswith("grant ")] == [
            "grant yes",
            "grant no",
            "grant no",
        ]
        assert "sandbox is off" in (await b.page("/console/workspaces/bare")).text
        instance = b.core.link.lose()
        b.core.link.prove_dead(instance)
        assert "cannot be told now" in (await b.page("/console/workspaces/net")).text
        assert "not connected" in (await b.page("/")).text
        assert "not connected" in (await b.page("/console/commands")).text


@pytest.mark.covers("OP-5")
async def test_the_ledger_is_shown_with_hashes_and_in_pages(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        app = b.core.application
        for _ in range(views.PATCHES_LISTED + 1):
            last = await soon(app.apply_patch("free", PATCH))
        await b.login()
        page = await b.page("/console/patches")
        assert page.text.count("applied") == views.PATCHES_LISTED
        (older,) = [a["href"] for a in page.of("a") if (a.get("href") or "").startswith("/console/patches?before=")]
        assert (await b.page(str(older))).text.count("applied") == 1
        shown_patch = await b.page(f"/console/patches/{last.operation_id}")
        assert "applied" in shown_patch.text


async def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        await b.login()
        for path in ("holds", "works", "instructions", "patches", "workspaces", "commands"):
            await b.get(f"/console/{path}/nope", 404)
            await b.get(f"/console/{path}/{'x' * 300}", 404)
        await b.get("/console/nope", 404)
        await b.get("/console/holds/x/resolve", 405)
        await b.post("/console/commands/nope/stop", 404)
        await b.post("/console/holds/nope/resolve", 404, decision="grant")


async def test_a_fault_of_ours_shows_an_id_and_the_log_has_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise OSError(5, "Input/output error", "/srv/secret/place")

    async with browser(tmp_path) as b:
        await b.login()
        monkeypatch.setattr(b.core.application.inbox, "listed", broken)
        reply = await b.get("/", 500)
        assert "/srv" not in reply.text
        assert "error_id err_" in reply.text
        assert "/srv/secret/place" in b.log.getvalue()


async def test_a_store_that_is_away_is_said_and_lets_nobody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with browser(tmp_path) as b:
        await b.login()

        async def failing(*_: object) -> None:
            raise StoreFailed("disk I/O error")

        monkeypatch.setattr(b.core.application.console_sessions, "find", failing)
        monkeypatch.setattr(b.core.application.console_sessions, "add", failing)
        for path in ("/", "/console/login", "/console/events"):
            assert "store cannot be used" in (await b.get(path, 503)).text
        assert "set-cookie" not in (await b.login(want=503)).headers


@pytest.mark.covers("WORK-2", "APPR-3")
async def test_hostile_words_are_text_on_every_page(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        app, work_id = b.core.application, await opened(b, HOSTILE)
        await b.login()
        intent_id = await draft(b, work_id, HOSTILE)
        approval_id = await held(b, command=(HOSTILE, HOSTILE))
        await soon(app.apply_patch("free", PATCH, operation_key="<script>"))
        for path in (
            *("/", "/console/works", f"/console/works/{work_id}", f"/console/instructions/{intent_id}"),
            *("/console/holds", f"/console/holds/{approval_id}", "/console/patches"),
        ):
            page = await b.page(path)
            assert all((script.get("src") or "").startswith("/console/static/") for script in page.of("script"))
            assert not [image for image in page.of("img") if "onerror" in image or image.get("src") == "x"]
            assert "\x1b" not in page.text.replace(HOSTILE, "")
