"""The glob language: what matches, what is refused, and that no pattern costs more than its length allows."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.filesystem.glob import MAX_ALTERNATIVES, MAX_NESTING, Glob
from runner.api import ErrorCode, RunnerError
from tests.adapters.filesystem.naive_glob import naive_match


@pytest.mark.covers("FS-4")
@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("**/*.py", ["a.py", "a/b.py", "a/b/.c.py"], ["a.pyc", "py", "a.py/x"]),
        ("*.py", ["a.py", ".py"], ["a/b.py"]),
        ("sub/**", ["sub", "sub/a", "sub/a/b"], ["su", "subx/a"]),
        ("sub/*", ["sub/a", "sub/.b"], ["sub", "sub/a/b"]),
        ("**", ["a", "a/b", ".x/.y"], []),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a/x", "ab", "b"]),
        ("**/a/**/b", ["a/b", "x/a/y/b", "a/a/b"], ["b", "a"]),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("{a,b/c}.txt", ["a.txt", "b/c.txt"], ["b.txt", "c.txt"]),
        ("{a,b{c,d}}", ["a", "bc", "bd"], ["b"]),
        ("{,a/}b", ["b", "a/b"], ["a"]),
        ("x{y}", ["xy"], ["x{y}"]),
        ("a/{b,c}/**/*.{ts,tsx}", ["a/b/x.ts", "a/c/d/e.tsx"], ["a/d/x.ts", "a/b/x.t"]),
        ("f[0-2].dat", ["f0.dat", "f2.dat"], ["f3.dat", "f.dat"]),
        ("[!a-c]x", ["dx", "]x"], ["ax", "x"]),
        ("[^x]", ["y"], ["x"]),
        ("[]]", ["]"], ["["]),
        ("[]-]", ["]", "-"], ["a"]),
        ("[a/b]", ["a", "b"], ["a/b"]),
        ("[&&~~||]", ["&", "~", "|"], ["a"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[\\]]", ["]"], ["\\"]),
        ("\\*\\[", ["*["], ["a["]),
        ("a.b+c", ["a.b+c"], ["axbbc"]),
        ("?", ["é", ".", "\ufffd"], ["ab", ""]),
        ("./x", ["x"], []),
        ("a\nb*", ["a\nb\n"], ["a"]),
    ],
)
def test_a_pattern_matches_whole_paths_as_the_language_says(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    glob = Glob(pattern)
    assert [path for path in matching if not glob.matches(path)] == []
    assert [path for path in others if glob.matches(path)] == []


_NAMES = st.text(alphabet="ab.", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)
_PIECES = st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]", "[b.]"])
_PART = st.just("**") | st.lists(_PIECES, min_size=1, max_size=5).map("".join).filter(lambda part: part != "..")
_PLAIN = st.lists(_PART, min_size=1, max_size=4).map("/".join)
_BRACED = st.builds(lambda a, b, c, d: f"{a}{{{b},{c}}}{d}", _PLAIN, _PLAIN, _PLAIN, _PLAIN).filter(
    lambda pattern: ".." not in pattern
)


@pytest.mark.covers("FS-4")
@given(pattern=_PLAIN | _BRACED, path=_PATHS)
def test_the_matcher_agrees_with_a_naive_reference(pattern: str, path: str) -> None:
    assert Glob(pattern).matches(path) == naive_match(pattern, path)


@pytest.mark.covers("FS-4")
@given(pattern=_PLAIN | _BRACED, path=_PATHS)
def test_a_walk_enters_every_directory_that_can_hold_a_match(pattern: str, path: str) -> None:
    glob = Glob(pattern)
    if glob.matches(path):
        here = glob.top()
        for parent in path.split("/")[:-1]:
            assert here is not None
            here = here.enter(parent)
        assert here is not None


@pytest.mark.covers("FS-4")
@given(st.text(alphabet="ab*?[]{},!^-\\/.\0é\ud800", max_size=24))
def test_any_text_is_a_pattern_or_a_typed_refusal(pattern: str) -> None:
    with contextlib.suppress(RunnerError):
        Glob(pattern).matches("a/b")


@pytest.mark.covers("FS-4")
@pytest.mark.parametrize(
    "pattern",
    [
        "[ab",
        "[",
        "[]",
        "[!]",
        "{a,b",
        "a\\",
        "[b-a]",
        "[a\\",
        "{a,b}" * 9,
        "{" * (MAX_NESTING + 1) + "}" * (MAX_NESTING + 1),
        "x" * 5000,
        "{" + ",".join("ab" for _ in range(MAX_ALTERNATIVES + 1)) + "}",
        "{a,b}" * 8 + "x" * 100,
    ],
)
def test_a_malformed_or_oversized_pattern_is_an_invalid_argument(pattern: str) -> None:
    with pytest.raises(RunnerError) as caught:
        Glob(pattern)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.covers("FS-2", "FS-4")
@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "a/../b", "a//b", "sub/", "", "a\0"])
def test_a_pattern_that_would_leave_the_root_is_an_escape(pattern: str) -> None:
    with pytest.raises(RunnerError) as caught:
        Glob(pattern)
    assert caught.value.code is ErrorCode.PATH_ESCAPE


@pytest.mark.covers("FS-4")
def test_a_pattern_made_to_backtrack_is_decided_within_the_time_limit() -> None:
    assert not Glob("a*" * 100 + "b").matches("a" * 255)
    assert not Glob("/".join(["**/a*a*a*a*b"] * 20)).matches("/".join(["a" * 100] * 40))
