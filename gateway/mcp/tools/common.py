"""Argument types that several tools share. Refuses to know: any tool."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runner.api import MAX_MATCHES, MAX_WAIT_MS

WorkspaceId = Annotated[str, Field(description="A registered workspace; workspace_info lists them.")]
ProcessId = Annotated[str, Field(description="From exec_command. Not a PID, not a request id.")]
ApprovalId = Annotated[str, Field(description="From APPROVAL_REQUIRED, or from approval_create.")]
WorkId = Annotated[str, Field(description="From work_open.")]
RelativePath = Annotated[str, Field(description="Relative to the workspace root; no leading slash, no '..'.")]
MatchLimit = Annotated[
    int, Field(ge=1, le=MAX_MATCHES, description=f"Most matches to return: 1 to {MAX_MATCHES}, 200 if left out.")
]
PageCursor = Annotated[str, Field(description="next_cursor of the page before, for the same pattern.")]
WaitMs = Annotated[
    int,
    Field(
        ge=0,
        le=MAX_WAIT_MS,
        description=f"Wait up to this long for news, in milliseconds: 0 (default) to {MAX_WAIT_MS}.",
    ),
]

NEVER_RESEND = (
    "If the response is lost, the call may still have been carried out: never send it again as a new one before you "
    "have looked"
)
