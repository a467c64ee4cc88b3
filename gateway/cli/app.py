"""The commands of `codespace`, their options and help. What they do is in the modules beside this one.

Imports little: `--help`, `call` and `connect` must start fast, so each command loads what it needs when it runs.
Refuses to know: how objects are joined; `Parts` gives them (implemented by `gateway.__main__`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from gateway.cli.options import Socket, socket_path
from gateway.cli.quick import quick_loading
from gateway.cli.steering_commands import add_steering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structlog.typing import FilteringBoundLogger

    from gateway.application import Application
    from gateway.cli.selftest import Tried
    from gateway.ports import Audit
    from gateway.registry import Guarded, Workspace
    from gateway.settings import Settings
    from runner.api import IsolationReport, WorkspaceTerms


class Parts(Protocol):
    """The joined objects that commands need, made on demand."""

    def application(self, settings: Settings, audit: Audit, log: FilteringBoundLogger) -> Application: ...
    def guarded(self, settings: Settings) -> Guarded: ...
    def isolation(self, terms: WorkspaceTerms | None) -> IsolationReport:
        """Probes with the real helper. Blocks."""
        ...

    def selftest(self) -> Sequence[Tried]:
        """Runs the attack probes in the real sandbox, and outside. Blocks."""
        ...

    def run_once(self, workspace: Workspace, argv: Sequence[str], *, tty: bool) -> int:
        """Runs one command in the sandbox on this terminal and returns its exit status. Blocks."""
        ...


Registry = Annotated[
    Path | None,
    typer.Option("--registry", metavar="FILE", help="The registry, JSON or TOML. [CODESPACE_REGISTRY]"),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Database and patch journal; default $XDG_STATE_HOME/codespace. [CODESPACE_DATA_DIR]",
    ),
]
Runner = Annotated[
    str | None,
    typer.Option(
        "--runner",
        metavar="uds|in-process",
        help="Run commands from a worker process (uds, default) or from this one. [CODESPACE_RUNNER]",
    ),
]


def command_line(parts: Parts) -> typer.Typer:
    """The program's commands over these parts."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
        help="Runs an agent's commands and patches in registered workspaces, inside a sandbox, over MCP.",
    )
    registry_app = typer.Typer(rich_markup_mode=None, help="Look at registry files.")

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
        ] = False,
    ) -> None:
        pass

    @app.command()
    def serve(
        registry: Registry = None,
        socket: Socket = None,
        http: Annotated[
            str | None,
            typer.Option(
                "--http",
                metavar="HOST:PORT",
                help="Listen on TCP too; beyond loopback only with a token. [CODESPACE_HTTP]",
            ),
        ] = None,
        token_file: Annotated[
            Path | None,
            typer.Option(
                "--token-file", metavar="FILE", help="The bearer token for TCP, mode 0600. [CODESPACE_TOKEN_FILE]"
            ),
        ] = None,
        data_dir: DataDir = None,
        runner: Runner = None,
    ) -> int:
        """Serve MCP at /mcp on a Unix socket, and on TCP if asked for.

        Runs until SIGTERM or SIGINT; SIGHUP reloads the registry.
        """
        with quick_loading():
            from gateway.cli.serve import serve as run

        return run(
            parts,
            registry=registry,
            socket=socket,
            http=http,
            token_file=token_file,
            data_dir=data_dir,
            runner=runner,
        )

    @app.command()
    def stdio(registry: Registry = None, data_dir: DataDir = None, runner: Runner = None) -> int:
        """Serve MCP on standard input and output.

        The end of input shuts it down, with everything that it runs.
        """
        with quick_loading():
            from gateway.cli.serve import stdio as run

        return run(parts, registry=registry, data_dir=data_dir, runner=runner)

    @app.command()
    def connect(socket: Socket = None) -> int:
        """Bridge standard input and output to an appliance.

        For MCP hosts that only start programs, e.g. docker exec -i NAME codespace connect.
        """
        from gateway.cli.connect import connect as run

        return run(socket_path(socket))

    @app.command()
    def call(
        tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name, e.g. workspace_info.")],
        arguments: Annotated[
            str, typer.Argument(metavar="[JSON]", help="Its arguments, an object; - reads them from standard input.")
        ] = "{}",
        socket: Socket = None,
    ) -> int:
        """Call one tool of a running appliance.

        Prints the structured result as JSON. A tool error is printed too and exits 1.
        """
        from gateway.cli.call import call as run

        return run(tool, arguments, socket_path(socket))

    @app.command("exec")
    def exec_(
        workspace: Annotated[str, typer.Argument(metavar="WORKSPACE", help="A workspace of the registry.")],
        argv: Annotated[list[str], typer.Argument(metavar="ARGV", help="The command and its arguments.")],
        registry: Registry = None,
        tty: Annotated[bool, typer.Option("--tty", help="Give the command a terminal.")] = False,
    ) -> int:
        """Run one command in a workspace's sandbox, without an appliance.

        Write -- before it: codespace exec demo -- ls -l. It has no time limit: ^C ends it. The exit status is the
        command's, 128+N where signal N ended it.
        """
        from gateway.cli.exec import exec_once

        return exec_once(parts, registry=registry, workspace_id=workspace, argv=argv, tty=tty)

    @app.command()
    def doctor(
        as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
        registry: Registry = None,
    ) -> int:
        """Tell which protections this machine or container can enforce.

        Each is active, degraded or off, with the error and a remedy. Exits 1 if a required one is missing.
        """
        from gateway.cli.doctor import doctor as run

        return run(parts, as_json=as_json, registry=registry)

    @app.command()
    def selftest(
        as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    ) -> int:
        """Run the attack probes inside the real sandbox.

        Each is tried outside as well, harmlessly, to show that it can succeed. Exits 1 if one is open, could not be
        tried, or does not succeed outside either.
        """
        from gateway.cli.selftest import selftest as run

        return run(parts, as_json=as_json)

    @app.command()
    def demo(
        small: Annotated[
            bool, typer.Option("--small", help="Work on a small made-up project, not on a copy of this repository.")
        ] = False,
    ) -> int:
        """Run the whole agent loop against a temporary workspace, and tell what happens."""
        from gateway.cli.demo import demo as run

        return run(small=small)

    @registry_app.command()
    def check(file: Annotated[Path, typer.Argument(metavar="FILE", help="The registry, JSON or TOML.")]) -> int:
        """Validate a registry and print the permissions that it gives."""
        from gateway.cli.registry_check import check as run

        return run(parts, file)

    app.add_typer(registry_app, name="registry")
    add_steering(app)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from gateway.version import version

        print(f"codespace {version()}")
        raise typer.Exit
