"""The worker with the fake launcher, as a program: `python -m tests.fakes.worker_program` with the worker's options.

For tests of the socket and of faults, which need a real process but no sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from adapters.filesystem.openat_filesystem import OpenatFileSystem
from runner.__main__ import container
from runner.log import JsonLines
from runner.service import RunnerService
from runner.worker import serve
from runner.workspace import Environment
from tests.fakes.launcher import FakeLauncher


async def run(socket_path: str, max_processes: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    log = JsonLines()
    service = RunnerService(
        environments={
            "host": Environment(filesystem=OpenatFileSystem(), launcher=FakeLauncher()),
            "linux-container": container(),
        },
        watch=None,
        max_processes=max_processes,
        log=log,
    )
    await service.start()
    await serve(service, socket_path=socket_path, runner_instance_id=service.runner_instance_id, stop=stop, log=log)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--liveness-fd", type=int)
    parser.add_argument("--max-processes", type=int, required=True)
    options = parser.parse_args()
    asyncio.run(run(options.socket, options.max_processes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
