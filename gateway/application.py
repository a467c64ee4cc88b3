"""The gateway's core as one object: every tool call of every transport ends in one of these methods.

Refuses to know: MCP, HTTP, the command line, log formats. Joined in `gateway.__main__`, called by the transports.
Every tool method raises `gateway.errors.ToolError` and nothing else on purpose. Cancelling a call never loses a lease
or a process: what was begun is seen to its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.answers import ExecDispatched, OperationAnswer, PatchAnswer, Readiness, WorkspaceInfo
from runner import api


class Application:
    async def start(self) -> None:
        """Starts the runner and recovers what an earlier run left. Raises `OperatorError`."""
        raise NotImplementedError

    def available_tools(self) -> frozenset[str]:
        """Public names of the tools that work here; valid after `start`."""
        raise NotImplementedError

    def set_exposure(self, *, tools: Sequence[str], transports: Sequence[str]) -> None:
        """What the transports really list and serve, for `workspace_info`."""
        raise NotImplementedError

    async def workspace_info(self, workspace_id: str | None) -> WorkspaceInfo:
        raise NotImplementedError

    async def read_file(
        self, workspace_id: str, path: str, offset: int | None = None, limit: int | None = None
    ) -> api.FileContent:
        raise NotImplementedError

    async def find_files(
        self, workspace_id: str, pattern: str, limit: int | None = None, cursor: str | None = None
    ) -> api.FindPage:
        raise NotImplementedError

    async def grep_files(
        self,
        workspace_id: str,
        pattern: str,
        glob: str | None = None,
        ignore_case: bool = False,
        gitignore: bool = False,
        context: int = 0,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> api.GrepPage:
        raise NotImplementedError

    async def apply_patch(
        self,
        workspace_id: str,
        patch: str,
        expected_versions: Mapping[str, str] | None = None,
        operation_key: str | None = None,
        check_only: bool = False,
    ) -> PatchAnswer:
        raise NotImplementedError

    async def operation_status(
        self, operation_id: str | None = None, operation_key: str | None = None, workspace_id: str | None = None
    ) -> OperationAnswer:
        raise NotImplementedError

    async def exec_command(
        self, workspace_id: str, command: tuple[str, ...], tty: bool = False, request_key: str | None = None
    ) -> ExecDispatched:
        raise NotImplementedError

    async def read_process(self, request: api.ReadProcess) -> api.ProcessOutput:
        raise NotImplementedError

    async def process_status(self, request: api.QueryProcess) -> api.ProcessStatus:
        raise NotImplementedError

    async def write_stdin(self, request: api.WriteStdin) -> api.StdinWritten:
        raise NotImplementedError

    async def resize_process(self, request: api.ResizeProcess) -> api.ProcessResized:
        raise NotImplementedError

    async def terminate_process(self, request: api.TerminateProcess) -> api.ProcessTerminating:
        raise NotImplementedError

    async def readiness(self) -> Readiness:
        raise NotImplementedError

    async def reload(self) -> None:
        """Reads the registry again. Raises `RegistryRefused` or `AlreadyServed`; the old one then stays in force."""
        raise NotImplementedError

    async def close(self) -> None:
        """Ends the runner and all it runs, closes the store, gives the locks back. Bounded, idempotent."""
        raise NotImplementedError
