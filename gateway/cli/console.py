"""Runs the command line: exit statuses and how errors are said.

0 success, 2 bad usage or configuration, 1 failure; errors on standard error as `error: what failed: on what: what to
do`. Refuses to know: any command. Called by `gateway.__main__`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from gateway.errors import OperatorError

USAGE = 2
FAILURE = 1


class Failed(OperatorError):
    """A command that ran and failed (status 1)."""


def say_error(text: str) -> None:
    print(f"error: {text}", file=sys.stderr, flush=True)


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Runs one command to its end and returns the exit status of the program. A command may return its own."""
    command = typer.main.get_command(app)
    try:
        status = command.main(args=list(arguments), prog_name="codespace", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except OperatorError as error:
        say_error(str(error))
        return error.exit_status
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "codespace"
        say_error(f"bad usage: {error.format_message().rstrip('.')}: see {path} --help")
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader of our output is gone; nothing is left to say, and flushing at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILURE
