"""What surrounds a patch: its request, the key that finds it again, the store behind it, and doubt about its end.

Refuses to know: leases, the order of decisions, how a patch is applied. Used by `apply_patch` and `recovery`.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gateway.answers import PatchAnswer
from gateway.errors import Code, ToolError
from gateway.leases import Lease
from gateway.request_keys import check_key, fingerprint, key_conflict
from gateway.store.database import StoreFailed
from gateway.store.ledger import Ending, Ledger, Operation
from runner import api

T = TypeVar("T")
MAX_EXPECTED_VERSIONS = 10_000
_VERSION = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class PatchRequest:
    """As the tool was called. `expected_versions`: path to sha256:<hex> or `absent`."""

    patch: str
    expected_versions: Mapping[str, str]
    operation_key: str | None
    check_only: bool

    @functools.cached_property
    def digest(self) -> str:
        """Equal for equal requests, key aside."""
        text = hashlib.sha256(self.patch.encode("utf-8", "surrogatepass")).hexdigest()
        return fingerprint(text, dict(self.expected_versions))


@dataclass(eq=False)
class Patching:
    """What patches need beside the services. `journals`: a directory each workspace below it. `recover`: takes over
    the lease of an operation in doubt."""

    ledger: Ledger
    journals: Path
    recover: Callable[[Lease], None]
    in_flight: dict[tuple[str, str], tuple[str, asyncio.Task[PatchAnswer]]] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    """Workspaces whose journal directory was made. Should it vanish, the patch helper makes it again."""

    async def journal_dir(self, workspace_id: str) -> str:
        """Made when first needed, mode 0700. Raises `ToolError` FILE_OPERATION_FAILED."""
        path = self.journals / workspace_id
        if workspace_id in self.made:
            return str(path)
        try:
            await asyncio.to_thread(path.mkdir, mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ToolError(
                Code.FILE_OPERATION_FAILED,
                f"the journal directory cannot be made ({error.strerror}), so nothing was begun: the operator looks at "
                "the disk of the data directory",
                retryable=True,
                details={"reason": "journal_not_usable"},
            ) from None
        self.made.add(workspace_id)
        return str(path)


def check_request(request: PatchRequest) -> None:
    """Raises `ToolError` INVALID_PATCH (`too_large`) or INVALID_ARGUMENT; the text itself is read elsewhere."""
    size = len(request.patch.encode("utf-8", "surrogatepass"))
    if size > api.MAX_PATCH_BYTES:
        raise ToolError(
            Code.INVALID_PATCH,
            f"the patch has {size} bytes, more than the {api.MAX_PATCH_BYTES} that are taken: split it",
            details={"reason": "too_large", "limit": api.MAX_PATCH_BYTES},
        )
    if request.operation_key is not None:
        check_key("operation_key", request.operation_key)
    if len(request.expected_versions) > MAX_EXPECTED_VERSIONS:
        raise ToolError(
            Code.INVALID_ARGUMENT,
            f"expected_versions names more than {MAX_EXPECTED_VERSIONS} files: name those that matter",
            details={"argument": "expected_versions"},
        )
    for version in request.expected_versions.values():
        if version != api.ABSENT and not _VERSION.fullmatch(version):
            raise ToolError(
                Code.INVALID_ARGUMENT,
                f'expected_versions has {version[:80]!r}: a version is "sha256:" and 64 hex digits as read gives it, '
                'or "absent"',
                details={"argument": "expected_versions"},
            )


async def known_result(patching: Patching, workspace_id: str, request: PatchRequest) -> Awaitable[PatchAnswer] | None:
    """What answers a request whose key was seen before, None for a new one. Raises OPERATION_KEY_CONFLICT.

    Nothing is awaited between the last look and the return, so that two callers with one key are one operation.
    """
    key = request.operation_key
    if key is None:
        return None
    place = (workspace_id, key)
    recorded = None
    if place not in patching.in_flight:
        recorded = await stored(patching.ledger.by_key(*place))
    running = patching.in_flight.get(place)
    if running is not None:
        digest, task = running
        if digest != request.digest:
            raise key_conflict("operation_key", key, workspace_id)
        return _join(task)
    if recorded is None:
        return None
    if recorded.request_digest != request.digest:
        raise key_conflict("operation_key", key, workspace_id)
    return replay(recorded)


async def _join(task: asyncio.Task[PatchAnswer]) -> PatchAnswer:
    answer = await asyncio.shield(task)
    return answer.model_copy(update={"replayed": True})


async def replay(operation: Operation) -> PatchAnswer:
    """The recorded result. Its error has the code and the details of then and a plainer message (OP-5)."""
    ending = operation.ending or Ending("unknown")
    if ending.status == "applied":
        return PatchAnswer(
            status="applied",
            operation_id=operation.operation_id,
            operation_key=operation.operation_key,
            replayed=True,
            files=ending.files,
            changes=ending.changes,
            warnings=ending.warnings or None,
        )
    if operation.finished_at is None:
        raise in_doubt(operation.operation_id, ending.status)
    if ending.error is None:
        raise ToolError(
            Code.RUNNER_UNAVAILABLE,
            f"whether operation {operation.operation_id} was applied could not be proved and stays unknown: read the "
            "files, and send what is missing under a new key",
            details={"status": ending.status, "replayed": True},
            operation_id=operation.operation_id,
        )
    reason = ending.error.details.get("reason")
    raise ToolError(
        Code(ending.error.code),
        f"operation {operation.operation_id} with this key ended as {ending.status}"
        + (f" ({reason})" if isinstance(reason, str) else "")
        + "; it is not run again: send a corrected patch under a new key",
        retryable=False,
        details={**ending.error.details, "replayed": True},
        operation_id=operation.operation_id,
    )


def in_doubt(operation_id: str, status: str) -> ToolError:
    """Never "failed": it may have been applied (UDS-2)."""
    return ToolError(
        Code.RUNNER_UNAVAILABLE,
        f"whether operation {operation_id} was applied is not known yet: ask operation_status, and do not send the "
        "patch again before it tells",
        retryable=False,
        details={"status": status},
        operation_id=operation_id,
    )


async def stored(work: Awaitable[T]) -> T:
    """What the store answers. Raises `ToolError` FILE_OPERATION_FAILED where it cannot: nothing has begun then."""
    try:
        return await work
    except StoreFailed as failure:
        raise ToolError(
            Code.FILE_OPERATION_FAILED,
            f"the ledger cannot be used ({failure}), so nothing was begun: the operator looks at the disk of the data "
            "directory",
            retryable=True,
            details={"reason": "ledger_not_usable"},
        ) from None
