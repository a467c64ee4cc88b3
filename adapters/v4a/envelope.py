"""From the text of a patch to its lines: white space, heredoc, the two markers. Section 2 of the format's reference.

The envelope is never searched for, added or repaired. Called by the parser alone; knows nothing of sections.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from adapters.v4a.budget import Limits
from adapters.v4a.errors import InvalidPatch
from adapters.v4a.text import BOM, lines_of, shorten, trim

BEGIN = "*** Begin Patch"
END = "*** End Patch"
SHAPE = f"A patch begins with the line `{BEGIN}` and ends with the line `{END}`, with nothing before or after them."

_HEREDOCS = ("<<EOF", "<<'EOF'", '<<"EOF"')
_FOUND = {
    "byte_order_mark": "a byte-order mark stands before the first line; remove it",
    "markdown_fence": "a Markdown code fence stands around the patch; send the patch without it",
    "heredoc": "a shell command or heredoc stands around the patch; send the patch alone",
    "json": "the text looks like JSON; send the patch text itself",
    "text_before": "there is text before the first marker; remove it",
    "unified_diff": "the text looks like a unified diff, which is not accepted; write its changes in this format: "
    "`*** Update File: path`, then `@@`, then lines that begin with a space, `-` or `+`",
    "no_begin": "the first line is not the first marker",
    "nothing": "the text is empty",
    "text_after": "there is text after the last marker; remove it",
    "no_end": "the last line is not the last marker; the patch may have been cut off",
    "environment_id": "an Environment ID line must have a value and may stand once; leave it out",
    "not_unicode": "the text holds unpaired surrogates, so it is not Unicode",
}


def invalid_envelope(found: str, first_line: str) -> InvalidPatch:
    """The refusal for `found`; quotes the first line received and shows both markers."""
    return InvalidPatch(
        "invalid_patch",
        f"invalid patch: {_FOUND[found]}. First line received: `{shorten(first_line)}`. {SHAPE}",
        found=found,
    )


@dataclass(frozen=True)
class Envelope:
    """The lines between and with the markers, without line ends. `first_line` is for messages."""

    text: str
    first_line: str

    def inner_lines(self) -> Iterator[str]:
        """The lines after the first and before the last marker, each without the CRs at its end that are not content.
        The first of them is line 2 of the patch."""
        cut = self.text.find("\n")
        last = self.text.rfind("\n")
        if cut == last:
            return
        for line in lines_of(self.text[cut + 1 : last]):
            # One CR belongs to the line end, and one more is dropped, so that \r\r\n ends a clean line.
            yield line[:-2] if line.endswith("\r\r") else line[:-1] if line.endswith("\r") else line


def open_envelope(text: str, limits: Limits) -> Envelope:
    """Checks size, Unicode and markers. Raises `InvalidPatch` with reason `too_large` or `invalid_patch`."""
    limit = limits.max_patch_bytes
    too_large = InvalidPatch(
        "too_large",
        f"the patch is longer than {limit} bytes (limit max_patch_bytes). Split it into smaller patches.",
        limit="max_patch_bytes",
        bound=limit,
    )
    if len(text) > limit:
        raise too_large
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise invalid_envelope("not_unicode", trim(text).split("\n", 1)[0]) from None
    if size > limit:
        raise too_large
    body = trim(text)
    if _first(body) == BEGIN and _last(body) == END:
        return Envelope(body, BEGIN)
    inner = _inside_heredoc(body)
    if inner is not None:
        if _first(inner) == BEGIN and _last(inner) == END:
            return Envelope(inner, BEGIN)
        body = inner
    raise invalid_envelope(_diagnose(body), _first(body))


def _first(body: str) -> str:
    return trim(body.split("\n", 1)[0])


def _last(body: str) -> str:
    return trim(body[body.rfind("\n") + 1 :])


def _inside_heredoc(body: str) -> str | None:
    """The lines between `<<EOF` and a line that ends with EOF, if there are at least two."""
    first_cut, last_cut = body.find("\n"), body.rfind("\n")
    if body.count("\n") < 3 or body[:first_cut].removesuffix("\r") not in _HEREDOCS or not body.endswith("EOF"):
        return None
    return body[first_cut + 1 : last_cut]


def _diagnose(body: str) -> str:
    """What was found instead, in the order of the reference's two tables."""
    first = _first(body)
    if not body:
        return "nothing"
    if first == BEGIN:
        later = lines_of(body)
        next(later)
        return "text_after" if any(trim(line) == END for line in later) else "no_end"
    for found, prefixes in (
        ("byte_order_mark", (BOM,)),
        ("markdown_fence", ("```", "~~~")),
        ("heredoc", ("<<", "apply_patch")),
        ("json", ("{", "[")),
    ):
        if first.startswith(prefixes):
            return found
    if any(trim(line) == BEGIN for line in lines_of(body)):
        return "text_before"
    return "unified_diff" if first.startswith("diff ") or _has_diff_header(body) else "no_begin"


def _has_diff_header(body: str) -> bool:
    before = ""
    for line in lines_of(body):
        line = trim(line)
        if before.startswith("--- ") and line.startswith("+++ "):
            return True
        before = line
    return False
