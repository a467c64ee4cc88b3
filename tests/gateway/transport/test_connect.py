"""`codespace connect` and `codespace call`, as programs, against an appliance with a fake application."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from gateway.appliance import Endpoints
from gateway.http.door import MAX_BODY_BYTES
from tests.gateway.transport.serving import WAIT_S, Serving, serve, short_directory
from tests.gateway.transport.test_stdio import INITIALIZED, MODERN, call, initialize

PROGRAM = (sys.executable, "-m", "gateway")


@contextlib.asynccontextmanager
async def program(*arguments: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 24,
        **options,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run(*arguments: str, stdin: bytes = b"", **options: Any) -> tuple[int, str, str]:
    async with program(*arguments, **options) as process:
        out, err = await asyncio.wait_for(process.communicate(stdin), WAIT_S)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


class Bridge:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def send(self, *messages: Mapping[str, Any] | bytes) -> None:
        assert self._process.stdin is not None
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            self._process.stdin.write(line + b"\n")
        await asyncio.wait_for(self._process.stdin.drain(), WAIT_S)

    async def receive(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(await asyncio.wait_for(self._process.stdout.readline(), WAIT_S))

    async def end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await asyncio.wait_for(self._process.wait(), WAIT_S)


@contextlib.asynccontextmanager
async def bridge(serving: Serving) -> AsyncIterator[Bridge]:
    async with program("connect", "--socket", str(serving.unix)) as process:
        yield Bridge(process)


# --- connect ----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("NETIF-1")
@pytest.mark.parametrize(("mode", "revision"), [("legacy", "2025-11-25"), ("2026-07-28", "2026-07-28"), ("auto", None)])
async def test_the_sdk_client_works_through_the_bridge(opened: Endpoints, mode: str, revision: str | None) -> None:
    async with serve(opened) as serving:
        parameters = StdioServerParameters(
            command=PROGRAM[0], args=[*PROGRAM[1:], "connect", "--socket", str(serving.unix)]
        )
        async with Client(parameters, mode=mode) as client:
            assert revision in (None, client.protocol_version)
            assert len((await client.list_tools()).tools) == 9
            got = await client.call_tool("read", {"workspace_id": "demo", "path": "hello.txt"})
            assert got.structured_content is not None
            assert got.structured_content["content"] == "hello\n"
            refused = await client.call_tool("read", {"workspace_id": "demo", "path": "nope"})
            assert refused.is_error


async def test_answers_come_back_byte_for_byte(opened: Endpoints) -> None:
    async with serve(opened) as serving, bridge(serving) as connected:
        message = call(7, "read", MODERN, workspace_id="demo", path="hello.txt")
        await connected.send(message)
        bridged = await connected.receive()
        direct = await serving.call("read", {"workspace_id": "demo", "path": "hello.txt"})
        assert bridged["result"] == direct.json()["result"]
        assert await connected.end() == 0


@pytest.mark.parametrize("meta", [None, MODERN], ids=["legacy", "modern"])
async def test_requests_run_side_by_side(opened: Endpoints, meta: Mapping[str, Any] | None) -> None:
    async with serve(opened) as serving, bridge(serving) as connected:
        if meta is None:
            await connected.send(initialize(), INITIALIZED)
            assert (await connected.receive())["id"] == 0
        await connected.send(call(1, "read_process", meta, process_id="p", wait_ms=60_000))
        await asyncio.wait_for(serving.application.waiting.wait(), WAIT_S)
        await connected.send(call(2, "find", meta, workspace_id="demo", pattern="*"))
        assert (await connected.receive())["id"] == 2
        serving.application.gate.set()
        assert (await connected.receive())["id"] == 1
        assert await connected.end() == 0


async def test_the_end_of_input_waits_for_what_was_asked(opened: Endpoints) -> None:
    async with serve(opened) as serving, bridge(serving) as connected:
        await connected.send(call(1, "read_process", MODERN, process_id="p", wait_ms=60_000))
        await asyncio.wait_for(serving.application.waiting.wait(), WAIT_S)
        ending = asyncio.create_task(connected.end())
        serving.application.gate.set()
        assert (await connected.receive())["id"] == 1
        assert await ending == 0


async def test_a_cancelled_request_of_the_new_era_is_hung_up_and_not_answered(opened: Endpoints) -> None:
    async with serve(opened) as serving, bridge(serving) as connected:
        await connected.send(call(1, "read_process", MODERN, process_id="p", wait_ms=60_000))
        await asyncio.wait_for(serving.application.waiting.wait(), WAIT_S)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await connected.send(cancel, call(2, "find", MODERN, workspace_id="demo", pattern="*"))
        assert (await connected.receive())["id"] == 2
        assert await connected.end() == 0


@pytest.mark.covers("TOOL-3")
async def test_a_lost_answer_is_said_to_be_lost_and_the_call_is_not_sent_again(opened: Endpoints) -> None:
    async with serve(opened) as serving, bridge(serving) as connected:
        await connected.send(call(1, "read_process", MODERN, process_id="p", wait_ms=60_000))
        await asyncio.wait_for(serving.application.waiting.wait(), WAIT_S)
        serving.drop_connections()
        answer = await connected.receive()
        assert answer["id"] == 1
        assert "may have been carried out" in answer["error"]["message"]
        assert [tool for tool, _ in serving.application.calls] == ["read_process"]
        await connected.send(call(2, "find", MODERN, workspace_id="demo", pattern="*"))
        assert (await connected.receive())["id"] == 2


async def test_a_session_of_the_old_era_is_ended_with_the_bridge(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        async with bridge(serving) as connected:
            await connected.send(initialize(), INITIALIZED)
            await connected.receive()
            assert serving.sessions() == 1
            assert await connected.end() == 0
        assert serving.sessions() == 0


async def test_lines_that_are_no_messages_are_answered_and_the_next_is_carried(opened: Endpoints) -> None:
    async with serve(opened) as serving, bridge(serving) as connected:
        await connected.send(b"{not json", b"[1]", b"", call(1, "find", MODERN, workspace_id="demo", pattern="*"))
        seen = [await connected.receive() for _ in range(3)]
        assert [answer.get("error", {}).get("code") for answer in seen] == [-32700, -32600, None]
        await connected.send(call(2, "no_such_tool", MODERN))
        assert (await connected.receive())["error"]["code"] == -32602


@pytest.mark.covers("TOOL-2")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_request_with_an_id_that_is_none_is_answered(opened: Endpoints, era: str) -> None:
    ids: list[Any] = [None, True, 1.5, [], {"a": 1}]
    meta = MODERN if era == "modern" else None
    async with serve(opened) as serving, bridge(serving) as connected:
        if era == "legacy":
            await connected.send(initialize(), INITIALIZED)
            await connected.receive()
        for wrong in ids:
            await connected.send({**call(1, "find", meta, workspace_id="demo", pattern="*"), "id": wrong})
            answer = await connected.receive()
            assert (answer["id"], answer["error"]["code"]) == (None, -32600)
        assert await connected.end() == 0


async def test_a_message_of_an_odd_make_is_carried_or_answered_and_ends_nothing(opened: Endpoints) -> None:
    def listing(request_id: Any, version: str) -> dict[str, Any]:
        meta = {**MODERN, "io.modelcontextprotocol/protocolVersion": version}
        return {"jsonrpc": "2.0", "id": request_id, "method": "tools/list", "params": {"_meta": meta}}

    odd: list[dict[str, Any]] = [
        listing("\ud800", "2026-07-28"),
        listing(2, "2026\r\nX-Injected: 1"),
        listing(3, "\u20ac"),
        listing({"a": 1}, "2026-07-28"),
        {"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": [1]},
        {"jsonrpc": "2.0", "id": 6, "method": "tools/\u20ac\r\n", "params": {"_meta": MODERN}},
    ]
    no_params: list[Any] = [[1], "x", 1, None, {}]
    unanswered = [{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params} for params in no_params]
    async with serve(opened) as serving, bridge(serving) as connected:
        for message in odd:
            await connected.send(*unanswered, message)
            answer = await connected.receive()
            assert "lost" not in answer.get("error", {}).get("message", ""), (message, answer)
        await connected.send(call(7, "find", MODERN, workspace_id="demo", pattern="*"))
        assert (await connected.receive())["id"] == 7
        assert await connected.end() == 0


async def test_without_an_appliance_connect_says_what_to_do() -> None:
    with short_directory() as directory:
        code, out, err = await run("connect", "--socket", str(directory / "nope.sock"))
    assert (code, out) == (1, "")
    assert err.startswith(f"error: cannot reach the appliance (ENOENT): {directory}/nope.sock: ")
    assert "start `codespace serve`" in err


async def test_connect_finds_the_socket_in_the_environment(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        environment = {**os.environ, "CODESPACE_SOCKET": str(serving.unix)}
        line = json.dumps(call(1, "find", MODERN, workspace_id="demo", pattern="*")).encode()
        code, out, _ = await run("connect", stdin=line, env=environment)
        assert (code, json.loads(out)["id"]) == (0, 1)
        environment = {key: value for key, value in os.environ.items() if key != "XDG_RUNTIME_DIR"}
        code, _, err = await run("connect", env=environment)
        assert code == 2
        assert "XDG_RUNTIME_DIR is not set: --socket: name the socket, or set CODESPACE_SOCKET" in err


# --- call -------------------------------------------------------------------------------------------------------------
@pytest.mark.covers("NETIF-1")
async def test_call_prints_the_structured_result(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        where = ("--socket", str(serving.unix))
        code, out, err = await run("call", "read", '{"workspace_id": "demo", "path": "hello.txt"}', *where)
        assert (code, err) == (0, "")
        assert json.loads(out)["content"] == "hello\n"
        code, out, _ = await run("call", "workspace_info", *where)
        assert (code, json.loads(out)["server"]) == (0, "codespace")
        piped = b'{"workspace_id": "demo", "path": "hello.txt"}'
        code, out, _ = await run("call", "read", "-", *where, stdin=piped)
        assert (code, json.loads(out)["size"]) == (0, 6)


@pytest.mark.covers("TOOL-2")
async def test_call_prints_a_tool_error_and_exits_1(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        code, out, err = await run(
            "call", "read", '{"workspace_id": "demo", "path": "nope"}', "--socket", str(serving.unix)
        )
    assert code == 1
    assert json.loads(out)["error"]["code"] == "FILE_NOT_FOUND"
    assert err == "error: read: FILE_NOT_FOUND: no file 'nope': look with find\n"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("read", "{not json"), 2, "arguments are not JSON"),
        (("read", "[1]"), 2, "arguments are not an object"),
        (("read", "[" * 5000), 2, "arguments nest too deeply"),
        (("no_such_tool",), 2, "there is no tool 'no_such_tool'"),
        (("bad tool\u00e4",), 2, "there is no tool"),
        ((), 2, "Missing argument"),
    ],
)
async def test_a_bad_call_is_bad_usage(opened: Endpoints, arguments: tuple[str, ...], status: int, said: str) -> None:
    async with serve(opened) as serving:
        code, out, err = await run("call", *arguments, "--socket", str(serving.unix))
        assert (code, out) == (status, "")
        assert err.startswith("error: ")
        assert said in err
        assert serving.application.calls == []


@pytest.mark.parametrize("most", [MAX_BODY_BYTES, 4 * MAX_BODY_BYTES])
async def test_a_call_that_is_too_large_is_refused_and_not_lost(opened: Endpoints, most: int) -> None:
    sent = json.dumps({"workspace_id": "demo", "path": "x" * most}).encode()
    async with serve(opened) as serving:
        code, out, err = await run("call", "read", "-", "--socket", str(serving.unix), stdin=sent)
        assert (code, out) == (1, "")
        reason = f"the request body is over {MAX_BODY_BYTES} bytes; send less at once"
        assert err == f"error: the appliance refused: read: {reason}\n"
        assert serving.application.calls == []


@pytest.mark.parametrize("opened", [{"allow_uids": frozenset({4242})}], indirect=True)
async def test_a_refused_user_is_told_so(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        code, _, err = await run("call", "workspace_info", "--socket", str(serving.unix))
        assert code == 1
        assert "may not use this socket" in err
        async with bridge(serving) as connected:
            await connected.send(call(1, "workspace_info", MODERN))
            assert "may not use this socket" in (await connected.receive())["error"]["message"]


async def test_a_socket_that_is_none_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = await run("call", "workspace_info", "--socket", str(tmp_path / "file"))
    assert code == 1
    assert "nothing listens there" in err
