"""Paths as text: section 4 of the format's reference, the part that needs no disk."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from adapters.v4a.errors import PatchError
from adapters.v4a.text import shorten

MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255


def clean_path(path: str) -> str:
    """`path` without its `.` components; "" is the root.

    Raises `PatchError` with code `PATH_ESCAPE`, `INVALID_ARGUMENT` (not Unicode) or `FILE_OPERATION_FAILED` (a name
    that no file can have; limits.h: PATH_MAX, NAME_MAX).
    """
    parts = path.split("/")
    why = None
    if path.startswith("/"):
        why = "it is absolute"
    elif "\0" in path:
        why = "it holds a NUL"
    elif ".." in parts:
        why = "it has a `..` component"
    elif "" in parts:
        why = "it has an empty component"
    if why:
        raise PatchError(
            "PATH_ESCAPE",
            f"path `{shorten(path)}` is refused: {why}. Name the file relative to the root, as in `src/app.py`.",
            path=path[: MAX_PATH_BYTES + 1],
        )
    if any("\ud800" <= char <= "\udfff" for char in path):
        raise PatchError("INVALID_ARGUMENT", f"path `{shorten(path)}` is not Unicode. Name a file that is.")
    if len(path.encode()) > MAX_PATH_BYTES or max(len(part.encode()) for part in parts) > MAX_NAME_BYTES:
        raise PatchError(
            "FILE_OPERATION_FAILED",
            f"path `{shorten(path)}` is too long: {MAX_PATH_BYTES} bytes are allowed, {MAX_NAME_BYTES} a name.",
            path=path[: MAX_PATH_BYTES + 1],
        )
    return "/".join([part for part in parts if part != "."])


def parents(path: str) -> Iterator[str]:
    """The directories above `path` below the root, outermost first."""
    cut = path.find("/")
    while cut >= 0:
        yield path[:cut]
        cut = path.find("/", cut + 1)


def folded(path: str) -> str:
    """One text for all spellings that a file system may take for the same name: without case and composition (ext4 and
    APFS where so set up, vfat, NTFS), characters that some ignore (HFS+, ext4), and the trailing dots and spaces that
    vfat drops. For comparing with names that must not be reached; never the name of a file."""
    if not path.isascii():
        plain = unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
        path = "".join([char for char in plain if unicodedata.category(char) != "Cf"])
    return "/".join([part.rstrip(". ") or part for part in path.casefold().split("/")])
