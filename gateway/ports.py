"""What the gateway core needs from its shells: an audit trail, and a runner that may come and go.

Small protocols in the core's own types. Refuses to know: sockets, processes, log formats. The audit trail is
implemented beside the log, the runner link by `worker_process` (uds) and `in_process`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from runner.api import ProcessExited, Runner, RunnerDescription


@dataclass(frozen=True)
class AuditRecord:
    """One decision or mutation, never contents: no argv, no patch text, no file data.

    `kind`: `decision` for what the policy said of a call, `mutation` for what came of an allowed one. `tool`: the
    tool's public name. `outcome`: `allowed` or `refused` for a decision; `done`, `failed` or `unknown` for a mutation.
    `code`: the public error code, if any. `ids`: `process_id`, `operation_id`, `approval_id`, as far as they exist.
    `seconds`: how long the runner took over a mutation that is done, where that was measured. Who
    called is not here: the transport knows the peer and adds it.
    """

    kind: Literal["decision", "mutation"]
    tool: str
    workspace_id: str
    outcome: Literal["allowed", "refused", "done", "failed", "unknown"]
    code: str | None = None
    ids: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None


class Audit(Protocol):
    """Takes one line a decision and one a mutation (NETIF-3). Does not block and does not raise."""

    def record(self, record: AuditRecord) -> None: ...


class LinkListener(Protocol):
    """What the core is told of its runner, synchronously, in this order for one instance: up, exits, lost, all_dead."""

    def runner_up(self, instance_id: str) -> None: ...
    def process_exited(self, instance_id: str, event: ProcessExited) -> None: ...
    def runner_lost(self, instance_id: str) -> None:
        """No call reaches the instance any more. What it ran may still be alive."""
        ...

    def all_dead(self, instance_id: str) -> None:
        """Proved: nothing that the instance started is alive."""
        ...


class RunnerLink(Protocol):
    """A runner, started, watched and replaced. Nothing is resumed in a new instance."""

    @property
    def runner(self) -> Runner:
        """The runner that serves now. Raises `ToolError` RUNNER_UNAVAILABLE (retryable) while there is none."""
        ...

    @property
    def description(self) -> RunnerDescription | None:
        """What the present runner said of this machine, or None while there is none."""
        ...

    def subscribe(self, listener: LinkListener) -> None: ...
    async def start(self) -> None:
        """Returns once the first runner serves. Raises `StartFailed`."""
        ...

    async def close(self) -> None:
        """Ends the runner and everything it runs, bounded. Idempotent."""
        ...
