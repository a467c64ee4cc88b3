"""Runs a test's body as an ordinary user, in a child of its own. For tests that start as root; called by tests."""

from __future__ import annotations

import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable
from typing import TypeVar

ORDINARY_UID = 12345
T = TypeVar("T")


class FailedAsUser(AssertionError):
    """The body raised; the message is its traceback."""


def run_as(uid: int, body: Callable[[], T], *, timeout_s: float = 15) -> T:
    """What `body()` returns when run as `uid`, with the same group id, no other group and no capability.

    Not root: runs as the present user, since there is nothing to give up. The result must be picklable. The child never
    comes back into the caller's code. Raises FailedAsUser for any exception of the body, a lost child, or a body that
    takes longer than `timeout_s` (the child is killed).
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _run_in_child(uid, body, write_end)
    os.close(write_end)
    answer = bytearray()
    try:
        poll = select.poll()
        poll.register(read_end, select.POLLIN)
        while poll.poll(timeout_s * 1000):
            if not (chunk := os.read(read_end, 1 << 20)):
                break
            answer += chunk
        else:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(read_end)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise FailedAsUser(f"the child for uid {uid} ended with {status} within {timeout_s} s")
    done, value = pickle.loads(bytes(answer))
    if not done:
        raise FailedAsUser(value)
    return value  # type: ignore[no-any-return]


def _run_in_child(uid: int, body: Callable[[], T], write_end: int) -> None:
    status = 1
    try:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                os.environ["HOME"] = "/nonexistent"
            answer: tuple[bool, object] = (True, body())
            payload = pickle.dumps(answer)
        except BaseException:  # noqa: BLE001 - the child reports everything, pytest's own outcomes included
            payload = pickle.dumps((False, traceback.format_exc()))
        view = memoryview(payload)
        while view:
            view = view[os.write(write_end, view) :]
        status = 0
    finally:
        os._exit(status)
