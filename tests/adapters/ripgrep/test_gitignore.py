"""`.gitignore`, held against git itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.filesystem.beneath import choose_opener
from adapters.filesystem.glob import Glob
from adapters.filesystem.tree import TreeWalk
from adapters.ripgrep.gitignore import MAX_FILE_BYTES, MAX_GROUPS, MAX_PATTERNS, GitIgnore
from tests.adapters.ripgrep.conftest import Searched

TREE = (
    "a",
    "a.o",
    "b/a",
    "b/a.o",
    "b/build/x",
    "build/x",
    "build/keep",
    "doc/frotz/y",
    "doc/x.txt",
    "doc/deep/x.txt",
    "foo/bar/z",
    "{x}",
    "a b",
    "x#y",
    "#x",
    "!x",
    "sp ",
    "sp\\",
    "[q]",
    "n1",
    "n2/n",
)


def never() -> bool:
    return False


def walked(root: Path) -> list[str]:
    root_fd = os.open(root, os.O_PATH)
    try:
        walk = TreeWalk(
            choose_opener(), root_fd, Glob("**"), None, 10_000, expired=never, overdue=never, rules=GitIgnore()
        )
        return [entry.path for entry in walk if entry.kind == "file"]
    finally:
        os.close(root_fd)


def listed_by_git(root: Path) -> list[str]:
    """Every file that git does not ignore; no user's or system's configuration is read."""
    environment = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": "/nonexistent", "LC_ALL": "C"}
    git = ["git", "-C", str(root)]
    if not (root / ".git").exists():
        subprocess.run([*git, "init", "-q"], check=True, env=environment)
    out = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"],
        check=True,
        env=environment,
        capture_output=True,
    ).stdout
    return sorted(os.fsdecode(out).removesuffix("\0").split("\0")) if out else []


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed here")
    root = tmp_path_factory.mktemp("ignored").resolve()
    for path in TREE:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


@pytest.mark.covers("FS-6")
@pytest.mark.parametrize(
    "lines",
    [
        "*.o",
        "/a",
        "a/",
        "build/",
        "build/*\n!build/keep",
        "build\n!build/keep",
        "doc/*.txt",
        "doc/**/x.txt",
        "**/x.txt",
        "foo/**",
        "foo/**/z",
        "**",
        "*\n!*/\n!*.txt",
        "doc/frotz",
        "frotz/",
        "# comment\n\\#x",
        "\\!x",
        "sp\\ ",
        "sp\\   ",
        "sp\\\\ ",
        "a\\\\\\  ",
        "sp   ",
        "{x}",
        "a\\ b",
        "[[]q]",
        "n[0-9]",
        "n[[:digit:]]",
        "[!a-m]*",
        "!a\n*a",
        "a\\",
        "[a",
        "/",
        "//a",
        "b/a\n!a",
        "x.txt\r",
        "",
        "b//a",
        "foo/bar/",
        "/*\n!/foo\n/foo/*\n!/foo/bar",
    ],
)
def test_the_same_files_are_left_out_as_by_git(tree: Path, lines: str) -> None:
    (tree / ".gitignore").write_text(lines + "\n")
    (tree / "b/.gitignore").unlink(missing_ok=True)
    assert walked(tree) == listed_by_git(tree)


_LINE = st.lists(
    st.sampled_from(["a", "b", "build", "doc", "x", "*", "**", "/", "?", ".o", ".txt", "[ab]", "!", "\\", " "]),
    min_size=1,
    max_size=5,
).map("".join)


@pytest.mark.covers("FS-6")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(top=st.lists(_LINE, max_size=4), nested=st.lists(_LINE, max_size=2))
def test_any_rules_leave_out_the_same_files_as_by_git(tree: Path, top: list[str], nested: list[str]) -> None:
    (tree / ".gitignore").write_text("\n".join(top))
    (tree / "b/.gitignore").write_text("\n".join(nested))
    assert walked(tree) == listed_by_git(tree)


@pytest.mark.covers("FS-6")
async def test_ignore_files_count_only_when_asked_for(searched: Searched) -> None:
    searched.put(".gitignore", "*.log\n/out/\n")
    searched.put("sub/.gitignore", "!keep.log\n")
    for path in ("a.log", "out/x", "sub/keep.log", "sub/out/y", ".git/config", "b"):
        searched.put(path, "needle\n")
    assert [path for path, _ in await searched.hits("needle")] == [
        ".git/config",
        "a.log",
        "b",
        "out/x",
        "sub/keep.log",
        "sub/out/y",
    ]
    assert [path for path, _ in await searched.hits("needle", gitignore=True)] == ["b", "sub/keep.log", "sub/out/y"]


@pytest.mark.covers("FS-6")
@pytest.mark.parametrize(
    "rules",
    [
        " " * (MAX_FILE_BYTES - 100) + "x",  # trailing spaces that are none
        "x\n!y\n" * (MAX_FILE_BYTES // 6),
        "*a*b*c*d\n" * (MAX_FILE_BYTES // 10),
        # Few enough in one directory, too many further down.
        "x\n!y\n" * (MAX_GROUPS // 5),
        "".join(f"**/d/no{number}\n" for number in range(MAX_PATTERNS // 2)),
    ],
    ids=["spaces", "groups", "patterns", "nested groups", "nested patterns"],
)
async def test_hostile_ignore_files_are_read_in_no_time_and_at_worst_give_no_rules(
    searched: Searched, rules: str
) -> None:
    """Each of these once took a search minutes, and the first one held the whole runner up meanwhile."""
    folder = ""
    for _ in range(6):
        searched.put(f"{folder}.gitignore", f"{rules}\nignored\n")
        for name in ("ignored", *map(str, range(100))):
            searched.put(folder + name, "needle\n")
        folder += "d/"
    found = await searched.hits("needle", gitignore=True, limit=1000)
    expected = {f"{'d/' * depth}{number}" for depth in range(6) for number in range(100)}
    not_left_out = {path for path, _ in found} - expected
    assert len(found) == len(expected) + len(not_left_out)
    assert not_left_out <= {f"{'d/' * depth}ignored" for depth in range(6)}


@pytest.mark.covers("FS-1", "FS-6")
async def test_an_ignore_file_that_is_a_link_or_too_large_gives_no_rules(searched: Searched) -> None:
    searched.put("a", "needle\n")
    (searched.outside / "rules").write_text("a\n")
    (searched.root / ".gitignore").symlink_to(searched.outside / "rules")
    assert await searched.hits("needle", gitignore=True) == [("a", 1)]
    (searched.root / ".gitignore").unlink()
    searched.put(".gitignore", "a\n" * MAX_FILE_BYTES)
    assert await searched.hits("^needle", gitignore=True) == [("a", 1)]
    (searched.root / ".gitignore").unlink()
    os.mkfifo(searched.root / ".gitignore")
    assert await searched.hits("needle", gitignore=True) == [("a", 1)]
