"""Makes characters visible that steer a terminal or a reader instead of being read: pure.

Control characters become their names in white brackets (Unicode has pictures of them, which few fonts can draw small);
what changes the direction of text, or has no width, becomes its number there. Joiners and variation selectors stay,
since emoji and scripts need them. Refuses to know: markup. Used for every text that a page shows.
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
    *(0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F),
    *range(0x2028, 0x202F),  # separators, embeddings and overrides
    *range(0x2060, 0x2070),  # isolates and invisible operators
    *(0xFEFF, 0xFFF9, 0xFFFA, 0xFFFB),
    *range(0xE0000, 0xE0080),  # tags
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


def shown(text: str) -> str:
    """`text` with nothing in it that is not seen."""
    return text.translate(PICTURES)


def hidden_characters(text: str) -> int:
    """How many characters of `text` would not be seen as they are, but for the line ends of other systems."""
    return len(_HIDDEN.findall(text))
