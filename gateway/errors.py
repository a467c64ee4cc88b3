"""What the gateway refuses or fails with: tool errors for callers, operator errors for whoever starts the program.

    GatewayError
    ├── ToolError               one answer of one tool: a closed code, a message, details
    └── OperatorError           what failed: on what: what to do (the command line prints it; `exit_status`)
        ├── ConfigurationError  settings, registry or arguments are wrong (2)
        │   └── RegistryRefused the registry, with file and key
        ├── AlreadyServed       another program of ours holds this root or data directory (1)
        └── StartFailed         a part of the appliance did not come up (1)

Refuses to know: MCP, HTTP, logging. Raised by use cases and start-up code, rendered by the transports and the command
line.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from runner.api import RunnerError


class Code(StrEnum):
    """Every code a tool may answer with; the set is closed."""

    UNAUTHORIZED = "UNAUTHORIZED"
    WORKSPACE_NOT_FOUND = "WORKSPACE_NOT_FOUND"
    WORKSPACE_BUSY = "WORKSPACE_BUSY"
    ENVIRONMENT_UNAVAILABLE = "ENVIRONMENT_UNAVAILABLE"
    SANDBOX_UNAVAILABLE = "SANDBOX_UNAVAILABLE"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    INVALID_PATCH = "INVALID_PATCH"
    INVALID_COMMAND = "INVALID_COMMAND"
    PATH_ESCAPE = "PATH_ESCAPE"
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    PATH_NOT_DIRECTORY = "PATH_NOT_DIRECTORY"
    FILE_OPERATION_FAILED = "FILE_OPERATION_FAILED"
    SYMLINK_REJECTED = "SYMLINK_REJECTED"
    SPECIAL_FILE_REJECTED = "SPECIAL_FILE_REJECTED"
    ADD_FILE_EXISTS = "ADD_FILE_EXISTS"
    MOVE_DESTINATION_EXISTS = "MOVE_DESTINATION_EXISTS"
    VERSION_CONFLICT = "VERSION_CONFLICT"
    CHECK_ONLY_CONFLICT = "CHECK_ONLY_CONFLICT"
    """Reserved: nothing answers it today."""
    OPERATION_KEY_CONFLICT = "OPERATION_KEY_CONFLICT"
    OPERATION_NOT_FOUND = "OPERATION_NOT_FOUND"
    PROCESS_NOT_FOUND = "PROCESS_NOT_FOUND"
    PROCESS_NOT_TTY = "PROCESS_NOT_TTY"
    PROCESS_NOT_RUNNING = "PROCESS_NOT_RUNNING"
    PROCESS_SPAWN_FAILED = "PROCESS_SPAWN_FAILED"
    TOO_MANY_PROCESSES = "TOO_MANY_PROCESSES"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    APPROVAL_CONFLICT = "APPROVAL_CONFLICT"
    APPROVAL_NOT_FOUND = "APPROVAL_NOT_FOUND"
    APPROVAL_AMBIGUOUS = "APPROVAL_AMBIGUOUS"
    WORK_NOT_FOUND = "WORK_NOT_FOUND"
    WORK_CLOSED = "WORK_CLOSED"
    INTENT_NOT_FOUND = "INTENT_NOT_FOUND"
    INTENT_ALREADY_CLAIMED = "INTENT_ALREADY_CLAIMED"
    INTENT_NOT_EDITABLE = "INTENT_NOT_EDITABLE"
    INTENT_REVISION_CONFLICT = "INTENT_REVISION_CONFLICT"
    RUNNER_UNAVAILABLE = "RUNNER_UNAVAILABLE"
    INTERNAL = "INTERNAL"


class GatewayError(Exception):
    """Root of everything this package raises on purpose."""


class ToolError(GatewayError):
    """A tool that refused or failed (TOOL-2).

    `message`: what failed, on what, what to do next; holds no path outside the workspace. `retryable`: the same call
    may succeed later without a change by the caller. `details`: JSON values only. `operation_id`: of a recorded patch,
    on every error once it is minted. `approval_id`: of the hold that the call waits for.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
        operation_id: str | None = None,
        approval_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.details: dict[str, Any] = dict(details or {})
        self.operation_id = operation_id
        self.approval_id = approval_id

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def to_structured(self) -> dict[str, Any]:
        """`{"error": {"code", "message", "retryable", "details", "operation_id"?, "approval_id"?}}`: JSON values."""
        error: dict[str, Any] = {
            "code": self.code.value,
            "message": self.message,
            "retryable": self.retryable,
            "details": self.details,
        }
        if self.operation_id is not None:
            error["operation_id"] = self.operation_id
        if self.approval_id is not None:
            error["approval_id"] = self.approval_id
        return {"error": error}

    @classmethod
    def from_runner(cls, error: RunnerError, *, operation_id: str | None = None) -> ToolError:
        """The runner's refusal under the public code of the same name.

        An INTERNAL of the runner keeps nothing but its `error_id`: the rest may name paths or types of our own.
        """
        if error.code == Code.INTERNAL.value:
            error_id = error.details.get("error_id")
            return internal(error_id if isinstance(error_id, str) else new_error_id(), operation_id=operation_id)
        return cls(
            Code(error.code.value),
            error.message,
            retryable=error.retryable,
            details=error.details,
            operation_id=operation_id,
        )


def new_error_id() -> str:
    """A random id that joins an INTERNAL answer to its line in the log."""
    return f"err_{secrets.token_hex(8)}"


def internal(error_id: str, *, operation_id: str | None = None) -> ToolError:
    """INTERNAL: says nothing but where the operator finds the cause. The caller logs the cause under `error_id`."""
    return ToolError(
        Code.INTERNAL,
        f"the server failed on this call; its log has the cause under error_id {error_id}",
        details={"error_id": error_id},
        operation_id=operation_id,
    )


class OperatorError(GatewayError):
    """A start or a command that cannot go on. Text: `what: on: remedy`, as the command line prints it after `error: `.

    `what`: what failed. `on`: file, key, path or address. `remedy`: what to do. `exit_status`: of the program.
    """

    exit_status = 1

    def __init__(self, what: str, on: str, remedy: str) -> None:
        super().__init__(what, on, remedy)
        self.what = what
        self.on = on
        self.remedy = remedy

    def __str__(self) -> str:
        return ": ".join(part for part in (self.what, self.on, self.remedy) if part)


class ConfigurationError(OperatorError):
    """Settings, registry or arguments that cannot be served."""

    exit_status = 2


class RegistryRefused(ConfigurationError):
    """`file`: the registry as given. `key`: dotted, such as `workspaces.demo.root`; empty for the file as a whole."""

    def __init__(self, file: str, key: str, problem: str, remedy: str) -> None:
        self.file = file
        self.key = key
        self.problem = problem
        super().__init__(f"registry refused: {problem}", f"{file}: {key}" if key else file, remedy)


class AlreadyServed(OperatorError):
    """Another program of ours holds the lock of this root or data directory (LEASE-2)."""


class StartFailed(OperatorError):
    """A part of the appliance did not come up."""
