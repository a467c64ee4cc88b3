"""The program `codespace`, and the place where the gateway's objects are joined.

Here alone the gateway meets adapters and the runner's own program; each is loaded by the command that needs it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gateway.cli.app import command_line
from gateway.cli.console import run
from gateway.image import check_container, in_image

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structlog.typing import FilteringBoundLogger

    from adapters.linux_sandbox.run_once import OneCommand
    from gateway.application import Application
    from gateway.cli.selftest import Tried
    from gateway.cli.terminal import Ended
    from gateway.liveness import LivenessDirectory
    from gateway.ports import Audit, RunnerLink
    from gateway.registry import Guarded, Workspace
    from gateway.settings import Settings
    from runner.api import IsolationReport, WorkspaceTerms
    from runner.log import Level


class Joined:
    """`gateway.cli.app.Parts`."""

    def guarded(self, settings: Settings) -> Guarded:
        """What no workspace may hold or show: the token, the socket, the data, homes, this program itself."""
        return replace(settings.guarded(), in_image=in_image())

    def application(self, settings: Settings, audit: Audit, log: FilteringBoundLogger) -> Application:
        """Made, not started. Needs a running event loop. Raises `ConfigurationError` for uid 0 in the image."""
        check_container()
        from gateway.application import Application
        from gateway.liveness import LivenessDirectory
        from gateway.registry import load_registry
        from gateway.version import version

        data_dir = settings.data_path()
        deaths = LivenessDirectory(data_dir / "liveness")
        return Application(
            version=version(),
            load_registry=partial(load_registry, settings.require_registry(), self.guarded(settings)),
            data_dir=data_dir,
            deaths=deaths,
            link=_link(settings, deaths, log),
            audit=audit,
            log=log,
            max_processes=settings.max_processes,
            sandbox_needed=in_image(),
        )

    def isolation(self, terms: WorkspaceTerms | None) -> IsolationReport:
        """What the real helper found, with a launcher of its own. `ConfigurationError` for uid 0 in the image."""
        check_container()
        import asyncio

        from adapters.egress_proxy.client import EgressProxy
        from adapters.linux_sandbox.once import probe

        async def probed() -> IsolationReport:
            return await probe(terms, EgressProxy())

        return asyncio.run(probed())

    def selftest(self) -> Sequence[Tried]:
        """Raises `OperatorError` where no sandbox can be made, or the bait has no place."""
        check_container()
        import asyncio

        from adapters.linux_sandbox.selftest.run import selftest
        from gateway.cli.console import Failed
        from runner.api import RunnerError

        try:
            return asyncio.run(selftest())
        except RunnerError as error:
            raise Failed(error.code.value, "selftest", error.details.get("remedy") or error.message) from None
        except OSError as error:
            on = os.fsdecode(error.filename) if error.filename else "the probes' bait"
            raise Failed(f"cannot be laid out ({error.strerror})", on, "give the temporary directory room") from None

    def run_once(self, workspace: Workspace, argv: Sequence[str], *, tty: bool) -> int:
        """Raises `OperatorError` where the command was not started."""
        check_container()
        import asyncio

        from adapters.egress_proxy.client import EgressProxy
        from adapters.egress_proxy.held import HeldProxy
        from adapters.linux_sandbox import run_once
        from adapters.linux_sandbox.once import prepare_one, with_proxy
        from gateway.cli import terminal
        from gateway.cli.console import Failed
        from runner.api import RunnerError, check_argv

        size = _terminal_size() if tty else None

        async def prepared() -> OneCommand:
            return await prepare_one(workspace.terms(), argv, size, EgressProxy())

        try:
            check_argv(tuple(argv))
            command = with_proxy(asyncio.run(prepared()), HeldProxy)
        except RunnerError as error:
            known = [error.details.get(name) for name in ("feature", "stage", "errno")]
            where = ", ".join(str(part) for part in known if part)
            what = f"{error.code.value} ({where})" if where else error.code.value
            raise Failed(what, workspace.workspace_id, error.details.get("remedy") or error.message) from None
        try:
            if size is None:
                ended = terminal.run_on_pipes(command.argv, command.pass_fds, run_once.SET_UP_FAILED)
            else:
                ended = terminal.run_on_terminal(command.argv, command.pass_fds, size, run_once.SET_UP_FAILED)
        finally:
            command.close()
        if ended.status == run_once.SET_UP_FAILED:
            _explain_set_up(ended, argv[0])
        return ended.status


def _explain_set_up(ended: Ended, program: str) -> None:
    """Raises `Failed` where the helper said that nothing was started; a command may end with the same status."""
    import json

    from gateway.cli.console import Failed

    try:
        failed = json.loads(ended.last_words.decode())["failed"]
        what = f"PROCESS_SPAWN_FAILED ({failed['stage']}, {failed['errno']})"
        on, remedy = failed["path"] or program, failed["message"]
    except (ValueError, KeyError, TypeError):
        sys.stderr.buffer.write(ended.last_words)
        return
    raise Failed(what, on, remedy)


def _terminal_size() -> tuple[int, int]:
    """Rows and columns of ours, or 24 x 80 where there is none."""
    try:
        columns, rows = os.get_terminal_size(0)
    except OSError:
        return 24, 80
    return (rows, columns) if rows and columns else (24, 80)


def _link(settings: Settings, deaths: LivenessDirectory, log: FilteringBoundLogger) -> RunnerLink:
    if settings.runner == "uds":
        from gateway.worker_process import WorkerLink
        from gateway.worker_start import WorkerCommand

        command = WorkerCommand((*WorkerCommand.argv, "--prepared-sandboxes", str(settings.prepared_sandboxes)))
        return WorkerLink(log, max_processes=settings.max_processes, deaths=deaths, command=command)

    from gateway.local_runner import LocalLink
    from runner.__main__ import build_service

    def runner_log(event: str, *, level: Level = "info", **fields: object) -> None:
        getattr(log, level)(event, component="runner", **fields)

    return LocalLink(
        lambda fd: build_service(
            max_processes=settings.max_processes,
            liveness_fd=fd,
            log=runner_log,
            prepared_sandboxes=settings.prepared_sandboxes,
        ),
        deaths,
    )


def main() -> None:
    sys.exit(run(command_line(Joined()), sys.argv[1:]))


if __name__ == "__main__":
    main()
