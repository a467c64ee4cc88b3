"""Whether our outcome and upstream's are the same, differ by a product rule, or differ.

Every rule is a predicate over the case and both outcomes that says when a difference is meant; a difference that no
rule explains is a bug on our side or a change on theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from adapters.v4a.engine import plan
from adapters.v4a.errors import PatchError
from adapters.v4a.model import Patch, UpdateFile
from adapters.v4a.parser import parse
from tests.adapters.v4a.memory import MemoryView
from tests.parity.generator import Case
from tests.parity.upstream import Upstream

_FILE_CODES = {"FILE_NOT_FOUND", "PATH_NOT_DIRECTORY", "SPECIAL_FILE_REJECTED", "FILE_OPERATION_FAILED"}
_NOT_FOUND = ("lines_not_found", "context_not_found")
_BOM = b"\xef\xbb\xbf"
_NEVER_OVERWRITTEN = {"ADD_FILE_EXISTS", "MOVE_DESTINATION_EXISTS"}


@dataclass(frozen=True)
class Ours:
    """`kind`: as `Upstream.kind`, with our own codes where upstream has none."""

    kind: str
    line: int | None
    files: dict[str, bytes]
    warnings: tuple[dict[str, Any], ...]


def ours(case: Case) -> Ours:
    view = MemoryView(case.files)
    try:
        done = plan(case.patch, view)
    except PatchError as error:
        kind = error.details.get("reason") or ("file" if error.code in _FILE_CODES else error.code)
        return Ours(kind, error.details.get("line"), dict(case.files), ())
    return Ours("ok", None, view.after(done), done.warnings)


def explain(case: Case, mine: Ours, theirs: Upstream) -> str | None:
    """ "same", the names of the rules that explain the difference, or None."""
    if mine.kind == theirs.kind == "ok":
        return _explain_files(case, mine, theirs)
    if mine.kind == theirs.kind and mine.line == theirs.line:
        # All or nothing: upstream may have applied earlier sections, here the files are what they were.
        return "same" if mine.files == case.files else None
    return next((name for name, rule in _REFUSALS.items() if rule(case, mine, theirs)), None)


def _explain_files(case: Case, mine: Ours, theirs: Upstream) -> str | None:
    """Both applied: every file that differs must have a reason of its own."""
    names: set[str] = set()
    for path in mine.files.keys() | theirs.files.keys():
        one, other = mine.files.get(path), theirs.files.get(path)
        if one == other:
            continue
        updates = _history(case, path)
        before = [case.files.get(update.path, b"") for update in updates]
        name = next((name for name, rule in _FILES.items() if rule(updates, before, one, other)), None)
        if name is None:
            return None
        names.add(name)
    return " + ".join(sorted(names)) or "same"


def _history(case: Case, path: str) -> list[UpdateFile]:
    """The sections that made `path` what it is: those on its name, and on names that it was moved from."""
    names = {path}
    sections: list[UpdateFile] = []
    for update in reversed(_updates(case)):
        if update.move_to in names:
            names.add(update.path)
        if update.path in names or update.move_to in names:
            sections.append(update)
    return sections[::-1]


def _sections(case: Case) -> Patch:
    try:
        return parse(case.patch)
    except PatchError:
        return Patch()


def _updates(case: Case) -> list[UpdateFile]:
    return [section for section in _sections(case).sections if isinstance(section, UpdateFile)]


# --- one of them refused --------------------------------------------------------------------------------------------
def _never_overwritten(case: Case, mine: Ours, theirs: Upstream) -> bool:
    return mine.kind in _NEVER_OVERWRITTEN


def _stacked_headers(case: Case, mine: Ours, theirs: Upstream) -> bool:
    """Upstream's parser refuses a header right after another, bare ones too; here it goes on."""
    lines = [line.rstrip() for line in case.patch.split("\n")]
    return theirs.kind == "invalid_hunk" and any(one[:2] == two[:2] == "@@" for one, two in pairwise(lines))


def _moved_onto_itself(case: Case, mine: Ours, theirs: Upstream) -> bool:
    """Upstream deletes the file; sections after that meet another tree."""
    return any(update.move_to == update.path for update in _updates(case))


def _not_utf8(case: Case, mine: Ours, theirs: Upstream) -> bool:
    return theirs.kind == "file" and any(_undecodable(case.files.get(update.path, b"")) for update in _updates(case))


def _undecodable(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def _hidden_by_mark(case: Case, mine: Ours, theirs: Upstream) -> bool:
    """Upstream takes the mark as text of the first line, which then cannot be named."""
    marked = any(case.files.get(update.path, b"").startswith(_BOM) for update in _updates(case))
    return marked and theirs.kind in _NOT_FOUND


def _nfc(case: Case, mine: Ours, theirs: Upstream) -> bool:
    decomposed = any("\u0301" in case.files.get(u.path, b"").decode("utf-8", "replace") for u in _updates(case))
    return decomposed and theirs.kind in _NOT_FOUND


def _split_at_bare_cr(case: Case, mine: Ours, theirs: Upstream) -> bool:
    return any(_has_bare_cr(case.files.get(update.path, b"")) for update in _updates(case))


def _depends_on_the_place_of_an_addition(case: Case, mine: Ours, theirs: Upstream) -> bool:
    return len(_updates(case)) > 1 and _adds_under_header(_updates(case))


_REFUSALS: dict[str, Callable[[Case, Ours, Upstream], bool]] = {
    "never overwritten": _never_overwritten,
    "stacked headers": _stacked_headers,
    "move onto itself": _moved_onto_itself,
    "not UTF-8": _not_utf8,
    "byte-order mark": _hidden_by_mark,
    "nfc": _nfc,
    "bare CR": _split_at_bare_cr,
    "addition under its header": _depends_on_the_place_of_an_addition,
}


# --- both applied ---------------------------------------------------------------------------------------------------
def _lost_by_self_move(updates: list[UpdateFile], before: list[bytes], one: bytes | None, other: bytes | None) -> bool:
    return any(update.move_to == update.path for update in updates)


def _endings(updates: list[UpdateFile], before: list[bytes], one: bytes | None, other: bytes | None) -> bool:
    """The same texts in the same order, in a file that had CRLF or no newline at its end."""
    if one is None or other is None:
        return False
    reason = any(b"\r\n" in data or (data and not data.endswith(b"\n")) for data in before)
    return reason and _texts(one) == _texts(other)


def _marked(updates: list[UpdateFile], before: list[bytes], one: bytes | None, other: bytes | None) -> bool:
    """Text goes before the mark, or a place further down is taken, because the first line is another text."""
    return any(data.startswith(_BOM) for data in before)


def _bare_cr(updates: list[UpdateFile], before: list[bytes], one: bytes | None, other: bytes | None) -> bool:
    return any(_has_bare_cr(data) for data in before)


def _addition(updates: list[UpdateFile], before: list[bytes], one: bytes | None, other: bytes | None) -> bool:
    """The same lines, at another place; after a second section on the same file only that it had such a chunk."""
    if one is None or other is None or not _adds_under_header(updates):
        return False
    return len(updates) > 1 or Counter(_texts(one)) == Counter(_texts(other))


_FILES: dict[str, Callable[[list[UpdateFile], list[bytes], bytes | None, bytes | None], bool]] = {
    "endings": _endings,
    "addition under its header": _addition,
    "move onto itself": _lost_by_self_move,
    "byte-order mark": _marked,
    "bare CR": _bare_cr,
}


def _adds_under_header(updates: list[UpdateFile]) -> bool:
    chunks = [chunk for update in updates for chunk in update.chunks]
    return any(chunk.headers and not chunk.old() and not chunk.end_of_file for chunk in chunks)


def _has_bare_cr(data: bytes) -> bool:
    return b"\r" in data.replace(b"\r\n", b"")


def _texts(data: bytes) -> list[bytes]:
    return data.replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n")
