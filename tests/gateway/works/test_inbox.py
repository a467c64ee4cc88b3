"""The inbox over HTTP: shapes, statuses, bad input, who may come in."""

from __future__ import annotations

import contextlib
import io
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import jsonschema  # type: ignore[import-untyped]
import pytest

from gateway import logging as gateway_logging
from gateway.appliance import Endpoints
from gateway.errors import Code
from gateway.http.inbox import STATUS, Inbox
from gateway.http.inbox_api import ENDPOINTS
from tests.gateway.core.application_rig import WRITE, Core, core, soon
from tests.gateway.transport.serving import endpoints, serve

HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m \u202e \U0001f600 ' \" \\ \r\n"


class Web:
    """A real application behind the inbox, called without sockets."""

    def __init__(self, c: Core, client: httpx2.AsyncClient, log: io.StringIO) -> None:
        self.core, self.client, self.log = c, client, log

    async def __call__(self, method: str, path: str, body: Any = None, *, want: int = 200) -> Any:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        reply = await soon(self.client.request(method, f"/inbox{path}", content=content))
        assert reply.status_code == want, (method, path, reply.status_code, reply.text)
        assert reply.headers["content-type"] == "application/json"
        return reply.json()

    async def refused(self, status: int, code: Code, method: str, path: str, body: Any = None) -> Any:
        error = (await self(method, path, body, want=status))["error"]
        assert error["code"] == code.value, error
        return error


@contextlib.asynccontextmanager
async def web(base: Path) -> AsyncIterator[Web]:
    log = io.StringIO()
    async with core(base, {"demo": {**WRITE, "approvals": "confirm"}, "free": WRITE}) as c:
        inbox = Inbox(c.application, "1", gateway_logging.configure("info", stream=log))
        transport = httpx2.ASGITransport(app=inbox.asgi)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Web(c, client, log)


async def opened(w: Web, workspace_id: str = "demo") -> str:
    return (await soon(w.core.application.work_open(workspace_id, HOSTILE))).work_id  # type: ignore[no-any-return]


@pytest.mark.covers("WORK-2")
@pytest.mark.parametrize(
    "sent",
    [
        {"body": "b", **{f"{n}": n for n in range(50_000)}},
        {"body": "b", "x" * 1_000_000: 1},
        {"body": [1] * 500_000},
        {"intent_ids": [1] * 500_000},
    ],
    ids=["names", "one long name", "a body of another type", "elements"],
)
async def test_a_complaint_stays_small_however_much_is_wrong(sent: dict[str, Any], tmp_path: Path) -> None:
    raw = json.dumps(sent).encode()
    async with web(tmp_path) as call:
        work_id = await opened(call)
        tracemalloc.start()
        try:
            place = "reorder" if "intent_ids" in sent else "intents"
            error = await call.refused(400, Code.INVALID_ARGUMENT, "POST", f"/works/{work_id}/{place}", raw)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(json.dumps(error)) < 1_000
    assert most < 30 * len(raw)


# --- the flow ---------------------------------------------------------------------------------------------------------
@pytest.mark.covers("WORK-2")
async def test_an_instruction_goes_from_draft_to_done(tmp_path: Path) -> None:
    async with web(tmp_path) as call:
        app, work_id = call.core.application, await opened(call)
        made = await call("POST", f"/works/{work_id}/intents", {"body": HOSTILE}, want=201)
        assert made == {
            "intent_id": made["intent_id"],
            "work_id": work_id,
            "workspace_id": "demo",
            "position": 1,
            "revision": 1,
            "kind": "follow_up",
            "delivery": "after_current_work",
            "body": HOSTILE,
            "state": "draft",
        }
        place = f"/intents/{made['intent_id']}"
        edited = await call("PATCH", place, {"revision": 1, "body": HOSTILE, "delivery": "next_checkpoint"})
        await call.refused(409, Code.INTENT_REVISION_CONFLICT, "PATCH", place, {"revision": 1, "body": "stale"})
        queued = await call("POST", f"{place}/queue", {"revision": edited["revision"]})
        assert (queued["state"], queued["revision"]) == ("queued", 3)
        item = (await soon(app.steer_claim_next(work_id))).item
        assert item.content == HOSTILE
        await call.refused(409, Code.INTENT_ALREADY_CLAIMED, "POST", f"{place}/cancel")
        await soon(app.steer_complete(work_id, item.intent_id, "done"))
        assert [i["state"] for i in await call("GET", f"/works/{work_id}/intents")] == ["done"]
        await call.refused(409, Code.INTENT_NOT_EDITABLE, "POST", f"{place}/cancel", {})


@pytest.mark.covers("WORK-2")
async def test_works_are_listed_shown_reordered_stopped_and_cancelled(tmp_path: Path) -> None:
    async with web(tmp_path) as call:
        work_id, other = await opened(call), await opened(call, "free")
        assert [w["work_id"] for w in await call("GET", "/works")] == [other, work_id]
        (listed,) = await call("GET", "/works?workspace_id=demo")
        assert listed == await call("GET", f"/works/{work_id}")
        assert (listed["title"], listed["state"], listed["queued"]) == (HOSTILE, "active", 0)
        ids = [(await call("POST", f"/works/{work_id}/intents", {"body": b}, want=201))["intent_id"] for b in "abc"]
        ordered = await call("POST", f"/works/{work_id}/reorder", {"intent_ids": ids[::-1]})
        assert [(i["body"], i["position"]) for i in ordered] == [("c", 1), ("b", 2), ("a", 3)]
        process_id, _ = await call.core.exec("free")
        stopped = await call("POST", f"/works/{other}/stop", {"reason": HOSTILE})
        assert (stopped["ok"], stopped["killed"]) == (True, 1)
        assert (stopped["intent"]["kind"], stopped["intent"]["body"]) == ("stop_notice", HOSTILE)
        assert process_id not in call.core.runner.running
        await call("POST", f"/works/{other}/stop")
        assert (await call("POST", f"/works/{other}/cancel"))["state"] == "cancelled"
        await call.refused(409, Code.WORK_CLOSED, "POST", f"/works/{other}/stop", {})


@pytest.mark.covers("WORK-2")
async def test_a_cancel_or_an_order_that_names_another_revision_is_refused(tmp_path: Path) -> None:
    async with web(tmp_path) as call:
        work_id = await opened(call)
        ids = [(await call("POST", f"/works/{work_id}/intents", {"body": b}, want=201))["intent_id"] for b in "ab"]
        seen = (await call("GET", f"/works/{work_id}"))["queue_revision"]
        wanted = {"intent_ids": ids[::-1], "queue_revision": seen}
        await call("POST", f"/works/{work_id}/reorder", wanted)
        error = await call.refused(409, Code.INTENT_REVISION_CONFLICT, "POST", f"/works/{work_id}/reorder", wanted)
        assert error["details"] == {"work_id": work_id, "queue_revision": seen + 1}
        await call("PATCH", f"/intents/{ids[0]}", {"revision": 1, "body": "changed"})
        place = f"/intents/{ids[0]}/cancel"
        await call.refused(409, Code.INTENT_REVISION_CONFLICT, "POST", place, {"revision": 1})
        assert (await call("POST", place, {"revision": 2}))["state"] == "cancelled"
        assert (await call("POST", f"/intents/{ids[1]}/cancel"))["state"] == "cancelled"


@pytest.mark.covers("APPR-3", "APPR-6")
async def test_holds_are_listed_with_their_request_while_it_is_kept_and_resolved(tmp_path: Path) -> None:
    async with web(tmp_path) as call:
        app = call.core.application
        error = await call.core.refused(app.exec_command("demo", ("echo", HOSTILE)), Code.APPROVAL_REQUIRED)
        assert error.approval_id is not None
        (listed,) = await call("GET", "/holds?workspace_id=demo&state=pending")
        assert (listed["approval_id"], listed["state"]) == (error.approval_id, "pending")
        assert "request" not in listed
        place = f"/holds/{error.approval_id}"
        assert (await call("GET", place))["request"] == {"command": ["echo", HOSTILE], "tty": False}
        resolved = await call("POST", f"{place}/resolve", {"decision": "grant"})
        assert resolved == {"approval_id": error.approval_id, "state": "granted"}
        await call.refused(409, Code.APPROVAL_CONFLICT, "POST", f"{place}/resolve", {"decision": "deny"})
        assert await call("GET", "/holds?state=pending") == []
        await soon(app.operation_resume(error.approval_id))
        assert "request" not in await call("GET", place)


# --- bad input --------------------------------------------------------------------------------------------------------
@pytest.mark.covers("WORK-2")
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"{not json", b"[]", b"null", b'"x"', b"\xff", b'{"body": "x", "body2": 1}', b'{"body": 1}'),
        *(b'{"body": null}', b'{"body": ""}', b'{"body": "\\ud800"}', b'{"body": "x", "kind": "stop_notice"}'),
        *(b'{"body": "x", "kind": "order"}', b'{"body": "x", "delivery": "now"}', b'{"body": "x", "state": "queued"}'),
        *(b"[" * 100_000, b'{"body": "' + b"x" * (1024 * 1024 + 1) + b'"}'),
    ],
    ids=lambda body: ascii(body[:24]),
)
async def test_a_malformed_draft_is_refused_and_nothing_is_written(body: bytes, tmp_path: Path) -> None:
    async with web(tmp_path) as call:
        work_id = await opened(call)
        error = await call.refused(400, Code.INVALID_ARGUMENT, "POST", f"/works/{work_id}/intents", body)
        assert error["details"]["argument"]
        assert await call("GET", f"/works/{work_id}/intents") == []


@pytest.mark.covers("WORK-2")
async def test_bad_calls_have_their_status(tmp_path: Path) -> None:
    async with web(tmp_path) as call:
        work_id = await opened(call)
        draft = await call("POST", f"/works/{work_id}/intents", {"body": "x" * 1024 * 1024}, want=201)
        place = f"/intents/{draft['intent_id']}"
        for path, body in (
            (f"{place}/queue", {}),
            (f"{place}/queue", {"revision": "1"}),
            (f"{place}/queue", {"revision": True}),
            (f"{place}/cancel", {"surplus": 1}),
            (f"/works/{work_id}/reorder", {"intent_ids": []}),
            (f"/works/{work_id}/reorder", {"intent_ids": [1]}),
            (f"/works/{work_id}/reorder", {"intent_ids": [draft["intent_id"]] * 2}),
            (f"/works/{work_id}/stop", {"reason": " "}),
        ):
            await call.refused(400, Code.INVALID_ARGUMENT, "POST", path, body)
        await call.refused(409, Code.INTENT_REVISION_CONFLICT, "POST", f"{place}/queue", {"revision": 2**80})
        for query in ("?state=open", "?nope=1"):
            await call.refused(400, Code.INVALID_ARGUMENT, "GET", f"/holds{query}")
        unknown: list[tuple[str, str, Any]] = [
            ("GET", "/works/nope", None),
            ("GET", "/works/nope/intents", None),
            ("POST", "/works/nope/intents", {"body": "b"}),
            ("POST", "/works/nope/stop", {}),
        ]
        for method, path, sent in unknown:
            await call.refused(404, Code.WORK_NOT_FOUND, method, path, sent)
        await call.refused(404, Code.INTENT_NOT_FOUND, "POST", "/intents/nope/cancel", {})
        await call.refused(404, Code.INTENT_NOT_FOUND, "PATCH", "/intents/nope", {"revision": 1, "body": "b"})
        await call.refused(404, Code.APPROVAL_NOT_FOUND, "GET", "/holds/nope")
        for path in ("/works?workspace_id=nope", "/holds?workspace_id=nope", "/processes?workspace_id=nope"):
            await call.refused(404, Code.WORKSPACE_NOT_FOUND, "GET", path)
        assert (await call("GET", "/nope", want=404))["error"]["reason"] == "route"
        assert (await call("POST", "/works", {}, want=405))["error"]["reason"] == "route"


@pytest.mark.covers("WORK-2")
async def test_a_fault_of_ours_shows_an_id_and_the_log_has_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise OSError(5, "Input/output error", "/srv/secret/place")

    async with web(tmp_path) as call:
        monkeypatch.setattr(call.core.application.inbox, "listed", broken)
        error = await call.refused(500, Code.INTERNAL, "GET", "/works")
        assert "/srv" not in json.dumps(error)
        assert "/srv/secret/place" in call.log.getvalue()
        assert error["details"]["error_id"] in call.log.getvalue()


# --- the description --------------------------------------------------------------------------------------------------
@pytest.mark.covers("WORK-2")
async def test_the_description_names_every_endpoint_and_its_schemas_are_schemas(tmp_path: Path) -> None:
    async with web(tmp_path) as call:
        described = await call("GET", "/openapi.json")
        assert described["openapi"] == "3.1.0"
        served = {(endpoint.method.lower(), endpoint.path) for endpoint in ENDPOINTS}
        assert {(m, path) for path, methods in described["paths"].items() for m in methods} == served
        schemas = described["components"]["schemas"]
        for schema in schemas.values():
            jsonschema.Draft202012Validator.check_schema(schema)
        assert set(references(described)) <= {f"#/components/schemas/{name}" for name in schemas}
        work_id = await opened(call)
        made = await call("POST", f"/works/{work_id}/intents", {"body": "b"}, want=201)
        answer = described["paths"]["/inbox/works/{work_id}/intents"]["post"]["responses"]["201"]
        schema = answer["content"]["application/json"]["schema"]
        jsonschema.validate(made, {**schema, "components": described["components"]})


def references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [found for value in node.values() for found in references(value)]


def test_every_refusal_of_the_inbox_has_a_status_of_its_own_kind() -> None:
    codes = {code for code in Code if code.value.startswith(("WORK_", "INTENT_"))}
    assert codes <= STATUS.keys()
    assert {STATUS[code] for code in Code if code in STATUS and code.value.endswith("NOT_FOUND")} == {404}


# --- who may come in --------------------------------------------------------------------------------------------------
@pytest.fixture
def opened_to(request: pytest.FixtureRequest) -> Iterator[Endpoints]:
    """Outside the loop: binding blocks."""
    with endpoints(**request.param) as made:
        yield made


@pytest.mark.covers("WORK-2", "NETIF-2")
@pytest.mark.parametrize("opened_to", [{"http": "127.0.0.1:0", "token": "a-token"}], indirect=True)
async def test_the_inbox_asks_for_the_same_token_as_mcp(opened_to: Endpoints) -> None:
    path, token = "/inbox/openapi.json", {"Authorization": "Bearer a-token"}
    async with serve(opened_to) as serving:
        assert (await serving.request(serving.unix, "GET", path)).status == 200
        assert (await serving.request(serving.tcp, "GET", path)).status == 401
        assert (await serving.request(serving.tcp, "GET", path, headers=token)).status == 200
        foreign = {**token, "Origin": "http://evil.example"}
        assert (await serving.request(serving.tcp, "POST", "/inbox/works", b"{}", foreign)).status == 403


@pytest.mark.covers("WORK-2", "NETIF-2")
@pytest.mark.parametrize("opened_to", [{"allow_uids": frozenset({12345})}], indirect=True)
async def test_the_inbox_asks_for_the_same_peer_as_mcp(opened_to: Endpoints) -> None:
    async with serve(opened_to) as serving:
        assert (await serving.request(serving.unix, "GET", "/inbox/openapi.json")).status == 403


@pytest.mark.covers("NETIF-2")
async def test_a_page_of_another_port_can_send_nothing_without_being_asked_whether_it_may(tmp_path: Path) -> None:
    """A browser sends text to anybody, and JSON only where that place has said yes, which this one says to nobody."""
    async with web(tmp_path) as w:
        path = f"/inbox/works/{(await soon(w.core.application.work_open('demo', 'A work'))).work_id}/intents"
        for kind in ("text/plain", "text/plain;application/json", "application/x-www-form-urlencoded", "", None):
            headers = {"origin": "http://localhost:3000", **({} if kind is None else {"content-type": kind})}
            reply = await soon(w.client.request("POST", path, content=b'{"body": "x"}', headers=headers))
            assert (reply.status_code, reply.json()["error"]["details"]) == (400, {"argument": "content-type"})
        assert await w("GET", path.removeprefix("/inbox")) == []
        headers = {"origin": "http://localhost:3000", "content-type": "application/json; charset=utf-8"}
        reply = await soon(w.client.request("POST", path, content=b'{"body": "x"}', headers=headers))
        assert reply.status_code == 201
        asked = await soon(w.client.request("OPTIONS", path, headers={"origin": "http://localhost:3000"}))
        assert asked.status_code == 405
        assert not any(name.startswith("access-control") for name in asked.headers)
