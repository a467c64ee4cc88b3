"""What the application answers where the runner's own results do not fit: the gateway's result models.

Field names and nesting are the public ones. Optional fields that are None are to be left out of what goes over the
wire (`model_dump(mode="json", exclude_none=True)`). Refuses to know: transports. Built by use cases, packed by tools.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gateway.steering import Delivery, IntentKind, IntentState, WorkState
from runner.api import FileChange

ProtectionState = Literal["active", "degraded", "off"]
Profile = Literal["read-only", "workspace-write"]
PatchStatus = Literal["applied", "checked", "rejected", "failed_rolled_back", "failed_partial", "unknown"]


class Answer(BaseModel):
    """Base of all: immutable, closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- workspace_info ---------------------------------------------------------------------------------------------------
class WorkspaceListed(Answer):
    workspace_id: str
    profile: Profile


class EnvironmentInfo(Answer):
    kind: Literal["host", "linux-container"]
    client_selectable: Literal[False] = False
    exec_supported: bool
    file_read_supported: bool
    file_write_supported: bool


class Permissions(Answer):
    read: bool
    write: bool
    exec: bool


class Availability(Answer):
    available: bool


class FilesInfo(Answer):
    read: Availability
    find: Availability
    patch: Availability


class TtyInfo(Answer):
    supported: bool = True
    default: Literal[False] = False
    initial_rows: int = 24
    initial_cols: int = 80
    resize_supported: bool = True


class ProcessCapabilities(Answer):
    handles: bool = True
    survives_request_end: bool = True
    write_stdin: bool = True
    incremental_read: bool = True
    terminate: bool = True
    output_combined: bool = True
    lifetime: Literal["runner-instance"] = "runner-instance"
    tty: TtyInfo = TtyInfo()


class ProcessInfo(Answer):
    """`capabilities` is absent where no command can be run."""

    available: bool
    capabilities: ProcessCapabilities | None = None


class SerializationInfo(Answer):
    live_process_holds_mutation_lease: Literal[True] = True
    parallel_exec: Literal[False] = False
    read_while_process_live: Literal[True] = True
    find_while_process_live: Literal[True] = True
    patch_while_process_live: Literal[False] = False
    conflict_error: Literal["WORKSPACE_BUSY"] = "WORKSPACE_BUSY"


class IsolationInfo(Answer):
    file_tools_workspace_scoped: Literal[True] = True
    command_sandbox: Literal["none", "linux-sandbox"]
    protections: dict[str, ProtectionState]


class NetworkInfo(Answer):
    policy: Literal["restricted", "enabled"]
    enforcement: Literal["none", "enforced"]
    client_may_escalate: Literal[False] = False


class ExecutionInfo(Answer):
    environment: EnvironmentInfo
    permissions: Permissions
    files: FilesInfo
    process: ProcessInfo
    serialization: SerializationInfo = SerializationInfo()
    isolation: IsolationInfo
    network: NetworkInfo
    approvals: Literal["off", "confirm"]
    limits: dict[str, int]


class WorkspaceInfo(Answer):
    """`workspaces` always lists all; the fields after it are present with a workspace id."""

    server: str
    version: str
    internal_model_calls: Literal[False] = False
    tools_exposed: tuple[str, ...]
    transports: tuple[str, ...]
    workspaces: tuple[WorkspaceListed, ...]
    workspace_id: str | None = None
    workspace_id_is_credential: Literal[False] | None = None
    profile: Profile | None = None
    execution: ExecutionInfo | None = None


# --- commands ---------------------------------------------------------------------------------------------------------
class ExecDispatched(Answer):
    """`unknown`: it may have started; the handle tells the truth later and nothing is to be sent again."""

    process_id: str
    dispatch_status: Literal["confirmed", "unknown"]


class ProcessListed(Answer):
    """A command as its operator sees it. `command`: as it was asked for; of a long one the beginning, with … at its
    end."""

    process_id: str
    workspace_id: str
    command: tuple[str, ...]
    tty: bool
    state: Literal["running", "exited"]
    started_at: datetime


# --- patches ----------------------------------------------------------------------------------------------------------
class PatchAnswer(Answer):
    """`replayed`: present and true where a recorded result is given again. `operation_id`: absent with a preview."""

    status: Literal["applied", "checked"]
    operation_id: str | None = None
    operation_key: str | None = None
    replayed: Literal[True] | None = None
    files: tuple[str, ...]
    changes: tuple[FileChange, ...]
    warnings: tuple[dict[str, Any], ...] | None = None


class OperationEvent(Answer):
    event: Literal["minted", "finished"]
    at: datetime
    reason: str | None = None


class OperationAnswer(Answer):
    """`status` is absent while the operation runs."""

    operation_id: str
    operation_key: str | None = None
    kind: Literal["patch"] = "patch"
    workspace_id: str
    status: PatchStatus | None = None
    created_at: datetime
    finished_at: datetime | None = None
    files: tuple[str, ...]
    changes: tuple[FileChange, ...]
    events: tuple[OperationEvent, ...]


class OperationListed(OperationAnswer):
    """A recorded patch as its operator sees it. `error_code`: of one that was not applied, where it is known."""

    error_code: str | None = None


# --- approvals --------------------------------------------------------------------------------------------------------
ApprovalState = Literal["pending", "granted", "denied", "resuming", "consumed"]


class HoldAnswer(Answer):
    approval_id: str
    state: ApprovalState


class ResumeAnswer(Answer):
    """The result of the held call, under the name of its tool."""

    approval_id: str
    state: Literal["consumed"] = "consumed"
    apply_patch: PatchAnswer | None = None
    exec_command: ExecDispatched | None = None


class HoldListed(Answer):
    """A hold as its operator sees it. `request`: the held call's arguments, while it is live and asked for."""

    approval_id: str
    tool: Literal["apply_patch", "exec_command"]
    workspace_id: str
    state: ApprovalState
    created_at: datetime
    resolved_at: datetime | None = None
    finished_at: datetime | None = None
    operation_id: str | None = None
    request: dict[str, Any] | None = None


# --- works ------------------------------------------------------------------------------------------------------------
class WorkOpened(Answer):
    work_id: str
    workspace_id: str
    state: WorkState


class SteerStatus(Answer):
    """Counts, never what the instructions say. `claimed_intent_ids`: what is claimed and not completed."""

    work_id: str
    state: WorkState
    queued: int
    claimed: int
    claimable_now: int
    queue_revision: int
    claimed_intent_ids: tuple[str, ...] | None = None


class SteerItem(Answer):
    intent_id: str
    revision: int
    kind: IntentKind
    delivery: Delivery
    content: str


class ClaimAnswer(Answer):
    """`item` is absent where nothing can be claimed now."""

    item: SteerItem | None = None


class CompleteAnswer(Answer):
    work_id: str
    intent_id: str
    state: Literal["done", "blocked"]


class FinishAnswer(Answer):
    work_id: str
    closed: bool
    reason: Literal["pending_user_input", "cancelled"] | None = None
    queued: int
    state: WorkState


class Coordination(Answer):
    """The hint beside the results of tools that take `work_id`."""

    work_id: str
    pending_user_items: int
    queue_revision: int


class IntentAnswer(Answer):
    """One instruction, as its author sees it."""

    intent_id: str
    work_id: str | None = None
    workspace_id: str
    position: int
    revision: int
    kind: IntentKind
    delivery: Delivery
    body: str
    state: IntentState


class IntentOutline(Answer):
    """One instruction in a list: `body` may be its beginning only. `size_bytes`: of the whole body."""

    intent_id: str
    work_id: str
    workspace_id: str
    position: int
    revision: int
    kind: IntentKind
    delivery: Delivery
    body: str
    size_bytes: int
    state: IntentState


class WorkListed(Answer):
    """One work, as its user sees it."""

    work_id: str
    workspace_id: str
    title: str | None = None
    state: WorkState
    queued: int
    claimed: int
    claimable_now: int
    queue_revision: int
    created_at: datetime
    closed_at: datetime | None = None


class StopAnswer(Answer):
    """`killed`: how many commands were ended."""

    ok: Literal[True] = True
    killed: int
    intent: IntentAnswer


# --- readiness --------------------------------------------------------------------------------------------------------
class Readiness(Answer):
    """`reasons`: why not, in words to act on; empty when ready."""

    ready: bool
    reasons: tuple[str, ...] = ()
