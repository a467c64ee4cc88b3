"""Rules of the format that no case of the reference shows, and the texts of refusals."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.v4a.budget import Limits
from adapters.v4a.engine import plan
from adapters.v4a.errors import PatchError
from tests.adapters.v4a.memory import MemoryView, version

pytestmark = pytest.mark.covers("PATCH-1")


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"]) + "\n"


def update(path: str, *lines: str) -> str:
    return patch(f"*** Update File: {path}", *lines)


def applied(files: dict[str, str | bytes], text: str, **arguments: Any) -> dict[str, str]:
    view = view_of(files)
    after = view.after(plan(text, view, **arguments))
    return {path: data.decode("utf-8", "surrogateescape") for path, data in after.items()}


def view_of(files: dict[str, str | bytes]) -> MemoryView:
    return MemoryView({path: data.encode() if isinstance(data, str) else data for path, data in files.items()})


def refusal(files: dict[str, str | bytes], text: str, **arguments: Any) -> PatchError:
    with pytest.raises(PatchError) as caught:
        plan(text, view_of(files), **arguments)
    return caught.value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "nothing"),
        (" \n\t\n", "nothing"),
        ("*** Begin Patch", "no_end"),
        ("~~~\n*** Begin Patch\n*** End Patch\n~~~", "markdown_fence"),
        ("diff --git a/x b/x", "unified_diff"),
        ("Index: x\n--- a/x\n+++ b/x", "unified_diff"),
        ("hello", "no_begin"),
        ("<<EOF\nhello\n*** End Patch\nEOF", "no_begin"),
        ("*** Begin Patch\n*** Add File: a\n+\ud800\n*** End Patch", "not_unicode"),
        ("*** Begin Patch\n*** Add File: a\n*** End Patch\n*** End Patch\n*** End Patch", "text_after"),
        ("*** Begin Patch\n*** Environment ID: a\n*** Environment ID: a\n*** End Patch", "environment_id"),
    ],
)
def test_a_wrong_envelope_is_named_and_the_right_one_shown(text: str, found: str) -> None:
    error = refusal({}, text)
    assert (error.code, error.details) == ("INVALID_PATCH", {"reason": "invalid_patch", "found": found})
    assert "`*** Begin Patch`" in error.message
    assert "`*** End Patch`" in error.message


def test_a_unified_diff_inside_a_delete_is_named() -> None:
    error = refusal({"a": "1\n"}, patch("*** Delete File: a", "--- a/a", "+++ b/a"))
    assert error.details == {"reason": "invalid_hunk", "line": 3, "found": "unified_diff"}


def test_a_trailing_blank_context_that_loses_its_new_side_becomes_a_deletion() -> None:
    # OLD is "a", "", ""; the last is dropped, and NEW's last, the blank context, as well.
    assert applied({"f": "a\n\nb\n"}, update("f", "@@", "-a", "", "-")) == {"f": "b\n"}


def test_a_block_that_became_empty_fits_at_the_cursor_even_with_the_end_of_file_mark() -> None:
    assert applied({"f": "a\nb\n"}, update("f", "@@", "", "+x", "*** End of File")) == {"f": "\nx\na\nb\n"}


def test_a_patch_line_with_a_byte_order_mark_equals_only_the_first_line() -> None:
    assert applied({"f": "\ufeffa\na\n"}, update("f", "@@", "-\ufeffa", "+b")) == {"f": "\ufeffb\na\n"}
    assert refusal({"f": "a\na\n"}, update("f", "@@", "-\ufeffa", "+b")).details["reason"] == "lines_not_found"
    assert applied({"f": "\ufeffx\n\ufeffa\n"}, update("f", "@@", "-\ufeffa", "+b")) == {"f": "\ufeffx\nb\n"}


def test_a_byte_order_mark_is_dropped_from_the_first_new_line_after_a_deleted_one() -> None:
    text = update("f", "@@", "-a", "@@", "-b", "+\ufeffB")
    assert applied({"f": "\ufeffa\nb\n"}, text) == {"f": "\ufeffB\n"}
    assert applied({"f": "a\nb\n"}, text) == {"f": "\ufeffB\n"}


def test_three_moves_swap_two_files_and_their_origins() -> None:
    view = view_of({"a": "1\n", "b": "2\n"})
    done = plan(
        patch(
            "*** Update File: a", "*** Move to: t", "@@", " 1",
            "*** Update File: b", "*** Move to: a", "@@", " 2",
            "*** Update File: t", "*** Move to: b", "@@", " 1",
        ),
        view,
    )  # fmt: skip
    assert view.after(done) == {"a": b"2\n", "b": b"1\n"}
    assert [(change.path, change.kind, change.from_path) for change in done.changes] == [
        ("a", "update", None),
        ("b", "update", None),
    ]
    assert {target.path: target.origin for target in done.targets} == {"a": "b", "b": "a"}


def test_a_move_is_one_change_and_a_name_in_between_is_none() -> None:
    view = view_of({"a": "1\n"})
    steps = (
        "*** Update File: a",
        "*** Move to: b",
        "@@",
        "-1",
        "+2",
        "*** Update File: b",
        "*** Move to: c",
        "@@",
        " 2",
    )
    done = plan(patch(*steps), view)
    assert [(change.path, change.kind, change.from_path) for change in done.changes] == [("c", "move", "a")]
    assert [target.path for target in done.targets] == ["a", "c"]


def test_a_file_that_is_deleted_and_added_takes_nothing_of_the_old_one_along() -> None:
    done = plan(patch("*** Delete File: a", "*** Add File: a", "+1"), view_of({"a": "1\n"}))
    (target,) = done.targets
    assert (target.origin, target.before, target.unchanged) == (None, True, False)
    assert [change.kind for change in done.changes] == ["update"]


def test_context_alone_leaves_the_file_as_it_is() -> None:
    (target,) = plan(update("a", "@@", " 1"), view_of({"a": "1"})).targets
    assert target.unchanged
    assert target.content == b"1"


def test_a_directory_that_an_earlier_section_made_is_no_file() -> None:
    files: dict[str, str | bytes] = {}
    assert refusal(files, patch("*** Add File: d/x", "+1", "*** Add File: d", "+2")).code == "SPECIAL_FILE_REJECTED"
    assert refusal(files, patch("*** Add File: d", "+1", "*** Add File: d/x", "+2")).code == "PATH_NOT_DIRECTORY"
    freed = patch("*** Add File: d/x", "+1", "*** Delete File: d/x", "*** Add File: d", "+2")
    assert applied(files, freed) == {"d": "2\n"}


@pytest.mark.covers("PATCH-2")
def test_versions_are_compared_for_files_outside_the_patch_too_and_the_actual_ones_are_told() -> None:
    files: dict[str, str | bytes] = {"a": "1\n", "other": "2\n"}
    text = update("a", "@@", "-1", "+2")
    assert plan(text, view_of(files), {"other": version(b"2\n"), "a": version(b"1\n"), "gone": "absent"}).changes
    error = refusal(files, text, expected_versions={"other": "absent", "gone": version(b"x")})
    assert error.code == "VERSION_CONFLICT"
    assert error.details["conflicts"] == [
        {"path": "other", "expected": "absent", "actual": version(b"2\n")},
        {"path": "gone", "expected": version(b"x"), "actual": "absent"},
    ]
    assert refusal(files, text, expected_versions={"../x": "absent"}).code == "PATH_ESCAPE"


@pytest.mark.covers("PATCH-2")
@pytest.mark.parametrize("order", [1, -1])
def test_a_stale_version_is_a_conflict_however_its_name_is_spelled_and_whatever_another_spelling_says(
    order: int,
) -> None:
    files: dict[str, str | bytes] = {"d/a": "1\n"}
    text = update("d/a", "@@", "-1", "+2")
    spelled = [("d/a", version(b"1\n")), ("./d/./a", "absent")][::order]
    error = refusal(files, text, expected_versions=dict(spelled))
    assert error.code == "VERSION_CONFLICT"
    assert error.details["conflicts"] == [{"path": "d/a", "expected": "absent", "actual": version(b"1\n")}]
    agreed = {name: version(b"1\n") for name, _ in spelled}
    assert plan(text, view_of(files), agreed).changes


@pytest.mark.covers("BOX-7")
@pytest.mark.parametrize("name", [".git/hooks", ".git/hooks/pre-commit", "./.git/./config", ".git"])
def test_a_protected_name_is_refused_at_below_and_above_it(name: str) -> None:
    protect = (".git/hooks", ".git/config")
    files: dict[str, str | bytes] = {"a": "1\n", ".git/HEAD": "x\n"}
    for text in (
        patch(f"*** Add File: {name}", "+x"),
        patch(f"*** Delete File: {name}"),
        update("a", f"*** Move to: {name}", "@@", "-1", "+2"),
        patch("*** Add File: fine", "+x", f"*** Update File: {name}", "@@", "-1", "+2"),
    ):
        error = refusal(files, text, protect=protect)
        assert (error.code, error.details["path"]) == ("UNAUTHORIZED", name.replace("./", ""))
    assert applied(files, update(".git/HEAD", "@@", "-x", "+y"))[".git/HEAD"] == "y\n"


@pytest.mark.covers("BOX-7")
@pytest.mark.parametrize(
    "name",
    [".GIT/hooks/x", ".git/Hooks", ".gIT", ".g\u200cit/config", ".git./hooks/x", ".git /hooks/x", ".git/config.",
     "stra\u00dfe/x", "STRASSE", "cafe\u0301/x", "CAF\u00c9"],
)  # fmt: skip
def test_a_protected_name_is_refused_in_every_spelling_that_some_file_system_takes_for_it(name: str) -> None:
    protect = (".git/hooks", ".git/config", "Strasse", "caf\u00e9")
    error = refusal({}, patch(f"*** Add File: {name}", "+x"), protect=protect)
    assert (error.code, error.details["path"]) == ("UNAUTHORIZED", name)
    for other in (".git/HEAD", ".gitignore", "git/hooks", "hooks", ".git.d/x", "cafe", "..."):
        assert applied({}, patch(f"*** Add File: {other}", "+x"), protect=protect) == {other: "x\n"}


def test_a_refusal_says_where_the_longest_beginning_is_and_what_differs() -> None:
    files: dict[str, str | bytes] = {"f": b"a\nb\nc\na\nb\nd\xff\n"}
    error = refusal(files, update("f", "@@", " a", " b", "-x", "+y"))
    assert "first 2 lines are found at line 1; then line 3 differs: expected `x`, the file has `c`" in error.message
    error = refusal(files, update("f", "@@", " c", " a", " b", "-d", "+y"))
    assert "line 6 differs: expected `d`, the file has `d\ufffd`" in error.message
    error = refusal(files, update("f", "@@", "-c", "+C", "@@", "-b", "-c", "+y"))
    assert "stand at line 2, before the end of the chunk above (line 3)" in error.message
    error = refusal(files, update("f", "@@", "-1\ta", "-2\tb", "+y"))
    assert "line numbers of a reader" in error.message
    error = refusal(files, update("f", "@@", "-nowhere", "-c", "+y"))
    assert "`nowhere`, is nowhere in the file; line 2 of the chunk's old lines, `c`, stands at line 3" in error.message


def test_messages_quote_little_of_a_long_line() -> None:
    error = refusal({"f": "x" * 100_000}, update("f", "@@", "-" + "y" * 100_000, "+z"))
    assert len(error.message) < 1_000


HOSTILE = {
    "equal headers that backtrack": ("A\n" * 6_000, ["@@ A"] * 5_900 + ["@@ C", "-B"]),
    "headers that fit in every pass": (" A\nA \nA\n A \n" * 10_000 + "B\n", ["@@ A"] * 39_000 + ["-C"]),
    "blocks that almost fit": ("a\n" * 99 + "c\n", ["@@", *["-a"] * 99, "-b"]),
    "chunks that fit by a loose pass alone": (" a\n" * 30_000 + "a\n", ["@@", *["-a"] * 99] * 300),
    "thousands of uncertain places": ("}\n" * 50_000, ["@@", "-}", "+]"] * 20_000),
    "a line of combining marks": ("e" + "\u0301\u0323" * 200_000 + "\n", ["@@", "-\u00e9", "+e"]),
    "a long line of white space": (" " * 1_000_000 + "z\n", ["@@", "-z z", "+e"]),
}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("equal headers that backtrack", "context_not_found"),
        ("headers that fit in every pass", "too_costly"),
        ("blocks that almost fit", "lines_not_found"),
        ("chunks that fit by a loose pass alone", None),
        ("thousands of uncertain places", "too_costly"),
        ("a line of combining marks", "lines_not_found"),
        ("a long line of white space", "lines_not_found"),
    ],
)
def test_a_hostile_patch_is_answered_within_its_budget(name: str, reason: str | None) -> None:
    text, lines = HOSTILE[name]
    view = view_of({"f": text})
    limits = Limits(max_steps=30_000_000)
    if reason is None:
        assert plan(update("f", *lines), view, limits=limits).changes
    else:
        assert refusal({"f": text}, update("f", *lines), limits=limits).details["reason"] == reason


@pytest.mark.parametrize(
    ("limit", "value", "files", "text"),
    [
        ("max_steps", 1_000, {"f": "a\n" * 1_000}, update("f", "@@", "-b")),
        ("max_files", 2, {}, patch(*(f"*** Add File: {n}" for n in range(3)))),
        ("max_file_bytes", 3, {"f": "a\nb\n"}, update("f", "@@", "-b")),
        ("max_lines", 3, {"f": "a\n" * 4}, update("f", "@@", "-b")),
        ("max_content_bytes", 3, {"f": "a\nb\n"}, update("f", "@@", "-b")),
        ("max_name_bytes", 3, {}, patch("*** Add File: long")),
        ("max_warning_bytes", 50, {"f": "a\na\n"}, update("f", "@@", "-a")),
    ],
)
def test_a_limit_that_is_met_is_named(limit: str, value: int, files: dict[str, str | bytes], text: str) -> None:
    error = refusal(files, text, limits=Limits(**{limit: value}))
    assert error.details == {"reason": "too_costly", "limit": limit, "bound": value}
    assert limit in error.message


def test_a_patch_over_the_size_limit_is_too_large() -> None:
    error = refusal({}, patch("*** Add File: f", "+" + "\u00e9" * 60), limits=Limits(max_patch_bytes=150))
    assert error.details["reason"] == "too_large"
    assert "max_patch_bytes" in error.message
