"""What the runner needs from outside: small protocols in the runner's own types.

Adapters implement them, `runner.__main__` (or `gateway.__main__` in process) joins them. An adapter never decides
policy: everything it may do is in the request. Errors that a caller can act on are `runner.api.RunnerError`; the
launcher has its own, since the difference between "nothing started" and "may have started" is the contract (PROC-8).
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from runner.api import (
    ApplyPatch,
    FileContent,
    FindFiles,
    FindPage,
    GrepFiles,
    GrepPage,
    Isolation,
    IsolationReport,
    PatchApplied,
    ReadFile,
    RecoveredPatches,
    RecoverPatches,
    WorkspaceTerms,
)


class FileSystem(Protocol):
    """Reads below a workspace root, from a held descriptor, refusing links at open time (FS-1, FS-2).

    Methods block: the service calls them in its bounded thread pool. Safe to call from several threads at once.
    """

    def read_file(self, request: ReadFile) -> FileContent: ...
    def find_files(self, request: FindFiles) -> FindPage: ...
    def close(self) -> None: ...


class ContentSearch(Protocol):
    """Bounded search in file contents (FS-6). `available` is the truth about this machine, found at start."""

    @property
    def available(self) -> bool: ...
    async def grep_files(self, request: GrepFiles) -> GrepPage: ...
    async def close(self) -> None: ...


class PatchEngine(Protocol):
    """Parses and commits patches in a process of its own (PATCH-4)."""

    @property
    def available(self) -> bool: ...
    async def apply_patch(self, request: ApplyPatch) -> PatchApplied: ...
    async def recover_patches(self, request: RecoverPatches) -> RecoveredPatches: ...
    async def close(self) -> None: ...


# --- watching ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class WatchEvent:
    """An invalidation hint (WATCH-1): `path` is a name, not a claim that it can be read. `from_path` with rename."""

    kind: Literal["create", "modify", "remove", "rename", "resync_required"]
    epoch: int
    seq: int
    path: str | None = None
    from_path: str | None = None


class WatchBackend(Protocol):
    """A recursive watch of one root, started at most once a root; restarts raise the epoch (WATCH-2)."""

    async def watch(self, workspace_id: str, root: str) -> None: ...
    def subscribe(self, workspace_id: str) -> AsyncIterator[WatchEvent]: ...
    async def close(self) -> None: ...


# --- launching --------------------------------------------------------------------------------------------------------
class LaunchFailed(Exception):
    """It is proved that the command did not start. `stage`: where (a helper stage or `exec`). `errno`: a name.

    `path`: what it was about, if that is inside the sandbox. `remedy`: what to do.
    """

    def __init__(self, stage: str, errno: str, message: str, *, path: str | None = None, remedy: str | None = None):
        super().__init__(message)
        self.stage, self.errno, self.message, self.path, self.remedy = stage, errno, message, path, remedy


class SandboxUnavailable(Exception):
    """A required protection cannot be had, so nothing was tried (BOX-4)."""

    def __init__(self, feature: str, errno: str | None, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.feature, self.errno, self.message, self.remedy = feature, errno, message, remedy


class LaunchUncertain(Exception):
    """The command may have started and may be alive or not: the helper was lost in between (PROC-8).

    The launcher has begun to end whatever may have started. `ended`, called once, returns when nothing of it can be
    alive; without it the service takes the command for running until the runner itself is gone.
    """

    def __init__(self, message: str = "", *, ended: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(message)
        self.message, self.ended = message, ended


@dataclass(frozen=True)
class LaunchRequest:
    """`tty_size`: (rows, cols) for a terminal, None for pipes. `deadline_s` is the service's business, not here."""

    process_id: str
    terms: WorkspaceTerms
    argv: tuple[str, ...]
    tty_size: tuple[int, int] | None


@dataclass(frozen=True)
class ManagedExit:
    """`wait_status`: raw status of the managed child (PID 1 of the sandbox), as waitid gave it: `exit_code` is set
    unless a signal ended it. `command_code`/`command_signal`: of the command, None where PID 1 could not tell (it was
    killed first). `limit`: the limit that ended the command, only where the kernel attributes it. `note`: why it was
    ended by the sandbox itself (a protected name lost its cover, …)."""

    exit_code: int | None
    signal: int | None
    command_code: int | None = None
    command_signal: str | None = None
    limit: Literal["cpu_s", "memory_mb", "processes", "file_size_mb"] | None = None
    note: str | None = None


class ManagedProcess(Protocol):
    """A started command. The runner process is the parent of `pid` and reaps it through this object alone.

    `output_fd`: read end of the one pipe on 1 and 2, or the terminal's master; non-blocking. `stdin_fd`: write end,
    or the same master. The holder closes both through `close_stdin()` and `close()`.
    """

    pid: int
    isolation: Isolation
    stdin_fd: int | None
    output_fd: int

    async def wait(self) -> ManagedExit:
        """Returns once the managed child is reaped, so nothing of the command is alive. Safe to cancel and repeat."""
        ...

    def signal_tree(self, signum: signal.Signals) -> None:
        """Every process of the command but PID 1. No effect once it is over."""
        ...

    def kill(self) -> None:
        """SIGKILL to the managed child, which takes its namespace along. Idempotent."""
        ...

    def resize(self, rows: int, cols: int) -> None:
        """Sets the terminal's size; the foreground group gets SIGWINCH. Only with a terminal."""
        ...

    def close_stdin(self) -> None: ...
    def close(self) -> None:
        """Closes every descriptor. After `wait()`."""
        ...


class SandboxLauncher(Protocol):
    """Starts commands in the sandbox their terms ask for.

    Raises from `launch`: `LaunchFailed`, `SandboxUnavailable`, `LaunchUncertain`; `RunnerError` where the environment
    as a whole is missing, so that nothing was tried.
    """

    async def start(self) -> None: ...
    async def report(self, terms: WorkspaceTerms | None) -> IsolationReport: ...
    async def launch(self, request: LaunchRequest) -> ManagedProcess: ...
    async def tidy(self, root: str, protect: Sequence[str]) -> tuple[str, ...]:
        """Removes what a crash left at absent protected names of a workspace, unless a command is there; its end does
        it then. Returns the names that are absent again."""
        ...

    async def close(self) -> None:
        """Ends the helper. Running commands are the service's to kill first. Idempotent."""
        ...
