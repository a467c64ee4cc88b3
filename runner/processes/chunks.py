"""What a reader gets of a ring: the cut at character boundaries, the loss, the end (PROC-4).

Pure. Called by `runner.processes.process`.
"""

from __future__ import annotations

import base64
import codecs
from dataclasses import dataclass
from typing import Literal

from runner.api import ErrorCode, RunnerError
from runner.processes.ring import OutputRing

Encoding = Literal["utf-8", "base64"]
_LONGEST_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """`cursor`: the offset after the last byte of `text`. `lost`: the asked offset is no longer retained; `text` then
    begins exactly at the ring's `retained_from`. `eof`: the output has ended and `cursor` is its end."""

    text: str
    cursor: int
    lost: bool
    eof: bool


def cut(ring: OutputRing, cursor: int, max_bytes: int, encoding: Encoding, *, ended: bool) -> Chunk:
    """The bytes from `cursor` on, at most `max_bytes` of them.

    As text, a character that is not all there yet is left for the next chunk unless the output has `ended`; bytes that
    are not UTF-8 become U+FFFD; and a character longer than `max_bytes` is given whole, so that every chunk makes
    progress. Base64 is exact and cuts anywhere.

    Raises `RunnerError` INVALID_ARGUMENT for a cursor beyond the end: no offset the runner ever gave is there.
    """
    if cursor > ring.total:
        raise RunnerError(
            ErrorCode.INVALID_ARGUMENT,
            f"cursor {cursor} is beyond the {ring.total} bytes of output so far; use the cursor of the last read",
            details={"argument": "cursor", "output_total": ring.total},
        )
    start = max(cursor, ring.retained_from)
    data = ring.read(start, max_bytes)
    if encoding == "base64":
        text, used = base64.b64encode(data).decode("ascii"), len(data)
    else:
        text, used = _decode(ring, start, data, ended=ended)
    after = start + used
    return Chunk(text, after, lost=start > cursor, eof=ended and after == ring.total)


def _decode(ring: OutputRing, start: int, data: bytes, *, ended: bool) -> tuple[str, int]:
    at_end = start + len(data) == ring.total
    text, used = codecs.utf_8_decode(data, "replace", at_end and ended)
    while not used and not at_end and len(data) < _LONGEST_CHARACTER:
        data = ring.read(start, len(data) + 1)
        at_end = start + len(data) == ring.total
        text, used = codecs.utf_8_decode(data, "replace", at_end and ended)
    return text, used
