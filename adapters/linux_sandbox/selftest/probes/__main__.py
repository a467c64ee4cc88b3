"""Runs probes and prints one JSON object a line: `{"id", "kind", "state", "errno", "detail"}`.

Each probe runs in a forked child. `open`: what it tries works. `refused`: it was stopped, with the errno. `untried`: it
could not be tried, with the reason. With `--control`, outside and without a sandbox, every probe must come out `open`
(or `untried`): it then shows that it can succeed, against processes and files of its own. Standard library only.

    WORKSPACE BAIT [--control] [--only KIND|NAME]...      BAIT: a JSON object, or the path of a file that holds one
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence

from . import files, kernel, network, processes, resources
from .base import PROBES, Outcome, Place

__all__ = ["PROBES", "files", "kernel", "main", "network", "processes", "resources"]


def execute(name: str, place: Place) -> Outcome:
    """The outcome of one probe in a child of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                outcome = PROBES[name].attempt(place)
            except OSError as error:
                outcome = Outcome("untried", None, repr(error))
            os.write(write, json.dumps(outcome).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        text = answers.read()
    _, status = os.waitpid(child, 0)
    return Outcome(*json.loads(text)) if text else Outcome("untried", None, f"wait status {status}")


def held_descriptors() -> dict[str, str]:
    """Number to target of what is open beside 0, 1 and 2."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the descriptor that listed them
    return {number: target for number, target in found.items() if int(number) > 2}


def main(arguments: Sequence[str]) -> int:
    """0 once every probe has said its outcome, whatever that was."""
    held = held_descriptors()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    workspace, text, *options = arguments
    if not text.startswith("{"):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    only = {options[at + 1] for at, flag in enumerate(options) if flag == "--only"}
    place = Place(os.path.abspath(workspace), {**json.loads(text), "held": held}, "--control" in options)
    for name, probe in PROBES.items():
        if not only or only & {name, probe.kind}:
            outcome = execute(name, place)
            print(json.dumps({"id": name, "kind": probe.kind, **outcome._asdict()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
