"""The helper server: preloaded, single-threaded, makes one managed child per request.

It trusts its one socket, whose other end is the runner's, and nothing else; it holds no secret and an empty
environment. Each child is cloned with CLONE_PARENT, so that it is the runner's own child; the reply carries its pidfd.
When the socket ends, the runner is gone: the server kills the children that are left, and ends only after they have.
Refuses to know what becomes of a command. Called by the program.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from typing import Any

from sandbox_helper import child, plain, process_control, protocol, seccomp
from sandbox_helper import syscalls as sc
from sandbox_helper.child import Descriptors, Facts
from sandbox_helper.identity import IdMaps
from sandbox_helper.limits import core_off
from sandbox_helper.namespaces import (
    FLAGS,
    OLD_ROOT,
    clone_flags,
    current_ids,
    leave_the_host,
    write_map_of,
)
from sandbox_helper.protocol import Plan, ProtocolError, Run, encode, failure_value
from sandbox_helper.status import StageFailed, os_failure
from sandbox_helper.tree import Trees, tree_key

MAX_TREES = 8
MAX_PLANS = 256


class Server:
    """One helper. `mode`: `sandbox`, or `plain` for commands that the operator wants unconfined."""

    __slots__ = ("_children", "_facts", "_plans", "_socket", "_trees", "mode")

    def __init__(self, connection: socket.socket, mode: str, liveness_fd: int | None, fault: str | None) -> None:
        """Leaves the host's mount namespace, where the mode asks for it. Raises StageFailed, OSError."""
        self._socket = connection
        self.mode = mode
        self._plans: dict[str, tuple[Plan, str]] = {}
        self._children: list[int] = []
        self._trees: Trees | None = None
        privileged = os.geteuid() == 0
        if liveness_fd is not None:
            os.set_inheritable(liveness_fd, False)  # for first processes, which are forked; never for a command
        # Directories of the tree must be open to the command's id, whatever the runner was started with.
        os.umask(0o022)
        outside: dict[str, str] = {}
        if mode == "sandbox":
            outside = current_ids("/proc/self", tuple(FLAGS))
            leave_the_host(privileged)
            host_root = os.open(OLD_ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._trees = Trees(host_root, IdMaps(), MAX_TREES)
        self._facts = Facts(
            privileged=privileged,
            namespaces=outside,
            seccomp_program=seccomp.build_filter(os.uname().machine),
            last_capability=process_control.last_capability(),
            liveness_fd=liveness_fd,
            fault=fault,
        )

    def harden(self) -> None:
        """Last steps before serving. Raises OSError."""
        core_off()
        _default_signals()
        process_control.become_undumpable()
        gc.collect()
        gc.freeze()
        gc.disable()

    def hello(self) -> None:
        self._socket.send(encode({"hello": protocol.VERSION, "mode": self.mode}))

    def serve(self) -> None:
        """Until the other end closes. Raises OSError where the socket fails."""
        while True:
            message, ancillary, flags, _ = self._socket.recvmsg(
                protocol.MAX_MESSAGE_BYTES, socket.CMSG_SPACE(8 * 4), socket.MSG_CMSG_CLOEXEC
            )
            if not message:
                self._outlive_children()
                return
            given = _descriptors(ancillary)
            try:
                if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    raise ProtocolError("request", "is too long")
                reply, passed = self._answer(message, given)
            except ProtocolError as error:
                reply, passed = {"id": -1, "protocol_error": str(error)}, None
            finally:
                for fd in given:
                    os.close(fd)
            self._send(reply, passed)

    def _outlive_children(self) -> None:
        """The server's end of the liveness pipe closes last.

        A dying PID 1 closes its own before its namespace is killed; its pidfd is ready only afterwards (exit_notify).
        """
        # A plain child ends by itself, having killed its tree first; killed, it could not.
        for pidfd in self._children if self.mode == "sandbox" else ():
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass
        while self._children:
            self._forget_dead(None)

    def _forget_dead(self, timeout_ms: int | None) -> None:
        poll = select.poll()
        for pidfd in self._children:
            poll.register(pidfd, select.POLLIN)
        dead = {pidfd for pidfd, _ in poll.poll(timeout_ms)}
        for pidfd in dead:
            os.close(pidfd)
        self._children = [pidfd for pidfd in self._children if pidfd not in dead]

    def _send(self, reply: dict[str, Any], passed: int | None) -> None:
        try:
            if passed is None:
                self._socket.send(encode(reply))
            else:
                socket.send_fds(self._socket, [encode(reply)], [passed])
        finally:
            if passed is not None:
                os.close(passed)

    def _answer(self, message: bytes, given: list[int]) -> tuple[dict[str, Any], int | None]:
        operation, request_id, value, argv = protocol.split_request(message)
        if operation == "adopt":
            self._children.extend(os.dup(pidfd) for pidfd in given)
            return {"id": request_id, "adopted": len(given)}, None
        if operation == "plan":
            plan_id, plan = protocol.parse_laid_plan(value)
            if plan.mode != self.mode:
                raise ProtocolError("plan.mode", f"this helper serves {self.mode}")
            while len(self._plans) >= MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[plan_id] = plan, tree_key(plan)
            return {"id": request_id, "planned": plan_id}, None
        run = protocol.parse_run(value, argv)
        if run.waits and self.mode != "sandbox":
            raise ProtocolError("run.waits", "is for sandboxes")
        known = self._plans.get(run.plan_id)
        if known is None:
            return {"id": run.id, "unknown_plan": run.plan_id}, None
        return self._run(*known, run, given)

    def _run(self, plan: Plan, key: str, run: Run, given: list[int]) -> tuple[dict[str, Any], int | None]:
        if len(given) != (3 if run.tty else 6) + run.leaf:
            raise ProtocolError("run", f"{len(given)} descriptors came with it")
        leaf = given[-1] if run.leaf else -1
        report, status, control = given[-4:-1] if run.leaf else given[-3:]
        stdin, stdout, stderr = (None, None, None) if run.tty else given[:3]
        stage = "mounts"
        tree = -1
        late: list[tuple[int, str]] = []
        more: dict[str, Any] = {}
        try:
            if self._trees is not None:
                laid_out = self._trees.get(key, plan)
                tree, late = laid_out.open()
                if run.waits:
                    more = {"stands_on": laid_out.standing()}
            stage = "namespace"
            pid, pidfd = self._clone(
                plan, run, Descriptors(stdin, stdout, stderr, report, status, control, None, tree, tuple(late)), leaf
            )
        except OSError as error:
            return {"id": run.id, **failure_value(os_failure(stage, error))}, None
        finally:
            for fd in (tree, *(fd for fd, _ in late)):
                if fd >= 0:
                    os.close(fd)
        self._forget_dead(0)
        self._children.append(os.dup(pidfd))
        return {"id": run.id, "pid": pid, **more}, pidfd

    def _clone(self, plan: Plan, run: Run, given: Descriptors, leaf: int) -> tuple[int, int]:
        """(pid, pidfd) in the server. Raises OSError where no child was made."""
        maps_read = maps_write = -1
        if plan.mode == "sandbox" and self._facts.privileged:
            maps_read, maps_write = os.pipe2(os.O_CLOEXEC)
            given = given._replace(maps_done=maps_read)
        try:
            pid, pidfd = sc.clone3(clone_flags(plan.namespaces), leaf)
            if pid == 0:
                self._become_child(plan, run, given, maps_write)
            if maps_write >= 0:
                try:
                    write_map_of(pid, plan.uid, plan.gid)
                    os.write(maps_write, b"1")
                except OSError:
                    pass  # the child reads the end of the pipe, and says so as the stage `maps`
            return pid, pidfd
        finally:
            for fd in (maps_read, maps_write):
                if fd >= 0:
                    os.close(fd)

    def _become_child(self, plan: Plan, run: Run, given: Descriptors, maps_write: int) -> None:
        """Does not return, whatever happens: a second server must never come of it."""
        try:
            # So that the runner sees the server's death, and the child the server's failure.
            self._socket.close()
            if maps_write >= 0:
                os.close(maps_write)
            if plan.mode == "sandbox":
                child.run(self._facts, plan, run, given)
            else:
                plain.run(self._facts, plan, run, given)
        finally:
            os._exit(1)


def _default_signals() -> None:
    """Every child inherits them, and exec resets handlers only: what Python or the runner ignores would stay so."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) != signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sc.reset_library_signals()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.extend(int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data) - 3, 4))
    return found


def serve(fd: int, mode: str, liveness_fd: int | None, fault: str | None) -> int:
    """The program's `serve`: 0 once the socket closed, 1 where the helper could not be made (said on the socket)."""
    connection = socket.socket(fileno=fd)
    try:
        server = Server(connection, mode, liveness_fd, fault)
        server.harden()
    except (StageFailed, OSError) as error:
        failure = error.failure if isinstance(error, StageFailed) else os_failure("namespace", error)
        connection.send(encode(failure_value(failure)))
        return 1
    server.hello()
    server.serve()
    return 0
