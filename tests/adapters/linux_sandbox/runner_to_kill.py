"""runner_to_kill.py ROOT SANDBOX LIVENESS_FD PYTHON: a runner with one command; says `up`, then waits to be killed.

With `prepared` for SANDBOX the command runs in a sandbox that waited for it, and another one waits beside it.
"""

import asyncio
import sys

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from tests.adapters.linux_sandbox.prepared import PreparedLauncher
from tests.adapters.linux_sandbox.support import read_until, start, terms


async def main() -> None:
    root, sandbox, liveness_fd, program = sys.argv[1:]
    prepared = sandbox == "prepared"
    launcher = (PreparedLauncher if prepared else LinuxSandboxLauncher)(int(liveness_fd))
    what = terms(root, sandbox="required" if prepared else sandbox)
    process = await start(launcher, what, ("/usr/bin/python3", "-c", program))
    await read_until(process, b"up\n")
    if isinstance(launcher, PreparedLauncher):
        await launcher.pool.settled()
        assert (launcher.used, launcher.pool.waiting) == (1, 1)
    print("up", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
