"""From the lines of a patch to its sections: a state machine. Section 3 of the format's reference.

    state    line                                                     next state
    START    environment id (once, before any section)                START
    START, ADD, DELETE   a file header, trimmed on both sides         ADD | DELETE | UPDATE
    START, ADD, DELETE   End Patch, trimmed on both sides             ENDED
    ADD      + and anything                                           ADD
    UPDATE   a file header or End Patch, trimmed on the right         closes the section, then as above
    UPDATE   Move to, @@, End of File, context, old and new lines     UPDATE
    ENDED    blank                                                    ENDED

Everything else is refused with its line number. Pure: text in, `Patch` or `InvalidPatch` out; knows no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from types import MappingProxyType

from adapters.v4a.budget import Limits
from adapters.v4a.envelope import END, invalid_envelope, open_envelope
from adapters.v4a.errors import InvalidPatch
from adapters.v4a.model import AddFile, Chunk, DeleteFile, Patch, UpdateFile
from adapters.v4a.text import shorten, trim, trim_end

ADD = "*** Add File: "
DELETE = "*** Delete File: "
UPDATE = "*** Update File: "
MOVE = "*** Move to: "
ENVIRONMENT = "*** Environment ID:"
END_OF_FILE = "*** End of File"
DIFF_PREFIXES = ("--- ", "+++ ", "diff ")
_LINE_KINDS = frozenset(" -+")


def parse(text: str, limits: Limits | None = None) -> Patch:
    """The sections of `text`, in order.

    Raises `InvalidPatch` with reason `too_large`, `invalid_patch`, `invalid_hunk` or `empty_patch`. Time and memory
    are linear in the text.
    """
    envelope = open_envelope(text, limits or Limits())
    parser = _Parser(envelope.first_line)
    number = 1
    for number, line in enumerate(envelope.inner_lines(), start=2):
        parser.feed(line, number)
    return parser.finish(number + 1)


class _State(Enum):
    START = auto()
    ADD = auto()
    DELETE = auto()
    UPDATE = auto()
    ENDED = auto()


class _Parser:
    """Fed with one line at a time; `finish` is told the number of the End Patch line."""

    def __init__(self, first_line: str) -> None:
        self._first_line = first_line
        self._patch = Patch()
        self._state = _State.START
        self._add = AddFile("", 0)
        self._update = UpdateFile("", 0)
        self._chunk: Chunk | None = None

    def feed(self, line: str, number: int) -> None:
        chunk = self._chunk
        # The common line of an Update, before the table: it can be nothing else, and there are many of them.
        if chunk is not None and not chunk.end_of_file and line and line[0] in _LINE_KINDS:
            chunk.kinds.append(line[0])
            chunk.texts.append(line[1:])
            return
        _HANDLERS[self._state](self, line, number)

    def finish(self, number: int) -> Patch:
        if self._state is _State.UPDATE:
            self._close_update(number)
        if not self._patch.sections:
            raise InvalidPatch(
                "empty_patch",
                "no files were modified: the patch has no section between its markers. "
                f"Add one: `{ADD}path`, `{UPDATE}path` or `{DELETE}path`.",
            )
        return self._patch

    # --- states -------------------------------------------------------------------------------------------------------
    def in_start(self, line: str, number: int) -> None:
        trimmed = trim(line)
        if trimmed.startswith(ENVIRONMENT):
            if self._patch.environment_id or not trim(trimmed.removeprefix(ENVIRONMENT)):
                raise invalid_envelope("environment_id", self._first_line)
            self._patch.environment_id = True
        elif not self._header(trimmed, number):
            raise self._not_a_header(line, number)

    def in_add(self, line: str, number: int) -> None:
        if self._header(trim(line), number):
            return
        if not line.startswith("+"):
            raise self._not_a_header(line, number, "every line of an Add File section begins with `+`, empty ones too")
        self._add.lines.append(line[1:])

    def in_delete(self, line: str, number: int) -> None:
        if not self._header(trim(line), number):
            raise self._not_a_header(line, number, "a Delete File section has no body")

    def in_ended(self, line: str, number: int) -> None:
        if trim(line):
            raise invalid_envelope("text_after", self._first_line)

    def in_update(self, line: str, number: int) -> None:
        trimmed = trim_end(line)
        chunk = self._chunk
        if trimmed == END or trimmed.startswith((ADD, DELETE, UPDATE)):
            self._close_update(number)
            self._header(trimmed, number)
        elif chunk is not None and chunk.end_of_file:
            if trimmed == "@@" or trimmed.startswith("@@ "):
                self._open_chunk(trimmed)
            elif trimmed:
                raise _invalid_hunk(number, line, f"after `{END_OF_FILE}` only `@@` or another section may follow")
        elif trimmed.startswith(MOVE) and chunk is None and self._update.move_to is None:
            self._update.move_to = trimmed.removeprefix(MOVE)
        elif trimmed == "@@" or trimmed.startswith("@@ "):
            self._open_chunk(trimmed)
        elif trimmed == END_OF_FILE:
            self._end_of_file(number, line)
        elif not line or line[0] in _LINE_KINDS:
            if chunk is None:
                chunk = self._new_chunk()
            chunk.kinds.append(line[:1] or " ")
            chunk.texts.append(line[1:])
        else:
            raise _invalid_hunk(number, line, _update_advice(trimmed))

    # --- parts --------------------------------------------------------------------------------------------------------
    def _header(self, trimmed: str, number: int) -> bool:
        """Takes End Patch or a file header; says whether it was one."""
        if trimmed == END:
            self._state, self._chunk = _State.ENDED, None
        elif trimmed.startswith(ADD):
            self._add = AddFile(trimmed.removeprefix(ADD), number)
            self._patch.sections.append(self._add)
            self._state, self._chunk = _State.ADD, None
        elif trimmed.startswith(DELETE):
            self._patch.sections.append(DeleteFile(trimmed.removeprefix(DELETE), number))
            self._state, self._chunk = _State.DELETE, None
        elif trimmed.startswith(UPDATE):
            self._update = UpdateFile(trimmed.removeprefix(UPDATE), number)
            self._patch.sections.append(self._update)
            self._state, self._chunk = _State.UPDATE, None
        else:
            return False
        return True

    def _open_chunk(self, header: str) -> None:
        """A header joins a chunk without lines (stacked headers); otherwise it opens one. `@@` alone adds no text."""
        chunk = self._chunk
        if chunk is None or chunk.kinds:
            chunk = self._new_chunk()
        if header != "@@":
            chunk.headers.append(header[3:])

    def _new_chunk(self) -> Chunk:
        self._chunk = Chunk()
        self._update.chunks.append(self._chunk)
        return self._chunk

    def _end_of_file(self, number: int, line: str) -> None:
        if self._chunk is None:
            return
        if not self._chunk.kinds:
            raise _invalid_hunk(number, line, "the chunk has no lines before its end-of-file mark")
        self._chunk.end_of_file = True

    def _close_update(self, number: int) -> None:
        if self._chunk is None:
            raise _invalid_hunk(
                self._update.line,
                UPDATE + self._update.path,
                "an Update File section needs a chunk: `@@`, then lines that begin with a space, `-` or `+`"
                " (a plain rename takes one context line)",
            )
        if not self._chunk.kinds:
            raise _invalid_hunk(number, END, "the chunk above has headers but no lines")

    def _not_a_header(self, line: str, number: int, advice: str = "") -> InvalidPatch:
        if trim(line).startswith(DIFF_PREFIXES):
            advice = "this looks like a unified diff, which is not accepted: name the file with a header of this format"
            return _invalid_hunk(number, line, f"{advice}; {_HEADERS}", found="unified_diff")
        return _invalid_hunk(number, line, f"{advice}; otherwise {_HEADERS}" if advice else _HEADERS)


_HEADERS = f"a section begins with `{ADD}path`, `{DELETE}path` or `{UPDATE}path`, the patch ends with `{END}`"
_HANDLERS: Mapping[_State, Callable[[_Parser, str, int], None]] = MappingProxyType(
    {
        _State.START: _Parser.in_start,
        _State.ADD: _Parser.in_add,
        _State.DELETE: _Parser.in_delete,
        _State.UPDATE: _Parser.in_update,
        _State.ENDED: _Parser.in_ended,
    }
)


def _invalid_hunk(number: int, line: str, advice: str, found: str | None = None) -> InvalidPatch:
    message = f"invalid patch at line {number}: `{shorten(line)}`: {advice}."
    return InvalidPatch("invalid_hunk", message, line=number, found=found)


def _update_advice(trimmed: str) -> str:
    if trimmed.startswith(MOVE):
        return "`*** Move to:` stands once, directly below the Update File line"
    if trimmed.startswith("@@"):
        return "`@@` is followed by one space and a whole line of the file, or by nothing"
    if trimmed.startswith("\\"):
        return "a missing final newline has no mark in this format; leave the line out"
    if trimmed.startswith("***"):
        return f"only {_HEADERS}"
    return "a line of a chunk begins with a space (context), `-` (old) or `+` (new)"
