"""A hold as an input request of protocol 2026-07-28: the caller's user is told of it, and the same call goes on later.

Only for clients that declare form elicitation with the call; all others get APPROVAL_REQUIRED. An answer decides
nothing: `accept` says "look again", and what the hold says then counts, so that no client grants anything by it. The
request state is the hold's id, which is no secret and no right: the hold has to be of the very call that is repeated.
Refuses to know: what a hold is, how a call is resumed. Called by the server.
"""

from __future__ import annotations

import mcp.types as types

from gateway.errors import Code, ToolError

SINCE = "2026-07-28"
KEY = "approval"
"""Of the one input request."""


def offered_to(protocol_version: str, capabilities: types.ClientCapabilities | None) -> bool:
    """Whether this client can be asked. A bare `elicitation: {}` counts as forms, as it did before there were modes."""
    if protocol_version < SINCE or capabilities is None or capabilities.elicitation is None:
        return False
    return capabilities.elicitation.form is not None or capabilities.elicitation.url is None


def input_required(tool: str, error: ToolError) -> types.InputRequiredResult | None:
    """The request in the place of APPROVAL_REQUIRED; None for any other error."""
    if error.code is not Code.APPROVAL_REQUIRED or error.approval_id is None:
        return None
    message = (
        f'{tool} in workspace "{error.details.get("workspace_id")}" waits for an approval, hold {error.approval_id}. '
        "Whoever decides grants or denies it in the console or with `codespace holds`. Accept once that is done, and "
        "the call goes on; accepting by itself grants nothing."
    )
    form = types.ElicitRequestFormParams(message=message, requested_schema={"type": "object", "properties": {}})
    return types.InputRequiredResult(
        input_requests={KEY: types.ElicitRequest(params=form)}, request_state=error.approval_id
    )


def hold_of(params: types.CallToolRequestParams) -> str | None:
    """The hold that a repeated call goes on with: its user was asked and said `accept`."""
    answer = (params.input_responses or {}).get(KEY)
    accepted = isinstance(answer, types.ElicitResult) and answer.action == "accept"
    return params.request_state if accepted else None


def is_repeated(params: types.CallToolRequestParams) -> bool:
    """The user was asked already, and is not asked again for the same call."""
    return params.input_responses is not None
