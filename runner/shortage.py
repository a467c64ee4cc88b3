"""A machine that is short of something: which errors say so, and threads that are there before it is.

Refuses to know requests. Used by `runner.files`, `runner.worker`, `runner.processes.start` and the program itself.
"""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor

PASSING = frozenset({"EAGAIN", "EMFILE", "ENFILE", "ENOMEM"})
"""Errors of a machine that is short of processes, descriptors or memory: the same request may succeed later."""
_START_BOUND_S = 20.0
_NO_THREAD = "can't start new thread"
"""All that `threading` says of clone(2)'s errno: a RuntimeError with this text (CPython, thread_pthread.h)."""


def shortage_of(error: BaseException) -> str | None:
    """The errno's name if `error` says that the machine is short of something, else None."""
    if isinstance(error, MemoryError):
        return "ENOMEM"
    if isinstance(error, OSError):
        name = errno.errorcode.get(error.errno or 0)
        return name if name in PASSING else None
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return "EAGAIN"
    return None


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool all of whose threads run already, so that none is missing when processes or memory run out.

    Raises RuntimeError where they cannot all be started; no thread is left then.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    # A pool starts a thread for each job that finds none idle: here each waits for the last.
    gate = threading.Barrier(threads)
    try:
        for _ in range(threads):
            pool.submit(gate.wait, _START_BOUND_S)
    except RuntimeError:
        gate.abort()
        pool.shutdown(wait=False)
        raise
    return pool
