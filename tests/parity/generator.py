"""Random files and patches, mostly well formed and mostly fitting, from a seed. Plain data; knows no engine."""

from __future__ import annotations

import random
from dataclasses import dataclass

WORDS = ("alpha", "beta", "gamma", "}", "", "  alpha", "alpha ", "\tbeta", "“q”", '"q"', "a–b", "a-b", "café", "x y")
PATHS = ("f", "g", "d/f", "d/e/h")
NOISE = (
    "", " ", "@@", "@@ alpha", "@@x", "*** End of File", "*** End Patch", "*** Move to: z", "***", "plain",
    "\\ No newline",
    "*** Update File: f", "*** Delete File: g", "*** Environment ID: e", "+++ b/f", "--- a/f", "\r",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`files`: path to content. `patch`: the argument."""

    files: dict[str, bytes]
    patch: str


def make_case(seed: int) -> Case:
    """The same case for the same seed, on every machine."""
    chance = random.Random(seed)
    files = {path: _content(chance) for path in PATHS if chance.random() < 0.7}
    sections: list[str] = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        sections += _section(chance, files)
    lines = ["*** Begin Patch", *sections, "*** End Patch"]
    if chance.random() < 0.08:
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(NOISE))
    if chance.random() < 0.03:
        del lines[chance.randrange(len(lines))]
    text = chance.choice(("\n", "\n", "\n", "\r\n")).join(lines) + chance.choice(("", "\n"))
    if chance.random() < 0.03:
        text = f"<<{chance.choice(('EOF', repr('EOF'), 'END'))}\n{text.rstrip()}\nEOF"
    return Case(files, text)


def _content(chance: random.Random) -> bytes:
    lines = [chance.choice(WORDS) for _ in range(chance.randrange(12))]
    ending = chance.choice(("\n", "\n", "\n", "\n", "\r\n", "mixed"))
    text = "".join(line + (chance.choice(("\n", "\r\n")) if ending == "mixed" else ending) for line in lines)
    if text and chance.random() < 0.15:
        text = text.rstrip("\r\n") or text
    kind = chance.random()
    if kind < 0.03:
        text = "\ufeff" + text
    elif kind < 0.06:
        text = text.replace("alpha", "al\rpha", 1)
    elif kind < 0.09:
        text = text.replace("café", "cafe\u0301")
    data = text.encode()
    return data.replace(b"gamma", b"gam\xffma", 1) if 0.09 <= kind < 0.11 else data


def _section(chance: random.Random, files: dict[str, bytes]) -> list[str]:
    path = chance.choice(sorted(files) or PATHS) if chance.random() < 0.85 else chance.choice(PATHS)
    kind = chance.random()
    if kind < 0.1:
        fresh = chance.choice(("n", "new/n", "d/n", path))
        return [f"*** Add File: {fresh}", *(f"+{chance.choice(WORDS)}" for _ in range(chance.randrange(4)))]
    if kind < 0.18:
        return [f"*** Delete File: {path}"]
    lines = [f"*** Update File: {path}"]
    if chance.random() < 0.12:
        lines.append(f"*** Move to: {chance.choice(('moved', 'new/moved', 'g', path))}")
    text = files.get(path, b"").decode("utf-8", "replace").removeprefix("\ufeff")
    body = [line.removesuffix("\r") for line in text.split("\n")]
    place = 0
    for number in range(chance.choice((1, 1, 2, 3))):
        chunk, place = _chunk(chance, body, place, first=number == 0)
        lines += chunk
    return lines


def _chunk(chance: random.Random, body: list[str], place: int, *, first: bool) -> tuple[list[str], int]:
    """A chunk at a place of the file from `place` on, most often one that is there, and the line after it."""
    lines: list[str] = []
    start = min(len(body) - 1, place + chance.randrange(4))
    if not first or chance.random() < 0.9:
        header = "@@"
        if chance.random() < 0.3 and start > 0 and body[start - 1].strip():
            header = f"@@ {body[start - 1]}" if chance.random() < 0.9 else f"@@ {chance.choice(WORDS)}"
        lines.append(header)
        if chance.random() < 0.04:
            lines.append(f"@@ {chance.choice(WORDS)}")
    count = chance.choice((0, 1, 1, 2, 3))
    for line in body[start : start + count]:
        drawn = _worn(chance, line)
        lines.append(chance.choice((" ", "-", "-")) + drawn)
        if chance.random() < 0.4:
            lines.append("+" + chance.choice(WORDS))
    if count == 0 or chance.random() < 0.3:
        lines.append("+" + chance.choice(WORDS))
    if chance.random() < 0.06:
        lines.append("")
    if chance.random() < 0.08:
        lines.append("*** End of File")
    return lines, start + count


def _worn(chance: random.Random, line: str) -> str:
    """The line as a model would remember it: mostly right."""
    kind = chance.random()
    if kind < 0.85:
        return line
    if kind < 0.9:
        return line.strip()
    if kind < 0.94:
        return line + " "
    if kind < 0.97:
        return line.replace("“", '"').replace("”", '"').replace("–", "-")
    return chance.choice(WORDS)
