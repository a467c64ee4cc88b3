"""A proxy for the one command of a program that is no runner: started and ended without an event loop.

The helper's own `run` program hands the command's sockets over by itself, so it gets the control socket and the message
that goes with them. Refuses to know plans. Called by the command line's `exec`, through the sandbox's adapter.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence

from adapters.egress_proxy import wire
from adapters.egress_proxy.client import END_GRACE_S, START_TIMEOUT_S, ProxyFailed, program
from runner.api import WorkspaceTerms


class HeldProxy:
    """`control_fd`: the runner's end of the proxy's socket. `message_fd`: the `serve` request, without descriptors.
    Both keep their numbers in what is started with them (`pass_fds`)."""

    def __init__(self, terms: WorkspaceTerms, listeners: Sequence[str]) -> None:
        """`listeners`: kinds, in the order of the sockets. Blocks until the proxy is ready. Raises ProxyFailed."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None
        # Lines in between would garble the terminal of the command.
        self._journal_fd = os.memfd_create("codespace-decisions")
        self.message_fd = -1
        allow, deny = terms.network_allow, terms.network_deny
        serve = wire.Serve(1, terms.workspace_id, "exec", allow, deny, tuple(listeners))
        try:
            with theirs:
                self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wire.MAX_MESSAGE_BYTES)
                self._control.settimeout(START_TIMEOUT_S)
                self.message_fd = _hold(wire.serve_message(serve))
                self._control.send(wire.config_message(wire.Config()))
                self._process = _spawn(theirs.fileno(), self._journal_fd)
            what, value = wire.decode(self._control.recv(wire.MAX_MESSAGE_BYTES))
            if what != "hello":
                raise ProxyFailed(f"the egress proxy did not start: {value}")
        except (OSError, wire.WireError) as error:
            self.close()
            raise ProxyFailed(f"the egress proxy did not start: {error}") from error
        except ProxyFailed:
            self.close()
            raise
        # ptyprocess keeps descriptors open, but leaves close-on-exec as it is.
        self._control.set_inheritable(True)
        # The flag of a time-out belongs to the socket itself; the other program waits for its answers.
        self._control.setblocking(True)

    @property
    def control_fd(self) -> int:
        return self._control.fileno()

    def kill(self) -> None:
        """The command loses its network, or does not start. `close` is still to be called."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Once the command is over. Ends the proxy, reaps it, and passes its decisions on to standard error.
        Idempotent."""
        self._control.close()
        if self.message_fd >= 0:
            os.close(self.message_fd)
            self.message_fd = -1
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(END_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        journal_fd, self._journal_fd = self._journal_fd, -1
        if journal_fd >= 0:
            os.lseek(journal_fd, 0, os.SEEK_SET)
            with os.fdopen(journal_fd, "rb") as journal:
                shutil.copyfileobj(journal, sys.stderr.buffer)
            sys.stderr.flush()


def _spawn(control_fd: int, stderr_fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*program(), str(control_fd), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr_fd,
        env={},
        cwd="/",
        start_new_session=True,
        pass_fds=(control_fd,),
    )


def _hold(data: bytes) -> int:
    fd = os.memfd_create("codespace-serve", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
