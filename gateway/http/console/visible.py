"""Makes characters visible that steer a terminal or a reader instead of being read: pure.

Control characters become their names in white brackets (Unicode has pictures of them, which few fonts can draw small);
what changes the direction of text, or has no width, becomes its number there. Joiners and variation selectors stay,
since emoji and scripts need them; where somebody decides by the text, they have to have something to join. Refuses to
know: markup. Used for every text that a page shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_KEPT = frozenset("\n\t")
_C0 = (
    *("NUL", "SOH", "STX", "ETX", "EOT", "ENQ", "ACK", "BEL", "BS", "HT", "LF", "VT", "FF", "CR", "SO", "SI"),
    *("DLE", "DC1", "DC2", "DC3", "DC4", "NAK", "SYN", "ETB", "CAN", "EM", "SUB", "ESC", "FS", "GS", "RS", "US"),
)
_UNSEEN = (
    *range(0x80, 0xA0),  # C1 controls
    *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180E, 0x200B, 0x200E, 0x200F),
    *range(0x2028, 0x202F),  # separators, embeddings and overrides
    *range(0x2060, 0x2070),  # isolates and invisible operators
    *(0x3164, 0xFEFF, 0xFFA0),  # fillers, which some languages take for a letter of a name
    *range(0xFFF0, 0xFFFC),
    *range(0x1BCA0, 0x1BCA4),
    *range(0x1D173, 0x1D17B),
    *range(0xE0000, 0xE0100),  # tags
    *range(0xE01F0, 0xE1000),
)


def _pictures() -> dict[int, str]:
    pictures = {code: f"\u27e6{name}\u27e7" for code, name in enumerate(_C0) if chr(code) not in _KEPT}
    pictures[0x7F] = "\u27e6DEL\u27e7"
    pictures |= {code: f"\u27e6U+{code:04X}\u27e7" for code in _UNSEEN}
    pictures |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
    return pictures


PICTURES: Mapping[int, str] = _pictures()
"""Code point to what is shown in its place."""
_HIDDEN = re.compile("[" + "".join(re.escape(chr(code)) for code in PICTURES if code != 0x0D) + "]")


_VARIANTS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_BLANKS = "\xa0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000"
"""Spaces that are none to a shell, and a sign without dots."""
_BARE = f"\u27e6\u27e7{_BLANKS}"
"""With nothing to join either: our own brackets."""
_JOINERS = "\u200c\u200d"
_LONE = f"{_JOINERS}{_VARIANTS}{_BARE}"
_STRAY = re.compile(
    # After nothing, after a letter of a script that has no use for a joiner, or before such a letter. What a variant
    # was chosen of may be joined.
    f"(?<![^\0-\u058f{_LONE}])(?<![^\0-\x7f{_LONE}][{_VARIANTS}])[{_JOINERS}]|[{_JOINERS}](?![^\0-\u058f{_LONE}])"
    # What encloses the variant of a digit is seen.
    f"|(?<![^\0-\x7f{_LONE}])[{_VARIANTS}](?!\u20e3)|[{_BLANKS}]"
)


def exactly(text: str) -> str:
    """`shown`, for a text that somebody decides by: nothing in it looks like something else for want of a picture."""
    text = shown(text)
    return text if text.isascii() else _STRAY.sub(lambda found: f"\u27e6U+{ord(found[0]):04X}\u27e7", text)


def shown(text: str) -> str:
    """`text` with nothing in it that is not seen."""
    return text.translate(PICTURES)


def escaped(json_text: str) -> str:
    """JSON that means the same, with nothing in it that is not seen."""
    return _STRAY.sub(_unit, _HIDDEN.sub(_unit, json_text))


def _unit(found: re.Match[str]) -> str:
    """One character by its number, as JSON has it: in one or two units of UTF-16."""
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def hidden_characters(text: str) -> int:
    """How many characters of `text` would not be seen as they are, but for the line ends of other systems."""
    return len(_HIDDEN.findall(text))
