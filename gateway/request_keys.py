"""Request keys of `exec_command`: a retried request finds the first one (PROC-12). In memory, one runner instance long.

Refuses to know: what a dispatch does. Used by the exec use case.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.errors import Code, ToolError

MAX_KEY_CHARS = 256
KEYS_KEPT = 10_000
"""Beyond it the oldest settled key is forgotten: its retry would run again. Ours, against memory without bound."""

T = TypeVar("T")


def check_key(name: str, key: str) -> None:
    """Raises `ToolError` INVALID_ARGUMENT for a key that is empty, too long or not valid Unicode."""
    try:
        key.encode()
        if 1 <= len(key) <= MAX_KEY_CHARS and "\0" not in key:
            return
    except UnicodeEncodeError:
        pass
    raise ToolError(
        Code.INVALID_ARGUMENT,
        f"{name} has to be 1 to {MAX_KEY_CHARS} characters of text without NUL",
        details={"argument": name},
    )


def fingerprint(*parts: object) -> str:
    """sha256 of the JSON of the parts: equal for equal requests, and tells nothing of them."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def key_conflict(name: str, key: str, workspace_id: str) -> ToolError:
    """The same key with another request: whoever sent this would get somebody else's result."""
    return ToolError(
        Code.OPERATION_KEY_CONFLICT,
        f'{name} {key!r} was used for another request in workspace "{workspace_id}": use a new key for a new request',
        details={"workspace_id": workspace_id, name: key},
    )


@dataclass(frozen=True)
class _Entry(Generic[T]):
    fingerprint: str
    task: asyncio.Task[T]


class RequestKeys(Generic[T]):
    """Key and workspace to the task that answers. A task that fails takes its key along: nothing was started."""

    def __init__(self, kept: int = KEYS_KEPT) -> None:
        self._entries: OrderedDict[tuple[str, str], _Entry[T]] = OrderedDict()
        self._kept = kept

    def find(self, workspace_id: str, key: str, request: str) -> asyncio.Task[T] | None:
        """The task of the same request, None for a new key. Raises `ToolError` OPERATION_KEY_CONFLICT."""
        entry = self._entries.get((workspace_id, key))
        if entry is None:
            return None
        if entry.fingerprint != request:
            raise key_conflict("request_key", key, workspace_id)
        return entry.task

    def put(self, workspace_id: str, key: str, request: str, task: asyncio.Task[T]) -> None:
        entry = _Entry(request, task)
        place = (workspace_id, key)
        self._entries[place] = entry

        def settled(done: asyncio.Task[T]) -> None:
            if (done.cancelled() or done.exception() is not None) and self._entries.get(place) is entry:
                del self._entries[place]

        task.add_done_callback(settled)
        for old, candidate in list(self._entries.items())[: len(self._entries) - self._kept]:
            if candidate.task.done():
                del self._entries[old]

    def clear(self) -> None:
        """The runner instance is gone, and what its keys stood for."""
        self._entries.clear()
