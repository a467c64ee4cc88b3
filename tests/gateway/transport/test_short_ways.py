"""The short ways of a tools/call against the SDK's own, over requests that are odd in every way: answers are equal.

Random, from fixed seeds: what is sent is the same each time.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from gateway.http.session_calls import VERSION
from tests.gateway.transport import test_direct_calls, test_session_calls
from tests.gateway.transport.serving import modern_call
from tests.gateway.transport.test_tools import GOOD

REQUESTS = 250
WAIT_S = 60.0
Headers = list[tuple[str, str]]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.0, 1.5, 10**20, 10**400, -0.0, float("nan"), float("inf")),
    *(
        "",
        "x",
        "1",
        "\ud800",
        "\u00e9",
        "\u20ac",
        "\0",
        "a" * 300,
        "@deep 150@",
        "@deep 190@",
        "@deep 300@",
        "@deep 900@",
    ),
    *([], {}, [1], {"a": 1}, [[[]]], {"": None}),
]
MEMBERS = [
    *("x", "_meta", "arguments", "name", "method", "id", "jsonrpc", "params", "result", "error", "task"),
    *("inputResponses", "requestState", "progressToken", "work_id", "traceparent", "\ud800", "\u00e9"),
    *(f"io.modelcontextprotocol/{name}" for name in ("logLevel", "clientInfo", "clientCapabilities")),
]
HEADER_VALUES = [
    *("application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "text/plain", "application/jsonx"),
    *(
        "text/application/json",
        "application/json;q=0",
        "*/*",
        "application/*",
        "",
        "text/event-stream, application/json",
    ),
    *(" application/json", "application/json,text/event-stream", "text/html, application/json;v=1", "tools/call"),
    *("2026-07-28", "2025-11-25", "2025-06-18", "x", "read", "=?base64?cmVhZA==?=", "Tools/Call", "2026-07-28 "),
]


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _places(value[key], (*at, key))


def _changed(dice: random.Random, message: Any) -> Any:
    message = copy.deepcopy(message)
    for _ in range(dice.choice([0, 1, 1, 1, 2, 3])):
        places = list(_places(message))
        if not places:
            break
        *above, last = dice.choice(places)
        holder = message
        for key in above:
            holder = holder[key]
        what = dice.random()
        if what < 0.5:
            holder[last] = copy.deepcopy(dice.choice(VALUES))
        elif what < 0.7:
            del holder[last]
        elif isinstance(holder, dict):
            holder[dice.choice(MEMBERS)] = copy.deepcopy(dice.choice(VALUES))
    return message


def _encoded(dice: random.Random, message: Any) -> bytes:
    text = json.dumps(message)
    for name in ("id", "arguments"):
        if dice.random() < 0.02:
            text = text.replace(f'"{name}"', f'"{name}": 5, "{name}"', 1)
    raw = re.sub(rb'"@deep (\d+)@"', lambda found: b"[" * int(found[1]) + b"]" * int(found[1]), text.encode())
    match dice.randrange(40):
        case 0:
            return text.encode("utf-16")
        case 1:
            return text.encode("utf-16-le")
        case 2:
            return b"\xef\xbb\xbf" + raw
        case 3:
            return raw[:-1]
        case 4:
            return raw + dice.choice([b" ", b"\n", b"\0", b"x", b"}", b"\xff"])
        case 5:
            at = dice.randrange(len(raw))
            return raw[:at] + bytes([dice.randrange(256)]) + raw[at + 1 :]
        case 6:
            return json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
        case 7:
            return dice.choice([b"", b"null", b"[]", b"{}", b"\xff", b"1"])
    return raw


def _odd_headers(dice: random.Random, headers: Headers) -> Headers:
    headers = list(headers)
    for _ in range(dice.choice([0, 0, 0, 1, 1, 2])):
        at = dice.randrange(len(headers))
        name, value = headers[at]
        match dice.randrange(5):
            case 0:
                headers[at] = (name, dice.choice(HEADER_VALUES))
            case 1 if len(headers) > 1:
                headers.pop(at)
            case 2:
                headers.append((name, dice.choice([value, dice.choice(HEADER_VALUES)])))
            case 3:
                headers[at] = (name.upper(), value)
            case _:
                extra = dice.choice(["Last-Event-ID", "Mcp-Param-Path", "X-Foo", "Mcp-Name", "Accept", "Mcp-Method"])
                headers.append((extra, dice.choice(HEADER_VALUES)))
    return headers


def _comparable(answer: Any) -> str:
    """Without the ids that are random."""
    return re.sub("err_[0-9a-f]{16}", "err_", json.dumps(answer, sort_keys=True, default=str))


async def _compare(ask: Callable[[bytes, Headers], Awaitable[tuple[Any, Any]]], raw: bytes, headers: Headers) -> Any:
    ours, sdk = await asyncio.wait_for(ask(raw, headers), WAIT_S)
    assert _comparable(ours) == _comparable(sdk), (raw[:2000], headers)
    return ours


@pytest.mark.covers("NETIF-1", "TOOL-2")
@pytest.mark.parametrize("seed", range(4))
async def test_an_odd_request_of_2026_gets_the_answer_of_the_sdk(seed: int) -> None:
    dice = random.Random(seed)
    statuses = set()
    async with test_direct_calls.both_ways() as ways:

        async def ask(raw: bytes, headers: Headers) -> tuple[Any, Any]:
            answers = [await test_direct_calls._ask(one, "POST", raw, headers) for one in (ways.ours, ways.sdk)]
            return answers[0], answers[1]

        for number in range(REQUESTS):
            tool = dice.choice(sorted(GOOD))
            body, plain = modern_call(tool, GOOD[tool], number if dice.random() < 0.5 else f"{number}")
            raw = _encoded(dice, _changed(dice, json.loads(body)))
            statuses.add((await _compare(ask, raw, _odd_headers(dice, list(plain.items()))))[0])
    assert {200, 400, 406} <= statuses, "it was not odd enough"


@pytest.mark.covers("NETIF-1", "TOOL-2")
@pytest.mark.parametrize("seed", range(4))
async def test_an_odd_request_of_a_2025_session_gets_the_answer_of_the_sdk(seed: int) -> None:
    dice = random.Random(seed)
    statuses = set()
    plain = [("accept", test_session_calls.ACCEPT), ("content-type", "application/json")]
    plain.append(("mcp-protocol-version", VERSION))
    async with test_session_calls.both_ways() as ways:

        async def ask(raw: bytes, headers: Headers) -> tuple[Any, Any]:
            answers = []
            for session in (ways.ours, ways.sdk):
                own = [*headers, ("mcp-session-id", session.headers["mcp-session-id"])]
                answer = await session.client.post("/mcp", content=raw, headers=own)
                answers.append(test_session_calls.seen(answer, session))
            return answers[0], answers[1]

        for number in range(REQUESTS):
            tool = dice.choice(sorted(GOOD))
            params: dict[str, Any] = {"name": tool, "arguments": GOOD[tool]}
            if dice.random() < 0.3:
                params["_meta"] = {"progressToken": dice.choice(["a", 1])}
            message = {"jsonrpc": "2.0", "id": 1000 + number, "method": "tools/call", "params": params}
            raw = _encoded(dice, _changed(dice, message))
            statuses.add((await _compare(ask, raw, _odd_headers(dice, plain)))[0])
    assert {200, 400, 406} <= statuses, "it was not odd enough"
