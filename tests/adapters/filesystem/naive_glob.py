"""The glob language once more, as plainly as it can be written: the reference that the real matcher is held against.

Exponential on purpose; for short patterns without backslashes.
"""

from __future__ import annotations

from itertools import pairwise


def naive_match(pattern: str, path: str) -> bool:
    """Whether a whole path matches: braces are spelled out, components compared one by one."""
    return any(
        _components([part for part in plain.split("/") if part not in ("", ".")], path.split("/"))
        for plain in _spelled_out(pattern)
    )


def _spelled_out(pattern: str) -> list[str]:
    depth, start = 0, -1
    commas: list[int] = []
    for at, char in enumerate(pattern):
        if char == "{":
            if depth == 0:
                start = at
                commas = []
            depth += 1
        elif char == "," and depth == 1:
            commas.append(at)
        elif char == "}" and depth:
            depth -= 1
            if depth == 0:
                edges = [start, *commas, at]
                choices = [pattern[a + 1 : b] for a, b in pairwise(edges)]
                return [
                    plain for choice in choices for plain in _spelled_out(pattern[:start] + choice + pattern[at + 1 :])
                ]
    return [pattern]


def _components(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return _components(pattern[1:], path) or (bool(path) and _components(pattern, path[1:]))
    return bool(path) and _name(pattern[0], path[0]) and _components(pattern[1:], path[1:])


def _name(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return _name(pattern[1:], name) or (bool(name) and _name(pattern, name[1:]))
    if not name:
        return False
    if pattern[0] == "[":
        end = pattern.index("]", 3 if pattern[1] in "!^" else 2)
        negated = pattern[1] in "!^"
        return (name[0] in pattern[1 + negated : end]) != negated and _name(pattern[end + 1 :], name[1:])
    return pattern[0] in ("?", name[0]) and _name(pattern[1:], name[1:])
