#!/usr/bin/env python3
"""Writes gateway/http/console/static/palette.css: a class for each of the 256 colours of terminals, before and behind.

Classes, since the console's pages allow no style attribute. The first sixteen are chosen for the dark ground that
output is shown on; the cube and the greys are as xterm has them. `--check` compares in place of writing.
"""

from __future__ import annotations

import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "gateway/http/console/static/palette.css"
SIXTEEN = (
    *("#7a828e", "#ff7b72", "#6bd082", "#e3b341", "#79b0ff", "#d2a8ff", "#63d3dd", "#c9d1d9"),
    *("#8b949e", "#ffa198", "#8ae79c", "#f2cc60", "#a5cdff", "#e2c5ff", "#8be9f0", "#ffffff"),
)
LEVELS = (0, 95, 135, 175, 215, 255)


def palette() -> str:
    cube = [f"#{r:02x}{g:02x}{b:02x}" for r in LEVELS for g in LEVELS for b in LEVELS]
    greys = [f"#{level:02x}{level:02x}{level:02x}" for level in range(8, 248, 10)]
    rules = [
        f".f{number} {{ color: {colour}; }} .b{number} {{ background: {colour}; }}"
        for number, colour in enumerate([*SIXTEEN, *cube, *greys])
    ]
    return "/* The 256 colours of terminals, written by tools/console_palette.py. */\n" + "\n".join(rules) + "\n"


def main() -> int:
    if "--check" in sys.argv[1:]:
        if TARGET.read_text(encoding="utf-8") == palette():
            return 0
        print(f"error: the palette is not what its program writes: {TARGET}: run {__file__}", file=sys.stderr)
        return 1
    TARGET.write_text(palette(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
