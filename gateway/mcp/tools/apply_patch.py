"""apply_patch: one V4A patch, all of it or nothing."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from gateway.application import Application
from gateway.mcp.tool import Arguments, Hints, Tool
from gateway.mcp.tools.common import NEVER_RESEND, WorkspaceId
from gateway.mcp.tools.coordinated import ApplyPatchResult, HintOf, with_hint
from gateway.request_keys import MAX_KEY_CHARS


def _first_wrong(versions: object) -> object:
    """Of entries that are no text, the first alone: an error names one, and a million would fill the memory."""
    if isinstance(versions, dict):
        for path, version in versions.items():
            if not isinstance(version, str):
                return {path: version}
    return versions


class ApplyPatchArguments(Arguments):
    workspace_id: WorkspaceId
    patch: Annotated[str, Field(description="V4A text, from '*** Begin Patch' to '*** End Patch'.")]
    expected_versions: (
        Annotated[
            dict[str, str],
            BeforeValidator(_first_wrong),
            Field(description='Path to version as read gave it, or "absent". A mismatch is VERSION_CONFLICT.'),
        ]
        | None
    ) = None
    operation_key: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_KEY_CHARS,
                description="Makes a retry safe: the same key with the same patch gives the recorded result.",
            ),
        ]
        | None
    ) = None
    check_only: Annotated[bool, Field(description="Answer what would change; change nothing, record nothing.")] = False
    work_id: HintOf | None = None


async def call(application: Application, arguments: ApplyPatchArguments) -> BaseModel:
    return await with_hint(
        application,
        arguments.work_id,
        arguments.workspace_id,
        ApplyPatchResult,
        lambda: application.apply_patch(
            arguments.workspace_id,
            arguments.patch,
            arguments.expected_versions,
            arguments.operation_key,
            arguments.check_only,
        ),
    )


async def resume(application: Application, arguments: ApplyPatchArguments, approval_id: str) -> BaseModel:
    if arguments.check_only:
        return await call(application, arguments)  # a preview is never held
    return await with_hint(
        application,
        arguments.work_id,
        arguments.workspace_id,
        ApplyPatchResult,
        lambda: application.resume_patch(
            approval_id,
            arguments.workspace_id,
            arguments.patch,
            arguments.expected_versions,
            arguments.operation_key,
        ),
    )


TOOL = Tool(
    name="apply_patch",
    title="Apply a patch",
    description=(
        "Applies one V4A patch to the files of a workspace: all of it or nothing. Add needs a free name, Update and "
        "Delete an existing regular file. expected_versions guards against changes since you read. applied is said "
        "only after the files were read back from disk. Errors carry operation_id once the patch is recorded. "
        f"{NEVER_RESEND} with operation_status, or use operation_key, with which a retry is safe."
    ),
    arguments=ApplyPatchArguments,
    result=ApplyPatchResult,
    hints=Hints(read_only=False, destructive=True, idempotent=False),
    call=call,
    resume=resume,
)
