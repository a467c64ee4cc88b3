"""Properties of the pure engine over random patches and files."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.v4a.engine import Plan, plan
from adapters.v4a.errors import PatchError
from adapters.v4a.model import Chunk, Patch, UpdateFile, render
from adapters.v4a.parser import parse
from tests.adapters.v4a.memory import MemoryView
from tests.adapters.v4a.strategies import file_texts, line_soup, patches, trees

pytestmark = pytest.mark.covers("PATCH-1")


def view_of(files: dict[str, str]) -> MemoryView:
    # A name that is a directory of another cannot be a file as well.
    return MemoryView({path: text.encode() for path, text in files.items()})


CODES = {
    "INVALID_PATCH", "FILE_NOT_FOUND", "ADD_FILE_EXISTS", "PATH_ESCAPE", "MOVE_DESTINATION_EXISTS",
    "SPECIAL_FILE_REJECTED", "PATH_NOT_DIRECTORY", "FILE_OPERATION_FAILED",
}  # fmt: skip


def outcome(text: str, view: MemoryView) -> Plan | PatchError:
    try:
        return plan(text, view)
    except PatchError as error:
        return error


@given(line_soup, trees)
def test_any_text_gives_a_plan_or_a_refusal(text: str, files: dict[str, str]) -> None:
    view = view_of(files)
    for candidate in (text, f"*** Begin Patch\n{text}\n*** End Patch"):
        done = outcome(candidate, view)
        if isinstance(done, PatchError):
            assert done.message.encode()
            assert done.code in CODES
        else:
            assert {change.path for change in done.changes} <= {target.path for target in done.targets}


@given(patches)
def test_a_rendered_patch_parses_to_itself(patch: Patch) -> None:
    for section in patch.sections:
        if isinstance(section, UpdateFile) and section.move_to == section.path:
            section.move_to = None
    parsed = parse(render(patch))
    for section in parsed.sections:
        section.line = 0
    assert parsed == patch


@given(patches, trees)
def test_the_same_patch_has_the_same_outcome_and_touches_only_its_names(patch: Patch, files: dict[str, str]) -> None:
    view = view_of(files)
    done, again = outcome(render(patch), view), outcome(render(patch), view)
    if isinstance(done, PatchError):
        assert isinstance(again, PatchError)
        assert (again.code, again.message, again.details) == (done.code, done.message, done.details)
        return
    assert again == done
    named = {section.path for section in patch.sections}
    named |= {s.move_to for s in patch.sections if isinstance(s, UpdateFile) and s.move_to}
    assert {target.path for target in done.targets} <= named
    untouched = {path: data for path, data in view.files.items() if path not in named}
    assert {path: data for path, data in view.after(done).items() if path not in named} == untouched


def edit(before: list[str], after: list[str]) -> Patch:
    """One chunk over the whole file that turns `before` into `after`."""
    chunk = Chunk()
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes():
        old, new = before[i1:i2], after[j1:j2]
        kinds = [" "] * len(old) if tag == "equal" else ["-"] * len(old) + ["+"] * len(new)
        chunk.kinds += kinds
        chunk.texts += old if tag == "equal" else old + new
    return Patch([UpdateFile("f", 0, None, [chunk])])


lines = st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=5), max_size=10)


@given(lines, lines, st.sampled_from(("\n", "\r\n")))
def test_apply_then_reverse_gives_the_start(before: list[str], after: list[str], ending: str) -> None:
    if not before or not after or before[0].startswith("\ufeff") or after[0].startswith("\ufeff"):
        return
    start = "".join(line + ending for line in before)
    there = plan(render(edit(before, after)), view_of({"f": start}))
    middle = there.targets[0].content
    assert middle is not None
    assert middle.decode() == "".join(line + ending for line in after)
    back = plan(render(edit(after, before)), MemoryView({"f": middle}))
    assert back.targets[0].content == start.encode()


@given(file_texts(), st.data())
def test_lines_outside_the_edit_keep_every_byte(text: str, data: st.DataObject) -> None:
    body = text.removeprefix("\ufeff")
    raw = body.split("\n")
    if len(raw) < 3:
        return
    place = data.draw(st.integers(0, len(raw) - 2))
    old = raw[place].removesuffix("\r")
    chunk = Chunk([], [" "] * place + ["-", "+"], [line.removesuffix("\r") for line in raw[:place]] + [old, "new line"])
    done = plan(render(Patch([UpdateFile("f", 0, None, [chunk])])), view_of({"f": text}))
    content = done.targets[0].content
    assert content is not None
    ending = "\r" if raw[place].endswith("\r") else ""
    expected = "\n".join([*raw[:place], "new line" + ending, *raw[place + 1 :]])
    assert content.decode() == text[: len(text) - len(body)] + expected
