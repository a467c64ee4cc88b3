"""TCP and what stands before the routes: loopback or token, host, origin, body size, probes."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from gateway.answers import Readiness
from gateway.appliance import Endpoints
from gateway.errors import ConfigurationError, StartFailed
from gateway.http.door import MAX_BODY_BYTES, HostNames
from gateway.http.listen import bind_tcp, parse_address
from gateway.http.token import read_token
from tests.gateway.transport.serving import WAIT_S, free_port, modern_call, sdk_client, serve

TOKEN = "s3cret-token-for-tests"
TCP = {"http": "127.0.0.1:0"}
GUARDED = {**TCP, "token": TOKEN}


# --- binding ----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_an_address_that_others_reach_is_refused_without_a_token(address: str) -> None:
    with pytest.raises(ConfigurationError, match="--token-file"):
        bind_tcp(address, has_token=False)
    for sock in bind_tcp(address, has_token=True):
        sock.close()


def test_a_port_in_use_is_said_in_words() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartFailed) as refused:
            bind_tcp(address, has_token=False)
    assert str(refused.value) == (
        f"cannot listen (EADDRINUSE): {address}: the port is in use; stop the program that has it, or choose another"
    )


def test_an_address_of_another_machine_is_said_in_words() -> None:
    with pytest.raises(StartFailed, match="this machine does not have that address"):
        bind_tcp("192.0.2.1:0", has_token=True)


@pytest.mark.parametrize("text", ["", "8080", ":8080", "::1:8080", "host:", "host:x", "host:70000", "[::1]", "h:-1"])
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize("host", ["a..b", ".", "\u00e4" * 80, "x" * 300, "no.such.host.invalid"])
def test_a_host_that_is_none_is_said_in_words(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen: .*: the host is"):
        bind_tcp(f"{host}:0", has_token=True)


def test_localhost_listens_on_what_the_machine_has() -> None:
    bound = bind_tcp(f"localhost:{free_port()}", has_token=False)
    assert bound
    for sock in bound:
        sock.close()


# --- the token --------------------------------------------------------------------------------------------------------
@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [GUARDED], indirect=True)
async def test_tcp_answers_with_the_token_alone(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        none = await serving.call("workspace_info", {}, serving.tcp)
        assert (none.status, none.headers["www-authenticate"]) == (401, 'Bearer realm="codespace"')
        for wrong in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ", TOKEN, f"Basic {TOKEN}", "Bearer \xff"):
            reply = await serving.call("workspace_info", {}, serving.tcp, Authorization=wrong)
            assert reply.status == 401, wrong
            assert reply.headers["www-authenticate"] == 'Bearer realm="codespace", error="invalid_token"'
        assert serving.application.calls == []
        right = await serving.call("workspace_info", {}, serving.tcp, Authorization=f"Bearer {TOKEN}")
        assert right.status == 200
        assert TOKEN not in serving.log.getvalue()


@pytest.mark.covers("NETIF-2", "NETIF-3")
@pytest.mark.parametrize("opened", [GUARDED], indirect=True)
async def test_the_two_probes_need_no_token_and_the_metrics_do(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        statuses = {
            path: (await serving.request(serving.tcp, "GET", path)).status
            for path in ("/healthz", "/readyz", "/metrics", "/mcp", "/inbox/works", "/nothing")
        }
    assert statuses == {
        "/healthz": 200,
        "/readyz": 200,
        "/metrics": 401,
        "/mcp": 401,
        "/inbox/works": 401,
        "/nothing": 401,
    }


@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [GUARDED], indirect=True)
async def test_the_unix_socket_needs_no_token(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        assert (await serving.call("workspace_info", {})).status == 200
        assert (await serving.request(serving.unix, "GET", "/metrics")).status == 200


@pytest.mark.covers("NETIF-1")
@pytest.mark.parametrize("opened", [GUARDED], indirect=True)
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_sdk_client_works_over_tcp_in_both_eras(opened: Endpoints, mode: str) -> None:
    async with serve(opened) as serving, sdk_client(serving, mode, tcp=True, token=TOKEN) as client:
        got = await client.call_tool("read", {"workspace_id": "demo", "path": "hello.txt"})
        assert got.structured_content is not None
        assert got.structured_content["content"] == "hello\n"
        info = (await client.call_tool("workspace_info", {})).structured_content
        assert info is not None
        assert info["transports"] == ["unix", "tcp"]


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"good-token\n", 0o600, None),
        (b"good-token\r\n", 0o640, None),
        (b"", 0o600, "one line"),
        (b"\n", 0o600, "one line"),
        (b"two words\n", 0o600, "one line"),
        (b"two\nlines\n", 0o600, "one line"),
        (b"\xc3\xa4\n", 0o600, "one line"),
        (b"x" * 5000, 0o600, "one line"),
        (b"good-token\n", 0o644, "chmod 0600"),
        (b"good-token\n", 0o660, "chmod 0600"),
    ],
)
def test_a_token_file_is_one_line_that_others_cannot_read(
    tmp_path: Path, content: bytes, mode: int, why: str | None
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(mode)
    if why is None:
        assert read_token(path) == "good-token"
        return
    with pytest.raises(ConfigurationError, match=why) as refused:
        read_token(path)
    assert str(path) in str(refused.value)
    assert "good-token" not in str(refused.value)


def test_a_token_file_that_is_missing_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="make it"):
        read_token(tmp_path / "nope")
    with pytest.raises(ConfigurationError, match="no regular file"):
        read_token(tmp_path)


@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [GUARDED], indirect=True)
async def test_more_than_one_authorization_is_none_whichever_is_right(opened: Endpoints) -> None:
    right, wrong = f"Bearer {TOKEN}", "Bearer x"
    async with serve(opened) as serving:
        for shown in ((right,), (right, wrong), (wrong, right), (right, right), (right, ""), ("Basic x", right)):
            lines = "".join(f"Authorization: {value}\r\n" for value in shown)
            reader, writer = await asyncio.open_connection(*serving.tcp)
            writer.write(f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n".encode())
            reply = await asyncio.wait_for(reader.read(), WAIT_S)
            writer.close()
            assert reply.startswith(b"HTTP/1.1 200 " if shown == (right,) else b"HTTP/1.1 401 "), shown


# --- host and origin --------------------------------------------------------------------------------------------------
JUNK = (
    "@evil",
    ":80@evil",
    "/",
    "?",
    "#",
    ":",
    ":x",
    ":-1",
    ":99999999",
    ":65536",
    " ",
    ",evil",
    "\\",
    "\xe9",
    ":\u0661",
)
FOREIGN = {
    "one.example",
    "one.example:82",
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
}


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LocalHost:1", True),
        ("127.0.0.1:80", True),
        ("[::1]", True),
        ("[::1]:80", True),
        ("box.example", True),
        ("box.example:9", True),
        ("one.example:81", True),
        ("one.example", False),
        ("one.example:82", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("[", False),
        *((f"{name}{junk}", False) for name in ("localhost", "[::1]:80", "box.example:9") for junk in JUNK),
        *((f"evil@{name}", False) for name in ("localhost", "[::1]", "box.example:9")),
    ],
)
def test_host_names_are_compared_whole(host: str, allowed: bool) -> None:
    names = HostNames(["localhost", "127.0.0.1", "[::1]", "Box.example", "one.example:81"])
    assert names.allows(host) is allowed
    assert names.allows_origin(f"http://{host}") is allowed
    assert names.allows_origin(host) is False
    if not allowed and host not in FOREIGN:
        assert HostNames(["*"]).allows(host) is False, "no host at all"


@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [{**TCP, "allow_hosts": ("box.example",)}], indirect=True)
async def test_a_foreign_host_is_421_and_a_foreign_origin_403_on_every_route(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        for target in (serving.tcp, serving.unix):
            for path in ("/healthz", "/metrics", "/mcp"):
                foreign = await serving.request(target, "GET", path, headers={"Host": "evil.example"})
                assert (foreign.status, foreign.json()["error"]["reason"]) == (421, "host")
                for origin in ("http://evil.example", "null", "https://box.example.evil"):
                    crossed = await serving.request(target, "GET", path, headers={"Origin": origin})
                    assert (crossed.status, crossed.json()["error"]["reason"]) == (403, "origin")
            known = await serving.request(
                target, "GET", "/healthz", headers={"Host": "box.example:99", "Origin": "https://box.example"}
            )
            assert known.status == 200


# --- bodies -----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [TCP], indirect=True)
async def test_a_body_over_the_limit_is_413_declared_or_not(opened: Endpoints) -> None:
    body, headers = modern_call("read", {"workspace_id": "demo", "path": "x" * (MAX_BODY_BYTES + 1)})
    async with serve(opened) as serving:
        for target in (serving.tcp, serving.unix):
            declared = await serving.request(
                target, "POST", "/mcp", b"{}", {**headers, "Content-Length": str(MAX_BODY_BYTES + 1)}
            )
            assert declared.status == 413
            assert "8388608 bytes" in declared.json()["error"]["message"]
        chunks = [body[i : i + 65536] for i in range(0, len(body), 65536)]
        chunked = await serving.request(serving.unix, "POST", "/mcp", iter(chunks), headers)
        assert chunked.status == 413
        assert serving.application.calls == []
        just, _ = modern_call("read", {"workspace_id": "demo", "path": "x" * (MAX_BODY_BYTES - 1000)})
        assert (await serving.request(serving.unix, "POST", "/mcp", just, headers)).status == 200


@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("opened", [TCP], indirect=True)
async def test_who_sends_all_of_a_body_over_the_limit_can_read_the_reason(opened: Endpoints) -> None:
    """Not a broken connection in the midst of writing: then nobody knows what became of the call."""
    body, headers = modern_call("read", {"workspace_id": "demo", "path": "x" * (MAX_BODY_BYTES + 1_000_000)})
    async with serve(opened) as serving:
        for target in (serving.tcp, serving.unix):
            for _ in range(3):
                assert (await serving.request(target, "POST", "/mcp", body, headers)).status == 413
        assert serving.application.calls == []


@pytest.mark.covers("TOOL-2")
async def test_a_malformed_request_is_a_protocol_error(opened: Endpoints) -> None:
    _, headers = modern_call("read", {})
    async with serve(opened) as serving:
        for body in (b"{not json", b"[]", b'{"jsonrpc": "2.0"}', b'"x"', b"\xff\xfe", b"[" * 100_000):
            reply = await serving.request(serving.unix, "POST", "/mcp", body, headers)
            assert reply.status == 400, body[:20]
            assert reply.json()["error"]["code"] in (-32700, -32600), body[:20]
        unknown = await serving.call("no_such_tool", {})
        assert unknown.json()["error"]["code"] == -32602
        assert "workspace_info" in unknown.json()["error"]["message"]
        assert serving.application.calls == []


# --- probes -----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("NETIF-3")
async def test_readyz_says_why_it_is_not_ready_while_healthz_stays_well(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        assert (await serving.request(serving.unix, "GET", "/readyz")).json() == {"ready": True, "reasons": []}
        serving.application.ready = Readiness(ready=False, reasons=("the runner is not connected",))
        down = await serving.request(serving.unix, "GET", "/readyz")
        assert (down.status, down.json()) == (503, {"ready": False, "reasons": ["the runner is not connected"]})
        assert (await serving.request(serving.unix, "GET", "/healthz")).status == 200


@pytest.mark.covers("NETIF-3")
async def test_the_metrics_count_calls_by_tool_and_code(opened: Endpoints) -> None:
    async with serve(opened) as serving:
        await serving.call("read", {"workspace_id": "demo", "path": "hello.txt"})
        await serving.call("read", {"workspace_id": "demo", "path": "nope"})
        await serving.call("read", {"workspace_id": "demo"})
        await serving.call("exec_command", {"workspace_id": "demo", "command": ["true"]})
        await serving.request(serving.unix, "GET", "/healthz", headers={"Host": "evil"})
        refused = serving.events("request_refused")
        assert [(line["reason"], line["path"]) for line in refused] == [("host", "/healthz")]
        reply = await serving.request(serving.unix, "GET", "/metrics")
        text = reply.body.decode()
    assert reply.headers["content-type"].startswith("text/plain; version=")
    assert 'codespace_tool_calls_total{code="OK",tool="read"} 1.0' in text
    assert 'codespace_tool_calls_total{code="FILE_NOT_FOUND",tool="read"} 1.0' in text
    assert 'codespace_tool_calls_total{code="INVALID_ARGUMENT",tool="read"} 1.0' in text
    assert 'codespace_tool_seconds_count{tool="read"} 3.0' in text
    assert 'codespace_refused_requests_total{reason="host"} 1.0' in text
    assert "codespace_running_processes 1.0" in text
    assert 'codespace_network_decisions_total{outcome="refused",via="connect"} 3.0' in text
    assert 'codespace_ended_processes_total{termination="lost"} 1.0' in text
    assert 'codespace_operations{state="applied"} 5.0' in text
    for line in ('holds{state="pending"} 2.0', 'works{state="active"} 1.0', 'intents{state="queued"} 4.0'):
        assert f"codespace_{line}" in text
    assert "codespace_ready 1.0" in text
