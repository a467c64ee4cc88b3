"""The sandbox helper's program: `serve --fd N` for the runner, `run --plan N` for one command from a terminal.

Started with an empty environment and without site packages; `--library` names the directory that holds python-prctl.
Refuses to be a library. Started by `adapters.linux_sandbox`.
"""

import os
import sys

USAGE = (
    "usage: sandbox_helper serve --fd N [--mode sandbox|plain] [--liveness-fd N] [--library DIR] [--fault STAGE]\n"
    "       sandbox_helper run --plan N [--library DIR] [--bridge N --hand-over N]\n"
)


def main(arguments: list[str]) -> int:
    """The exit status: 2 for bad usage, otherwise the part's own."""
    verb, options = (arguments or [""])[0], {}
    for name, value in zip(arguments[1::2], arguments[2::2], strict=False):
        options[name] = value
    known = {
        "serve": {"--fd", "--mode", "--liveness-fd", "--library", "--fault"},
        "run": {"--plan", "--library", "--bridge", "--hand-over"},
    }
    needed = {"serve": "--fd", "run": "--plan"}
    if len(arguments) % 2 == 0 or options.keys() - known.get(verb, set()) or needed.get(verb, "") not in options:
        sys.stderr.write(USAGE)
        return 2
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if "--library" in options:
        sys.path.append(options["--library"])
    os.chdir("/")
    if verb == "serve":
        from sandbox_helper.server import serve

        liveness = int(options["--liveness-fd"]) if "--liveness-fd" in options else None
        return serve(int(options["--fd"]), options.get("--mode", "sandbox"), liveness, options.get("--fault"))
    from sandbox_helper.run_once import run

    fds = [int(options[name]) for name in ("--bridge", "--hand-over") if name in options]
    return run(int(options["--plan"]), (fds[0], fds[1]) if len(fds) == 2 else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
