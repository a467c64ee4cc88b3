"""Relative paths as callers write them: text in, components out.

Pure: it knows no disk and no root. Called by the file adapters before anything is opened. It decides syntax only;
whether a component is a link is decided at open time, by the kernel (`beneath`).
"""

from __future__ import annotations

import os

from runner.api import ErrorCode, RunnerError

MAX_PATH_BYTES = 4095
"""PATH_MAX less its NUL (linux/limits.h). Longer names cannot be handed to the kernel in one piece."""
MAX_COMPONENT_BYTES = 255
"""NAME_MAX (linux/limits.h)."""


def printable(text: str) -> str:
    """Text of a caller as a message may carry it: an unpaired surrogate becomes `?`."""
    return text.encode("utf-8", "replace").decode()


def displayed(name: str) -> str:
    """A name read from the disk as an answer carries it: bytes that are not UTF-8 become U+FFFD."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "replace")


def parse_path(path: str) -> tuple[str, ...]:
    """The components of a relative path; `.` components are dropped, so the root itself is an empty tuple.

    Raises `RunnerError`: PATH_ESCAPE for an absolute path, NUL, `..` or an empty component (also a trailing slash, and
    the empty path); INVALID_ARGUMENT for text that is not Unicode and for names longer than the kernel takes.
    """
    reason = escape_reason(path)
    if reason is not None:
        raise RunnerError(
            ErrorCode.PATH_ESCAPE,
            f"path {printable(path)[:400]!r} {reason}; give a path relative to the workspace root, such as src/main.py",
            details={"path": printable(path)[:4096]},
        )
    components = tuple(part for part in path.split("/") if part != ".")
    try:
        encoded = [part.encode() for part in components]
    except UnicodeEncodeError:
        raise _invalid(path, "is not valid Unicode (an unpaired surrogate); such a name cannot be addressed") from None
    if any(len(part) > MAX_COMPONENT_BYTES for part in encoded):
        raise _invalid(path, f"has a component of more than {MAX_COMPONENT_BYTES} bytes; no such file can exist")
    if sum(len(part) + 1 for part in encoded) - 1 > MAX_PATH_BYTES:
        raise _invalid(path, f"has more than {MAX_PATH_BYTES} bytes; shorten it")
    return components


def escape_reason(path: str) -> str | None:
    """Why this text leaves, or might leave, the root by its syntax alone; None if it does not."""
    parts = path.split("/")
    if "\0" in path:
        return "holds a NUL character"
    if path.startswith("/"):
        return "is absolute"
    if ".." in parts:
        return "holds a '..' component"
    if "" in parts:
        return "holds an empty component" if path else "is empty"
    return None


def _invalid(path: str, what: str) -> RunnerError:
    head = printable(path)[:200]
    return RunnerError(ErrorCode.INVALID_ARGUMENT, f"path {head!r} {what}", details={"path": head})
