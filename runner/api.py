"""The runner contract: everything the gateway knows about a runner.

Requests, results and events are CodeSpace's own types. They say what to do, never whether it is allowed: the gateway
has decided before it builds one. No type or name of an execution backend appears here (adapters translate).

The gateway imports this module alone. `runner.service.RunnerService` implements `Runner` in process;
`gateway.runner_client` implements it over the private socket, where a method's name is the wire method and the
request's JSON its parameters. It refuses to know: MCP, HTTP, leases, approvals, profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NoReturn, Protocol

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL_VERSION = 1
"""Said by both sides in the hello of the private socket; another number closes the connection (UDS-1)."""

MAX_FRAME_BYTES = 16 * 1024 * 1024
READ_LIMIT_BYTES = 1024 * 1024
"""`read` returns at most this many bytes of content (FS-3)."""
VERSION_LIMIT_BYTES = 1024 * 1024 * 1024
"""`version` is omitted beyond this size."""
MAX_WAIT_MS = 60_000
MAX_MATCHES = 1_000
MAX_ARGV_BYTES = 128 * 1024
MAX_PATCH_BYTES = 4 * 1024 * 1024
MAX_STDIN_BYTES = 1024 * 1024
DEFAULT_PREPARED_SANDBOXES = 4
"""How many sandboxes a runner keeps waiting for commands, at most, where nobody says otherwise."""
ABSENT = "absent"
"""Stands for a version where no file is expected (PATCH-2)."""


class Message(BaseModel):
    """Base of all requests, results and events: immutable, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- errors ---------------------------------------------------------------------------------------------------------
class ErrorCode(StrEnum):
    """What a runner may answer. A subset of the public codes, with the same names."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    INVALID_COMMAND = "INVALID_COMMAND"
    INVALID_PATCH = "INVALID_PATCH"
    PATH_ESCAPE = "PATH_ESCAPE"
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    PATH_NOT_DIRECTORY = "PATH_NOT_DIRECTORY"
    FILE_OPERATION_FAILED = "FILE_OPERATION_FAILED"
    SYMLINK_REJECTED = "SYMLINK_REJECTED"
    SPECIAL_FILE_REJECTED = "SPECIAL_FILE_REJECTED"
    ADD_FILE_EXISTS = "ADD_FILE_EXISTS"
    MOVE_DESTINATION_EXISTS = "MOVE_DESTINATION_EXISTS"
    VERSION_CONFLICT = "VERSION_CONFLICT"
    UNAUTHORIZED = "UNAUTHORIZED"
    PROCESS_NOT_FOUND = "PROCESS_NOT_FOUND"
    PROCESS_NOT_TTY = "PROCESS_NOT_TTY"
    PROCESS_NOT_RUNNING = "PROCESS_NOT_RUNNING"
    PROCESS_SPAWN_FAILED = "PROCESS_SPAWN_FAILED"
    TOO_MANY_PROCESSES = "TOO_MANY_PROCESSES"
    SANDBOX_UNAVAILABLE = "SANDBOX_UNAVAILABLE"
    ENVIRONMENT_UNAVAILABLE = "ENVIRONMENT_UNAVAILABLE"
    RUNNER_UNAVAILABLE = "RUNNER_UNAVAILABLE"
    INTERNAL = "INTERNAL"


class RunnerError(Exception):
    """A request that was refused or failed, as a value that crosses the wire.

    `code`: one of `ErrorCode`. `message`: what failed, on what, what to do next; shown to the caller, so it holds no
    path outside the workspace. `retryable`: the same request may succeed later without a change by the caller.
    `details`: JSON values only.
    """

    def __init__(
        self, code: ErrorCode, message: str, *, retryable: bool = False, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.details: dict[str, Any] = dict(details or {})


class RunnerLost(RunnerError):
    """The connection ended after the request may have been delivered: it may or may not have had its effect (UDS-2).

    Raised by the gateway's client only. Never means "failed", and the request is never sent again.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.RUNNER_UNAVAILABLE, message, retryable=False)


def check_argv(argv: Sequence[str]) -> None:
    """The one rule for a command, asked by both ends (PROC-8): the gateway before it takes an id or a lease.

    Raises `RunnerError` INVALID_COMMAND for an empty list, an empty program name, NUL, text that has no UTF-8 form, and
    more than MAX_ARGV_BYTES in all (each argument counts one more byte, as execve counts it).
    """

    def refuse(why: str) -> NoReturn:
        raise RunnerError(ErrorCode.INVALID_COMMAND, f"The command cannot be run: {why}.")

    if not argv:
        refuse("it is an empty list; give the program and its arguments")
    if not argv[0]:
        refuse("the program's name is empty")
    total = 0
    for position, argument in enumerate(argv):
        if "\0" in argument:
            refuse(f"argument {position} contains a NUL character")
        try:
            total += len(argument.encode("utf-8")) + 1
        except UnicodeEncodeError:
            refuse(f"argument {position} contains an unpaired surrogate, which has no UTF-8 form")
        if total > MAX_ARGV_BYTES:
            refuse(f"its arguments take more than {MAX_ARGV_BYTES} bytes; pass large input through a file or stdin")


# --- what the gateway says of a workspace -----------------------------------------------------------------------------
class Limits(Message):
    """Limits of one command, from the registry. 0 means no limit."""

    timeout_s: int = 30
    cpu_s: int = 0
    memory_mb: int = 2048
    processes: int = 256
    open_files: int = 1024
    file_size_mb: int = 1024
    output_retained_kb: int = 256


class WorkspaceRef(Message):
    """Enough of a workspace to reach its files. `root` is an absolute, canonical path."""

    workspace_id: str
    root: str
    environment: Literal["host", "linux-container"] = "host"


class WorkspaceTerms(WorkspaceRef):
    """The terms a command runs under, as the registry had them when the gateway decided.

    `protect`: names relative to the root that commands and patches cannot change. `env`: the operator's additions to
    the clean environment. `network_allow`/`network_deny`: see the registry; only with `network: enabled`.
    """

    sandbox: Literal["required", "off"] = "required"
    network: Literal["restricted", "enabled"] = "restricted"
    network_allow: tuple[str, ...] = ()
    network_deny: tuple[str, ...] = ()
    limits: Limits = Limits()
    protect: tuple[str, ...] = ()
    mounts_read_only: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)


# --- isolation --------------------------------------------------------------------------------------------------------
class Protection(Message):
    """One protection as probed with the real helper (never guessed from a version).

    `state`: active | degraded (something weaker stands in) | off. `required`: without it nothing runs.
    `errno`: a name such as EPERM. `remedy`: what the operator does about it, in words to paste.
    """

    name: str
    state: Literal["active", "degraded", "off"]
    required: bool
    errno: str | None = None
    detail: str | None = None
    remedy: str | None = None


class IsolationReport(Message):
    """What a command of these terms gets. `command_sandbox: none` only where the operator switched it off."""

    command_sandbox: Literal["none", "linux-sandbox"]
    available: bool
    network_enforcement: Literal["none", "enforced"]
    protections: tuple[Protection, ...]


class Isolation(Message):
    """What was in force for one command: protection name to state."""

    command_sandbox: Literal["none", "linux-sandbox"]
    network: Literal["none", "restricted", "enabled"]
    protections: dict[str, Literal["active", "degraded", "off"]]
    limits: dict[str, Literal["cgroup", "rlimit", "deadline", "off"]] = Field(default_factory=dict)


# --- describe ---------------------------------------------------------------------------------------------------------
class Describe(Message):
    """With `terms`: what a command under them would get. Without: what this machine offers by default."""

    terms: WorkspaceTerms | None = None


class EnvironmentSupport(Message):
    kind: Literal["host", "linux-container"]
    exec_supported: bool
    file_read_supported: bool
    file_write_supported: bool


class NetworkDecisions(Message):
    """How often the managed proxy decided so since this runner started. `via`: the way that was asked for."""

    via: Literal["http", "connect", "socks5", "transparent", "names", "proxy"]
    decision: Literal["allowed", "refused"]
    count: Annotated[int, Field(ge=0)]


class RunnerDescription(Message):
    """`runner_instance_id` is new with every runner; handles of another instance are PROCESS_NOT_FOUND."""

    runner_instance_id: str
    environment: EnvironmentSupport
    isolation: IsolationReport
    grep_available: bool
    patch_available: bool
    network_decisions: tuple[NetworkDecisions, ...] = ()


# --- files ------------------------------------------------------------------------------------------------------------
class ReadFile(Message):
    """`offset`: 1-based first line. `limit`: number of lines. Both absent: from the start, up to READ_LIMIT_BYTES."""

    workspace: WorkspaceRef
    path: str
    offset: Annotated[int, Field(ge=1)] | None = None
    limit: Annotated[int, Field(ge=1)] | None = None


class FileContent(Message):
    """`content`: text, or base64 where the bytes are not UTF-8. `version`: sha256:<hex> of the whole file, absent
    beyond VERSION_LIMIT_BYTES. `size`: bytes of the whole file. `start_line`/`end_line`: 1-based, inclusive, where
    lines were asked for or text was cut at READ_LIMIT_BYTES (cut after a whole line if one fits: go on with offset
    end_line + 1). `truncated`: the bound cut what was asked for."""

    path: str
    content: str
    encoding: Literal["utf-8", "base64"]
    version: str | None = None
    size: int
    start_line: int | None = None
    end_line: int | None = None
    truncated: bool


class FindFiles(Message):
    """`pattern` matches the whole relative path: * ? [...] within a component, ** across any number, {a,b}."""

    workspace: WorkspaceRef
    pattern: str
    limit: Annotated[int, Field(ge=1, le=MAX_MATCHES)] = 200
    cursor: str | None = None


class FoundPath(Message):
    """`addressable: False` marks a name that is not UTF-8 (shown with U+FFFD); absent otherwise."""

    path: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int | None = None
    addressable: Literal[False] | None = None


class FindPage(Message):
    """Sorted by path. `next_cursor` is there exactly when `truncated`; a page may be short, or empty, where a bound on
    entries was reached first. `unreadable`: directories that could not be looked into (at most 20), absent if none."""

    matches: tuple[FoundPath, ...]
    truncated: bool
    next_cursor: str | None = None
    unreadable: tuple[str, ...] | None = None


class GrepFiles(Message):
    """`pattern`: a regular expression of ripgrep's default engine. `context`: lines before and after."""

    workspace: WorkspaceRef
    pattern: str
    glob: str | None = None
    ignore_case: bool = False
    gitignore: bool = False
    context: Annotated[int, Field(ge=0, le=20)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_MATCHES)] = 200
    cursor: str | None = None


class GrepMatch(Message):
    """`line` counts from 1; `before` and `after` are present when context was asked for."""

    path: str
    line: int
    text: str
    before: tuple[str, ...] | None = None
    after: tuple[str, ...] | None = None
    addressable: Literal[False] | None = None


class GrepPage(Message):
    """Sorted by path, then line. `truncated`, `next_cursor`: as in `FindPage`. `unreadable`: files and directories that
    could not be opened (at most 20), absent if none."""

    matches: tuple[GrepMatch, ...]
    truncated: bool
    next_cursor: str | None = None
    unreadable: tuple[str, ...] | None = None


# --- patches ----------------------------------------------------------------------------------------------------------
class ApplyPatch(Message):
    """One patch. The gateway holds the lease and has recorded `operation_id`; a preview has neither.

    `journal_dir`: absolute path of this workspace's journal directory, outside every root. `expected_versions`: path to
    sha256:<hex> or ABSENT. `protect`: names that are UNAUTHORIZED.
    """

    workspace: WorkspaceRef
    patch: str
    expected_versions: dict[str, str] = Field(default_factory=dict)
    check_only: bool = False
    operation_id: str | None = None
    journal_dir: str
    protect: tuple[str, ...] = ()


class FileChange(Message):
    """`before_version`/`after_version`: sha256:<hex>; absent where there is no file on that side."""

    path: str
    kind: Literal["add", "update", "delete", "move"]
    from_path: str | None = None
    before_version: str | None = None
    after_version: str | None = None


class PatchApplied(Message):
    """`applied` only after fresh hashes on disk equal the planned ones. `warnings`: as the format's reference lists."""

    status: Literal["applied", "checked"]
    files: tuple[str, ...]
    changes: tuple[FileChange, ...]
    warnings: tuple[dict[str, Any], ...] = ()


class RecoverPatches(Message):
    """Finish or roll back what an interrupted commit left in `journal_dir`. Idempotent; before anything else runs."""

    workspace: WorkspaceRef
    journal_dir: str


class RecoveredPatch(Message):
    """What the journal and the disk prove about one operation."""

    operation_id: str
    status: Literal["applied", "failed_rolled_back", "failed_partial", "unknown"]
    files: tuple[str, ...] = ()
    changes: tuple[FileChange, ...] = ()
    reason: str


class RecoveredPatches(Message):
    recovered: tuple[RecoveredPatch, ...]


class TidyWorkspace(Message):
    """Remove the placeholders that a crash left at protected names. Idempotent; does nothing while a command of this
    runner is in the workspace. The caller has made sure that no other runner's is."""

    workspace: WorkspaceRef
    protect: tuple[str, ...]


class WorkspaceTidied(Message):
    """Names that held a placeholder of the sandbox's own and are absent again."""

    removed: tuple[str, ...]


# --- processes --------------------------------------------------------------------------------------------------------
class StartProcess(Message):
    """`process_id` was issued by the gateway. cwd is the workspace root; size 24 x 80 with `tty`."""

    process_id: str
    terms: WorkspaceTerms
    argv: tuple[str, ...]
    tty: bool = False


class ProcessStarted(Message):
    """Exec is known to have happened: the helper saw it. Anything else is an error."""

    process_id: str
    started_at_utc: datetime


class ReadProcess(Message):
    """`cursor`: absolute byte offset. `wait_ms`: return early on output or end. `max_bytes`: of raw output."""

    process_id: str
    cursor: Annotated[int, Field(ge=0)] = 0
    wait_ms: Annotated[int, Field(ge=0, le=MAX_WAIT_MS)] = 0
    max_bytes: Annotated[int, Field(ge=1, le=1024 * 1024)] = 64 * 1024
    encoding: Literal["utf-8", "base64"] = "utf-8"


class ProcessOutput(Message):
    """`cursor`: where to go on. `output_lost`: bytes between the asked cursor and `retained_from` are gone. `eof`:
    the output has ended and `cursor` is its end; it says nothing about success."""

    process_id: str
    cursor: int
    chunk: str
    encoding: Literal["utf-8", "base64"]
    eof: bool
    output_lost: bool
    retained_from: int


class QueryProcess(Message):
    process_id: str
    wait_ms: Annotated[int, Field(ge=0, le=MAX_WAIT_MS)] = 0


class CommandExit(Message):
    """How the command itself ended: exactly one of `code` and `signal` (a name such as SIGKILL)."""

    code: int | None = None
    signal: str | None = None


class ProcessStatus(Message):
    """`exit_code`: of the managed child, only with termination `exited`. `command_exit`: of the command itself.
    `limit`: what ended it, where the kernel or the deadline tells."""

    process_id: str
    state: Literal["running", "exited"]
    termination: Literal["exited", "timeout", "terminated", "unknown"] | None = None
    exit_code: int | None = None
    command_exit: CommandExit | None = None
    limit: Literal["timeout_s", "cpu_s", "memory_mb", "processes", "file_size_mb"] | None = None
    output_total: int
    output_retained_from: int
    eof: bool
    started_at_utc: datetime
    exited_at_utc: datetime | None = None
    isolation: Isolation


class WriteStdin(Message):
    """`data`: text, written as UTF-8. `eof`: close the input afterwards (a tty gets its EOF character)."""

    process_id: str
    data: str
    eof: bool = False


class StdinWritten(Message):
    """`written_bytes` may be less than asked for: the pipe stayed full until the bound."""

    process_id: str
    written_bytes: int


class ResizeProcess(Message):
    process_id: str
    rows: Annotated[int, Field(ge=1, le=1000)]
    cols: Annotated[int, Field(ge=1, le=1000)]


class ProcessResized(Message):
    process_id: str
    rows: int
    cols: int


class TerminateProcess(Message):
    """TERM to the whole tree, KILL after the grace; answers at once. Idempotent."""

    process_id: str


class ProcessTerminating(Message):
    process_id: str
    state: Literal["running", "exited"]


class TerminateWorkspace(Message):
    """Ends every process of a workspace that was removed, or that its user stopped; answers when they are dead."""

    workspace_id: str


class WorkspaceTerminated(Message):
    process_ids: tuple[str, ...]


class ListProcesses(Message):
    workspace_id: str | None = None


SHOWN_ARGV_CHARS = 1_024
"""Of each command in a list: all lists together have to fit into a frame, whatever was run."""


def shown_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """The beginning of a command, as lists show it: its last word ends in … where there is more."""
    left, shown = SHOWN_ARGV_CHARS, list[str]()
    for argument in argv:
        if len(argument) >= left:
            return (*shown, f"{argument[: max(left - 1, 0)]}…")
        shown.append(argument)
        left -= len(argument) + 1
    return tuple(shown)


class ProcessSummary(Message):
    """`argv`: see `shown_argv`."""

    process_id: str
    workspace_id: str
    argv: tuple[str, ...]
    tty: bool
    state: Literal["running", "exited"]
    started_at_utc: datetime


class ProcessList(Message):
    processes: tuple[ProcessSummary, ...]


# --- events -----------------------------------------------------------------------------------------------------------
class ProcessExited(Message):
    """The managed child is reaped, so its namespace is empty: the lease may go. Sent before any answer that says so."""

    event: Literal["process_exited"] = "process_exited"
    process_id: str
    workspace_id: str
    termination: Literal["exited", "timeout", "terminated", "unknown"]
    exited_at_utc: datetime


RunnerEvent = ProcessExited
EventListener = Callable[[RunnerEvent], None]


class Runner(Protocol):
    """What the gateway may ask. Every method may raise `RunnerError`; over the socket also `RunnerLost`.

    Reads (`describe`, `read_file`, `find_files`, `grep_files`, `read_process`, `process_status`, `list_processes`) and
    `terminate_*` are idempotent and safe to cancel. Cancelling `start_process` or `apply_patch` does not undo them.
    """

    async def describe(self, request: Describe) -> RunnerDescription: ...
    async def read_file(self, request: ReadFile) -> FileContent: ...
    async def find_files(self, request: FindFiles) -> FindPage: ...
    async def grep_files(self, request: GrepFiles) -> GrepPage: ...
    async def apply_patch(self, request: ApplyPatch) -> PatchApplied: ...
    async def recover_patches(self, request: RecoverPatches) -> RecoveredPatches: ...
    async def tidy_workspace(self, request: TidyWorkspace) -> WorkspaceTidied: ...
    async def start_process(self, request: StartProcess) -> ProcessStarted: ...
    async def read_process(self, request: ReadProcess) -> ProcessOutput: ...
    async def process_status(self, request: QueryProcess) -> ProcessStatus: ...
    async def write_stdin(self, request: WriteStdin) -> StdinWritten: ...
    async def resize_process(self, request: ResizeProcess) -> ProcessResized: ...
    async def terminate_process(self, request: TerminateProcess) -> ProcessTerminating: ...
    async def terminate_workspace(self, request: TerminateWorkspace) -> WorkspaceTerminated: ...
    async def list_processes(self, request: ListProcesses) -> ProcessList: ...
    def subscribe(self, listener: EventListener) -> None:
        """Calls `listener` for every event, synchronously, before any later answer is delivered."""
        ...

    async def close(self) -> None:
        """Kills what runs and returns once it is dead. Idempotent."""
        ...


REQUESTS: Mapping[str, tuple[type[Message], type[Message]]] = {
    "describe": (Describe, RunnerDescription),
    "read_file": (ReadFile, FileContent),
    "find_files": (FindFiles, FindPage),
    "grep_files": (GrepFiles, GrepPage),
    "apply_patch": (ApplyPatch, PatchApplied),
    "recover_patches": (RecoverPatches, RecoveredPatches),
    "tidy_workspace": (TidyWorkspace, WorkspaceTidied),
    "start_process": (StartProcess, ProcessStarted),
    "read_process": (ReadProcess, ProcessOutput),
    "process_status": (QueryProcess, ProcessStatus),
    "write_stdin": (WriteStdin, StdinWritten),
    "resize_process": (ResizeProcess, ProcessResized),
    "terminate_process": (TerminateProcess, ProcessTerminating),
    "terminate_workspace": (TerminateWorkspace, WorkspaceTerminated),
    "list_processes": (ListProcesses, ProcessList),
}
"""Wire method to (request, result): the one table both ends of the private socket read."""
