"""The worker program, and the one place where a runner's adapters are joined.

    python -m runner --socket PATH --liveness-fd N --max-processes M [--prepared-sandboxes K]

The gateway starts it with a clean environment and stdin on /dev/null, listens on PATH and holds the read end of the
liveness pipe, whose write end N passes to everything that must be dead before a lease may go. It lives as long as its
connection: the loss of it, SIGTERM or the death of the gateway ends every command, then the worker.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import signal
import sys

from adapters.container.backend import ContainerBackend
from adapters.egress_proxy.client import EgressProxy
from adapters.filesystem.openat_filesystem import OpenatFileSystem
from adapters.inotify_watch.backend import InotifyWatchBackend
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from adapters.patch_helper.engine import PatchHelperEngine
from adapters.ripgrep.search import RipgrepSearch
from runner.api import DEFAULT_PREPARED_SANDBOXES
from runner.log import JsonLines, Log
from runner.service import RunnerService
from runner.shortage import started_pool
from runner.worker import serve
from runner.workspace import Environment

EXIT_BOUND_S = 8
"""From the end of the connection to the end of the process, whatever hangs: then the kernel ends it, and its death
ends the commands."""
DEFAULT_THREADS = 8
"""For what adapters do in threads besides files and searches: short looks at the machine, watches being made."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def build_service(
    *,
    max_processes: int,
    liveness_fd: int | None,
    log: Log,
    prepared_sandboxes: int = DEFAULT_PREPARED_SANDBOXES,
) -> RunnerService:
    """The runner of this machine. `liveness_fd`: see above; None where nobody watches. `prepared_sandboxes`: how many
    may wait for a command, 0 for none.

    Used here and by the gateway's `--runner in-process`. Needs a running event loop.
    """
    proxy = EgressProxy()
    return RunnerService(
        environments={
            "host": Environment(
                filesystem=OpenatFileSystem(),
                search=RipgrepSearch(),
                patch_engine=PatchHelperEngine(liveness_fd=liveness_fd),
                launcher=LinuxSandboxLauncher(liveness_fd, proxy=proxy, prepared=prepared_sandboxes),
            ),
            "linux-container": container(),
        },
        watch=InotifyWatchBackend(),
        max_processes=max_processes,
        log=log,
        network_decisions=proxy.decisions,
    )


def container() -> Environment:
    """The environment whose backend is absent: it answers every request with that."""
    backend = ContainerBackend()
    return Environment(
        filesystem=backend.filesystem,
        search=backend.search,
        patch_engine=backend.patch_engine,
        launcher=backend.launcher,
        support=backend.support,
    )


async def run(
    *, socket_path: str, liveness_fd: int | None, max_processes: int, prepared_sandboxes: int, log: Log
) -> None:
    """The worker's whole life."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(started_pool(DEFAULT_THREADS, "runner"))
    if sys.version_info < (3, 12):
        # The default there takes a thread for each child, and forgets a child whose thread cannot be started.
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    service = build_service(
        max_processes=max_processes, liveness_fd=liveness_fd, log=log, prepared_sandboxes=prepared_sandboxes
    )
    await service.start()
    # What was loaded stays: collections look at what is made from now on.
    gc.freeze()
    await serve(
        service,
        socket_path=socket_path,
        runner_instance_id=service.runner_instance_id,
        stop=stop,
        log=log,
        on_ending=_set_alarm,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="runner", description="Started by the gateway; not for use by hand.")
    parser.add_argument("--socket", required=True, help="the gateway's private socket")
    parser.add_argument("--liveness-fd", type=int, default=None, help="write end of the liveness pipe")
    parser.add_argument("--max-processes", type=int, required=True, help="how many commands may run at once")
    parser.add_argument(
        "--prepared-sandboxes",
        type=int,
        default=DEFAULT_PREPARED_SANDBOXES,
        help="how many sandboxes may wait for a command",
    )
    options = parser.parse_args(argv)
    log = JsonLines()
    _die_with_parent()
    if options.liveness_fd is not None:
        # Passed on by name to those who need it; nothing else that is started here may hold it open.
        os.set_inheritable(options.liveness_fd, False)
    try:
        # asyncio's own loop: with uvloop neither output nor round trips were faster (docs/decisions/worker-loop.md).
        asyncio.run(
            run(
                socket_path=options.socket,
                liveness_fd=options.liveness_fd,
                max_processes=options.max_processes,
                prepared_sandboxes=options.prepared_sandboxes,
                log=log,
            )
        )
    except (OSError, RuntimeError) as error:
        log("worker_failed", level="error", error=repr(error), socket=options.socket)
        return 1
    return 0


def _die_with_parent() -> None:
    """The second line behind the connection: SIGKILL, since a stopped worker would not act on anything else."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")


def _set_alarm() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(EXIT_BOUND_S)


if __name__ == "__main__":
    sys.exit(main())
