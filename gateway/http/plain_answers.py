"""What the short ways of a tools/call share: the body of a request, taken and given back, and an answer as bytes.

Refuses to know: which requests are plain, protocol versions. Used by `direct_calls` and `session_calls`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from starlette.types import Message, Receive, Send

from gateway.errors import ToolError

_USUAL = frozenset({b"application/json, text/event-stream", b"application/json"})


def call_result(answer: str | ToolError) -> bytes:
    """The members of a `CallToolResult`: the structured result, which is JSON text already, and the same as text, or
    a failure with its message as text."""
    if isinstance(answer, ToolError):
        text, structured, failed = answer.message, json.dumps(answer.to_structured()), b"true"
    else:
        text, structured, failed = answer, answer, b"false"
    return b'"content":[{"type":"text","text":%b}],"isError":%b,"structuredContent":%b' % (
        json.dumps(text).encode(),
        failed,
        structured.encode(),
    )


async def send_json(send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """One whole answer."""
    plain = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": plain})
    await send({"type": "http.response.body", "body": body})


def accepts_json(accept: bytes) -> bool:
    """Whether an Accept header names JSON itself; whoever takes it by a wildcard is no usual client."""
    if accept in _USUAL:
        return True
    return any(kind.split(b";")[0].strip() == b"application/json" for kind in accept.split(b","))


async def read_body(receive: Receive) -> list[Message]:
    """The messages of the body, and a disconnect that came before its end. Bounded by the door."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def replayed(messages: list[Message], receive: Receive) -> Receive:
    """What was read, once more, and then what comes."""
    waiting = iter(messages)

    async def again() -> Message:
        for message in waiting:
            return message
        return await receive()

    return again
