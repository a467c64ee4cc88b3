"""Every single operation of a commit that changes the disk, each with a name that a test can stop at.

Commit, roll back, recovery and journal do nothing to the disk but through these, so a crash test that stops before and
after each of them has stopped everywhere. `fault` is a constructor argument and does nothing in the product.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from adapters.patch_helper import syscalls


def no_fault(step: str) -> None:
    """What the product passes."""


class Steps:
    """Raises `OSError` as the calls do. `fault` is told of each step before and after it."""

    def __init__(self, fault: Callable[[str], None] = no_fault) -> None:
        self._fault = fault

    def fsync(self, descriptor: int, what: str) -> None:
        self._fault(f"before fsync {what}")
        os.fsync(descriptor)
        self._fault(f"after fsync {what}")

    def flush(self, descriptor: int, what: str) -> None:
        """Of the data of a file that keeps its length: fdatasync(2)."""
        self._fault(f"before flush {what}")
        os.fdatasync(descriptor)
        self._fault(f"after flush {what}")

    def create(self, directory: int, name: str, mode: int) -> int:
        """A new file, opened for reading and writing. EEXIST if the name is taken, by a link too."""
        self._fault(f"before create {name}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, mode, dir_fd=directory)
        try:
            self._fault(f"after create {name}")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def write(self, descriptor: int, data: bytes, what: str) -> None:
        self._fault(f"before write {what}")
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        self._fault(f"after write {what}")

    def write_at(self, descriptor: int, data: bytes, offset: int, what: str) -> None:
        self._fault(f"before write {what}")
        view = memoryview(data)
        while view:
            count = os.pwrite(descriptor, view, offset)
            view, offset = view[count:], offset + count
        self._fault(f"after write {what}")

    def exchange(self, old_fd: int, old: str, new_fd: int, new: str) -> None:
        self._fault(f"before exchange {new}")
        syscalls.rename_exchange(old_fd, old, new_fd, new)
        self._fault(f"after exchange {new}")

    def move(self, old_fd: int, old: str, new_fd: int, new: str) -> None:
        """Renames; EEXIST where `new` is there already."""
        self._fault(f"before move {new}")
        syscalls.rename_noreplace(old_fd, old, new_fd, new)
        self._fault(f"after move {new}")

    def unlink(self, directory: int, name: str) -> None:
        self._fault(f"before unlink {name}")
        os.unlink(name, dir_fd=directory)
        self._fault(f"after unlink {name}")

    def mkdir(self, directory: int, name: str, mode: int) -> None:
        self._fault(f"before mkdir {name}")
        os.mkdir(name, mode, dir_fd=directory)
        self._fault(f"after mkdir {name}")

    def rmdir(self, directory: int, name: str) -> None:
        self._fault(f"before rmdir {name}")
        os.rmdir(name, dir_fd=directory)
        self._fault(f"after rmdir {name}")
