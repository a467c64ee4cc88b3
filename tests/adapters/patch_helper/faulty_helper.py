"""The patch helper with a fault: `faulty_helper.py PLAN ROOT JOURNAL_DIR PARENT_PID`.

PLAN is a file with a number for each start: the step at which this process kills itself, 0 for never, negative for a
step at which it fails by an error of its own. Each start takes one off. The product has no such switch; this is a
program of its own around the same code.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)))

    from adapters.patch_helper.program import serve
    from adapters.patch_helper.steps import Steps

    plan, root, journal_dir, parent_pid = sys.argv[1:]
    with open(plan, encoding="ascii") as file:
        numbers = file.read().split()
    with open(plan, "w", encoding="ascii") as file:
        file.write("\n".join(numbers[1:]))
    number = int(numbers[0]) if numbers else 0
    left = [abs(number)]

    def kill(_: str) -> None:
        left[0] -= 1
        if left[0] == 0 and number < 0:
            raise RuntimeError("a fault of our own")
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return serve(root, journal_dir, int(parent_pid), Steps(kill))


if __name__ == "__main__":
    raise SystemExit(main())
