"""The commands that follow and steer a running appliance: `holds`, `work`, `ps`, `logs`, with their options and help.

What they do is in `gateway.cli.steering` and `gateway.cli.processes`, loaded when one runs. Called by
`gateway.cli.app`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.options import Socket, socket_path

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Workspace = Annotated[str | None, typer.Option("--workspace", metavar="ID", help="Only those of this workspace.")]
HoldId = Annotated[str, typer.Argument(metavar="APPROVAL_ID", help="As holds list shows it.")]
WorkId = Annotated[str, typer.Argument(metavar="WORK_ID", help="As work list shows it.")]
IntentId = Annotated[str, typer.Argument(metavar="INTENT_ID", help="As work show shows it.")]


def add_steering(app: typer.Typer) -> None:
    holds = typer.Typer(rich_markup_mode=None, help="Look at held calls, grant or deny them.")
    work = typer.Typer(rich_markup_mode=None, help="Follow an agent's works and write instructions.")
    _add_holds(holds)
    _add_work(work)
    app.add_typer(holds, name="holds")
    app.add_typer(work, name="work")

    @app.command()
    def ps(workspace: Workspace = None, as_json: AsJson = False, socket: Socket = None) -> int:
        """List the commands that run, or ended a short while ago."""
        from gateway.cli.processes import ps as run

        return run(socket_path(socket), workspace, as_json=as_json)

    @app.command()
    def logs(
        process_id: Annotated[str, typer.Argument(metavar="PROCESS_ID", help="As ps shows it.")],
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the command has ended.")] = False,
        socket: Socket = None,
    ) -> int:
        """Print what is retained of a command's output.

        On a terminal its control characters are shown and not carried out; elsewhere the bytes are exact.
        """
        from gateway.cli.processes import logs as run

        return run(socket_path(socket), process_id, follow=follow)


def _add_holds(holds: typer.Typer) -> None:
    @holds.command("list")
    def list_(
        workspace: Workspace = None,
        every: Annotated[bool, typer.Option("--all", help="Denied and consumed ones too.")] = False,
        as_json: AsJson = False,
        socket: Socket = None,
    ) -> int:
        """List holds, newest first."""
        from gateway.cli.steering import list_holds as run

        return run(socket_path(socket), workspace, every=every, as_json=as_json)

    @holds.command()
    def show(hold: HoldId, as_json: AsJson = False, socket: Socket = None) -> int:
        """Show one hold with the patch or the command that it is for."""
        from gateway.cli.steering import show_hold as run

        return run(socket_path(socket), hold, as_json=as_json)

    @holds.command()
    def grant(hold: HoldId, socket: Socket = None) -> int:
        """Let the call through, once; it runs when the agent resumes it."""
        from gateway.cli.steering import resolve as run

        return run(socket_path(socket), hold, "grant")

    @holds.command()
    def deny(hold: HoldId, socket: Socket = None) -> int:
        """Never let the call through."""
        from gateway.cli.steering import resolve as run

        return run(socket_path(socket), hold, "deny")


def _add_work(work: typer.Typer) -> None:
    @work.command("list")
    def list_(
        workspace: Workspace = None,
        every: Annotated[bool, typer.Option("--all", help="Closed and cancelled ones too.")] = False,
        as_json: AsJson = False,
        socket: Socket = None,
    ) -> int:
        """List works, newest first."""
        from gateway.cli.steering import list_works as run

        return run(socket_path(socket), workspace, every=every, as_json=as_json)

    @work.command()
    def show(work_id: WorkId, as_json: AsJson = False, socket: Socket = None) -> int:
        """Show a work's instructions in order."""
        from gateway.cli.steering import show_work as run

        return run(socket_path(socket), work_id, as_json=as_json)

    @work.command()
    def add(
        work_id: WorkId,
        text: Annotated[str, typer.Argument(metavar="TEXT", help="What is to be done; - reads standard input.")],
        delivery: Annotated[
            str, typer.Option("--delivery", help="next_checkpoint, after_current_work or next_work.")
        ] = "after_current_work",
        note: Annotated[bool, typer.Option("--note", help="A note, no task.")] = False,
        draft: Annotated[bool, typer.Option("--draft", help="Do not give it to the agent yet.")] = False,
        socket: Socket = None,
    ) -> int:
        """Write an instruction and queue it."""
        from gateway.cli.steering import add_intent as run

        return run(socket_path(socket), work_id, text, delivery=delivery, note=note, draft=draft)

    @work.command()
    def queue(intent: IntentId, socket: Socket = None) -> int:
        """Give a draft to the agent."""
        from gateway.cli.steering import queue_intent as run

        return run(socket_path(socket), intent)

    @work.command()
    def cancel(intent: IntentId, socket: Socket = None) -> int:
        """Take back an instruction that is not claimed."""
        from gateway.cli.steering import cancel_intent as run

        return run(socket_path(socket), intent)

    @work.command()
    def stop(
        work_id: WorkId,
        reason: Annotated[str | None, typer.Option("--reason", help="What the agent is told.")] = None,
        socket: Socket = None,
    ) -> int:
        """End every command of the work's workspace and tell the agent."""
        from gateway.cli.steering import stop as run

        return run(socket_path(socket), work_id, reason)
