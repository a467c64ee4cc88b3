"""One regular file, from an open descriptor to an answer: version, size and content of the same bytes.

It knows no root and no path resolution: `openat_filesystem` opens, this reads. Memory is flat in the file's size.
"""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass

from adapters.filesystem.window import LineWindow, cut
from runner.api import READ_LIMIT_BYTES, VERSION_LIMIT_BYTES, ErrorCode, FileContent, ReadFile, RunnerError

_CHUNK_BYTES = 256 * 1024
_ATTEMPTS = 3
"""How often a file that changes under a read is read again. Then the answer is what the last pass saw: its version is
the hash of exactly those bytes, so a patch that names it cannot pass unless the disk still holds them."""
_RETRY_BYTES = 64 * 1024 * 1024
"""Larger files are read once: a second pass costs more than it is likely to mend."""


@dataclass(frozen=True)
class _Pass:
    """One pass over a file. `steady`: nothing about the file changed meanwhile. `size`: bytes of the whole file."""

    kept: bytes
    version: str | None
    size: int
    steady: bool


def read_content(fd: int, request: ReadFile, path: str) -> FileContent:
    """Answers a read from the descriptor of a regular file. `path`: as answers carry it.

    The version covers the whole file, whatever range is asked for, up to VERSION_LIMIT_BYTES; larger files are read
    only within their first VERSION_LIMIT_BYTES. Raises `RunnerError` FILE_OPERATION_FAILED for lines beyond that, and
    `OSError` from read(2).
    """
    by_lines = request.offset is not None or request.limit is not None
    first = request.offset or 1
    seen = _read_pass(fd, first, request.limit)
    for _ in range(_ATTEMPTS - 1):
        if seen.steady or seen.size > _RETRY_BYTES:
            break
        seen = _read_pass(fd, first, request.limit)
    shown = cut(seen.kept, READ_LIMIT_BYTES, whole_lines=True)
    try:
        content, is_text = shown.data.decode(), True
    except UnicodeDecodeError:
        if not by_lines:  # nobody goes on by lines in such a file: give all the bytes that fit
            shown = cut(seen.kept, READ_LIMIT_BYTES, whole_lines=False)
        content, is_text = base64.b64encode(shown.data).decode(), False
    numbered = bool(shown.data) and (by_lines or (is_text and shown.truncated))
    return FileContent(
        path=path,
        content=content,
        encoding="utf-8" if is_text else "base64",
        version=seen.version,
        size=seen.size,
        start_line=first if numbered else None,
        end_line=first + shown.lines - 1 if numbered else None,
        truncated=shown.truncated,
    )


def _read_pass(fd: int, first_line: int, line_count: int | None) -> _Pass:
    before = os.fstat(fd)
    window = LineWindow(first_line, line_count, READ_LIMIT_BYTES)
    versioned = before.st_size <= VERSION_LIMIT_BYTES
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    # Never beyond the size seen first: a file that grows as fast as it is read would not end.
    bound = min(before.st_size, VERSION_LIMIT_BYTES)
    offset = 0
    while offset < bound and (versioned or not window.satisfied):
        got = os.preadv(fd, [buffer[: min(_CHUNK_BYTES, bound - offset)]], offset)
        if got == 0:
            break
        if versioned:
            digest.update(buffer[:got])
        window.feed(buffer[:got])
        offset += got
    if not versioned and not window.satisfied:
        raise RunnerError(
            ErrorCode.FILE_OPERATION_FAILED,
            f"the lines asked for lie beyond the first {VERSION_LIMIT_BYTES} bytes of the file; "
            "read them with a command instead",
            details={"size": before.st_size, "limit_bytes": VERSION_LIMIT_BYTES},
        )
    after = os.fstat(fd)
    return _Pass(
        kept=bytes(window.kept),
        version=f"sha256:{digest.hexdigest()}" if versioned else None,
        size=offset if versioned else before.st_size,
        steady=_identity(before) == _identity(after) and (not versioned or offset == before.st_size),
    )


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
