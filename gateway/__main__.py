"""The program `codespace`, and the place where the gateway's objects are joined.

Here alone the gateway meets adapters and the runner's own program; each is loaded by the command that needs it.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from gateway.cli.app import command_line
from gateway.cli.console import run

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from gateway.application import Application
    from gateway.ports import Audit, RunnerLink
    from gateway.registry import Guarded
    from gateway.settings import Settings
    from runner.log import Level


class Joined:
    """`gateway.cli.app.Parts`."""

    def guarded(self, settings: Settings) -> Guarded:
        """What no workspace may hold or show: the token, the sockets' and the data's places, homes."""
        from gateway.registry import Guarded
        from gateway.settings import home_directories

        private = [] if settings.token_file is None else [("the token", str(settings.token_file))]
        if settings.socket is not None or os.environ.get("XDG_RUNTIME_DIR"):
            private.append(("the MCP socket", str(settings.socket_path())))
        return Guarded(
            private=tuple(private),
            data_dir=str(settings.data_path()),
            homes=home_directories(),
            sandbox_off_allowed=not _in_image(),
        )

    def application(self, settings: Settings, audit: Audit, log: FilteringBoundLogger) -> Application:
        """Made, not started. Needs a running event loop."""
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
        )


def _link(settings: Settings, deaths: object, log: FilteringBoundLogger) -> RunnerLink:
    from gateway.liveness import LivenessDirectory

    assert isinstance(deaths, LivenessDirectory)
    if settings.runner == "uds":
        from gateway.worker_process import WorkerLink

        return WorkerLink(log, max_processes=settings.max_processes, deaths=deaths)

    from gateway.local_runner import LocalLink
    from runner.__main__ import build_service

    def runner_log(event: str, *, level: Level = "info", **fields: object) -> None:
        getattr(log, level)(event, component="runner", **fields)

    return LocalLink(
        lambda fd: build_service(max_processes=settings.max_processes, liveness_fd=fd, log=runner_log), deaths
    )


def _in_image() -> bool:
    """The image sets this for its entry point; there the sandbox cannot be switched off (BOX-4)."""
    return os.environ.get("CODESPACE_IMAGE", "") not in ("", "0")


def main() -> None:
    sys.exit(run(command_line(Joined()), sys.argv[1:]))


if __name__ == "__main__":
    main()
