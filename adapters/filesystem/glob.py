"""The glob language of find and grep, as a matcher that a directory walk can steer by.

`*` `?` `[…]` match within a component, `**` as a whole component matches any number of them, none included, `{a,b}`
chooses (nested, and across components); a backslash takes the next character as it is. A pattern matches the whole
relative path, hidden names included. `.` components are dropped as they are from paths.

Pure: it knows no disk. Called by the walk. Matching costs time linear in the name for each component, whatever the
pattern: stars are matched leftmost and atomically, which decides globs exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from adapters.filesystem.paths import escape_reason, printable
from runner.api import ErrorCode, RunnerError

MAX_PATTERN_CHARACTERS = 4096
MAX_ALTERNATIVES = 256
"""How many plain patterns the braces of one pattern may stand for."""
MAX_TOKENS = 16_384
"""Characters of all those plain patterns together."""
MAX_NESTING = 16

# Tokens: a literal or class is its regular expression (one character wide); the rest are these marks.
_STAR, _SLASH = "*", "/"
_ANY = "."
_Sequence = tuple[str, ...]


class _Parser:
    """Recursive descent over one pattern; yields the alternatives its braces stand for, as token sequences."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    def parse(self) -> list[_Sequence]:
        return self._sequences(inside_braces=False)

    def _sequences(self, *, inside_braces: bool) -> list[_Sequence]:
        found: list[list[str]] = [[]]
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            if inside_braces and char in ",}":
                return [tuple(tokens) for tokens in found]
            self._at += 1
            if char == "{":
                choices = self._choices()
                if len(found) * len(choices) > MAX_ALTERNATIVES:
                    raise _bad(self._pattern, f"its braces stand for more than {MAX_ALTERNATIVES} patterns")
                found = [[*head, *tail] for head in found for tail in choices]
            else:
                token = self._token(char)
                for tokens in found:
                    tokens.append(token)
        if inside_braces:
            raise _bad(self._pattern, "a '{' is not closed (write \\{ for the character)")
        return [tuple(tokens) for tokens in found]

    def _choices(self) -> list[_Sequence]:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise _bad(self._pattern, f"its braces are nested more than {MAX_NESTING} deep")
        choices: list[_Sequence] = []
        while True:
            choices += self._sequences(inside_braces=True)
            self._at += 1
            if self._pattern[self._at - 1] == "}":
                self._depth -= 1
                return choices

    def _token(self, char: str) -> str:
        if char == "*":
            return _STAR
        if char == "?":
            return _ANY
        if char == "/":
            return _SLASH
        if char == "[":
            return self._character_class()
        if char == "\\":
            if self._at == len(self._pattern):
                raise _bad(self._pattern, "it ends in a backslash (write \\\\ for the character)")
            char = self._pattern[self._at]
            self._at += 1
            if char == "/":  # separates components even so
                return _SLASH
        return _literal(char)

    def _character_class(self) -> str:
        begin = self._at
        negated = self._pattern[self._at : self._at + 1] in ("!", "^")
        self._at += negated
        members: list[str] = []
        while True:
            char = self._pattern[self._at : self._at + 1]
            if not char:
                raise _bad(self._pattern, f"the '[' at character {begin} is not closed (write \\[ for the character)")
            if char == "]" and members:
                self._at += 1
                return f"[{'^' if negated else ''}{''.join(members)}]"
            first = self._member()
            following = self._pattern[self._at : self._at + 2]
            if len(following) == 2 and following[0] == "-" and following[1] != "]":
                self._at += 1
                last = self._member()
                if last < first:
                    raise _bad(self._pattern, f"the range {first}-{last} is empty")
                members.append(f"{_in_class(first)}-{_in_class(last)}")
            else:
                members.append(_in_class(first))

    def _member(self) -> str:
        if self._pattern[self._at] == "\\":
            self._at += 1
        char = self._pattern[self._at : self._at + 1]
        if not char:
            raise _bad(self._pattern, "it ends within '[…]'")
        self._at += 1
        return char


def _literal(char: str) -> str:
    # Never equal to a mark: those are single characters that re.escape would not leave bare.
    return f"\\{char}" if char in "*/." else re.escape(char)


def _in_class(char: str) -> str:
    return f"\\{char}" if char in "\\]^-[&~|" else char


def _bad(pattern: str, why: str) -> RunnerError:
    head = printable(pattern)[:200]
    return RunnerError(
        ErrorCode.INVALID_ARGUMENT, f"glob pattern {head!r} is malformed: {why}", details={"pattern": head}
    )


# --- components -------------------------------------------------------------------------------------------------------
_GLOBSTAR = None
_Component = str | None
"""The regular expression of one component, or None for `**`."""


def _component(tokens: _Sequence) -> _Component:
    """`a*b*c` becomes `a(?>.*?b).*c`: each middle part at its leftmost place, the last at the end."""
    if tokens == (_STAR, _STAR):
        return _GLOBSTAR
    parts: list[str] = [""]
    for token in tokens:
        if token == _STAR:
            parts.append("")
        else:
            parts[-1] += token
    if len(parts) == 1:
        return parts[0]
    middle = "".join(f"(?>.*?{part})" for part in parts[1:-1] if part)
    return f"{parts[0]}{middle}.*{parts[-1]}"


def _split(tokens: _Sequence) -> tuple[_Component, ...]:
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token == _SLASH:
            parts.append([])
        else:
            parts[-1].append(token)
    components: list[_Component] = []
    for part in parts:
        component = _component(tuple(part))
        if component == "" or component == _literal("."):
            continue  # a choice such as {a,} may leave an empty component; it stands for nothing
        if component is _GLOBSTAR and components and components[-1] is _GLOBSTAR:
            continue
        components.append(component)
    return tuple(components)


# --- matching ---------------------------------------------------------------------------------------------------------
_Position = tuple[int, int]
"""(which alternative, how many of its components are used up)"""


@dataclass(frozen=True)
class Here:
    """What the pattern says inside one directory. `matches`: whether an entry of that name matches as a whole path;
    None if nothing here can. `everything`: everything below matches."""

    matches: Callable[[str], object] | None
    everything: bool
    _stay: frozenset[_Position]
    _steps: tuple[tuple[Callable[[str], object], _Position], ...]
    _glob: Glob

    def enter(self, name: str) -> Here | None:
        """What the pattern says inside the subdirectory of that name; None if nothing below it can match."""
        if not self._steps:
            return self if self._stay else None
        return self._glob.at(self._stay.union(position for match, position in self._steps if match(name)))


class Glob:
    """One pattern, or several of which any may match. Immutable but for a cache of positions: one object, one walk.

    Raises `RunnerError`: INVALID_ARGUMENT for a malformed or oversized pattern, PATH_ESCAPE for one that is absolute,
    or holds `..`, NUL or an empty component.
    """

    def __init__(self, *patterns: str) -> None:
        every = (_split(tokens) for pattern in patterns for tokens in _parsed(pattern))
        self._alternatives = tuple(dict.fromkeys(every))
        self._cache: dict[frozenset[_Position], Here | None] = {}

    def top(self) -> Here | None:
        """What the pattern says inside the root; None if it can match nothing at all."""
        return self.at(frozenset((which, 0) for which in range(len(self._alternatives))))

    def matches(self, path: str) -> bool:
        """Whether a whole relative path matches; by the same steps as a walk."""
        *parents, name = path.split("/")
        here = self.top()
        for parent in parents:
            here = here and here.enter(parent)
        return bool(here and here.matches and here.matches(name))

    def at(self, positions: frozenset[_Position]) -> Here | None:
        if positions not in self._cache:
            self._cache[positions] = self._here(positions)
        return self._cache[positions]

    def _here(self, positions: frozenset[_Position]) -> Here | None:
        whole: list[str] = []
        stay: set[_Position] = set()
        steps: list[tuple[Callable[[str], object], _Position]] = []
        everything = False
        for which, used in self._closure(positions):
            components = self._alternatives[which]
            component = components[used]
            rest = components[used + 1 :]
            ends = all(following is _GLOBSTAR for following in rest)
            if component is _GLOBSTAR:
                stay.add((which, used))
                everything = everything or not rest
                continue
            if ends:
                whole.append(component)
            if rest:
                steps.append((_compiled(component), (which, used + 1)))
        if not (whole or stay or steps):
            return None
        matches = _match_any if everything else _compiled("|".join(dict.fromkeys(whole))) if whole else None
        return Here(matches, everything, frozenset(stay), tuple(steps), self)

    def _closure(self, positions: frozenset[_Position]) -> Iterator[_Position]:
        """The positions, and those behind a `**` that stands for no component."""
        for which, used in sorted(positions):
            components = self._alternatives[which]
            while used < len(components):
                yield which, used
                if components[used] is not _GLOBSTAR:
                    break
                used += 1


def _match_any(_name: str) -> bool:
    return True


def _compiled(expression: str) -> Callable[[str], object]:
    return re.compile(expression, re.DOTALL).fullmatch


def _parsed(pattern: str) -> list[_Sequence]:
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise _bad(pattern, f"it is longer than {MAX_PATTERN_CHARACTERS} characters")
    reason = escape_reason(pattern)
    if reason is not None:
        raise RunnerError(
            ErrorCode.PATH_ESCAPE,
            f"glob pattern {printable(pattern)[:200]!r} {reason}; patterns match paths relative to the workspace root",
            details={"pattern": printable(pattern)[:200]},
        )
    alternatives = _Parser(pattern).parse()
    if sum(map(len, alternatives)) > MAX_TOKENS:
        raise _bad(pattern, f"its braces stand for more than {MAX_TOKENS} characters in all")
    return alternatives
