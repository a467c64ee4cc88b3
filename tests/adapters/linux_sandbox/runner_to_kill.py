"""runner_to_kill.py ROOT SANDBOX LIVENESS_FD PYTHON: a runner with one command; says `up`, then waits to be killed."""

import asyncio
import sys

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from tests.adapters.linux_sandbox.support import read_until, start, terms


async def main() -> None:
    root, sandbox, liveness_fd, program = sys.argv[1:]
    launcher = LinuxSandboxLauncher(int(liveness_fd))
    process = await start(launcher, terms(root, sandbox=sandbox), ("/usr/bin/python3", "-c", program))
    await read_until(process, b"up\n")
    print("up", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
