"""The records that an inotify descriptor gives, out of their bytes.

Sans-I/O. Source: inotify(7), linux/inotify.h; a test holds the numbers against the package's. Called by `watcher`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MODIFY = 0x2
ATTRIB = 0x4
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
UNMOUNT = 0x2000
Q_OVERFLOW = 0x4000
IGNORED = 0x8000
ISDIR = 0x40000000

WATCHED = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF
_KNOWN = WATCHED | UNMOUNT | Q_OVERFLOW | IGNORED | ISDIR

_HEADER = struct.Struct("iIII")
READ_BYTES = 16 * 1024
"""Some hundred records; at least one always fits (inotify(7): sizeof + NAME_MAX + 1)."""


@dataclass(frozen=True)
class Record:
    """`watch`: -1 for an overflow. `name`: of the entry in the watched directory; empty for the directory itself."""

    watch: int
    mask: int
    cookie: int
    name: str

    @property
    def is_directory(self) -> bool:
        return bool(self.mask & ISDIR)

    @property
    def is_known(self) -> bool:
        """Whether every bit is one that this code understands."""
        return not self.mask & ~_KNOWN and bool(self.mask & ~ISDIR)


def parse(data: bytes) -> Iterator[Record]:
    """The records of one read. Raises `ValueError` for bytes that no kernel gives."""
    at = 0
    while at < len(data):
        if at + _HEADER.size > len(data):
            raise ValueError("an inotify record is cut short")
        watch, mask, cookie, length = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if at + length > len(data):
            raise ValueError("an inotify record's name is cut short")
        yield Record(watch, mask, cookie, os.fsdecode(data[at : at + length].rstrip(b"\0")))
        at += length
