"""What becomes of text before it is shown: output with colours, characters that are not seen, patches in parts."""

from __future__ import annotations

import html
import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.console import diff
from gateway.http.console.ansi import MAX_RUNS, RECOGNISED, Renderer
from gateway.http.console.templating import Templates
from gateway.http.console.visible import PICTURES, escaped, exactly, hidden_characters, shown

pytestmark = pytest.mark.timeout(60)

TEMPLATES = Templates()
PIECES = st.sampled_from(
    [
        *("\x1b[31m", "\x1b[1;38;5;208m", "\x1b[48;2;1;2;3m", "\x1b[m", "\x1b[K", "\x1b(B", "\x1b[38;5m", "\x1b[999m"),
        *("\x1b[2J", "\x1b]0;title\x07", "\x1b", "\x1b[", "\x1b[3", "\x1b[31", "m", "[31m", "\x9b31m", "\x1bc"),
        *("<script>alert(1)</script>", "&amp;", "\u202e", "\x00", "\r", "\r\n", "\n", "\t", "\x7f", "ä", "\U0001f600"),
    ]
)
OUTPUT = st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=30).map("".join)


def plain(text: str) -> str:
    """What the renderer promises to show of an output."""
    return shown(RECOGNISED.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


@given(OUTPUT, st.lists(st.integers(0, 200), max_size=6))
def test_the_text_of_runs_is_the_output_without_the_colours_however_it_is_cut(text: str, cuts: list[int]) -> None:
    renderer = Renderer()
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    runs = [run for start, end in itertools.pairwise(places) for run in renderer.feed(text[start:end])]
    runs += renderer.feed("", final=True)
    assert "".join(run.text for run in runs) == plain(text)


@given(OUTPUT)
def test_no_output_becomes_markup_or_steers_a_terminal(text: str) -> None:
    runs = Renderer().feed(text, final=True)
    assert all(re.fullmatch(r"(?:[a-z]+|[fb]\d{1,3})?(?: (?:[a-z]+|[fb]\d{1,3}))*", run.classes) for run in runs)
    assert not any(chr(code) in run.text for run in runs for code in PICTURES if code != 0x0D)
    page = TEMPLATES.render("refused.html", {"why": text, "version": "1"})
    inside = page[page.index('role="alert">') + 13 :].partition("</p>")[0]
    assert not set(inside) & set("<>\"'")
    assert html.unescape(inside) == shown(text)


@pytest.mark.parametrize(
    ("escape", "classes"),
    [
        ("\x1b[31m", "f1"),
        ("\x1b[91;44m", "f9 b4"),
        ("\x1b[1;3;4;9m", "bold italic underline strike"),
        ("\x1b[38;5;208m", "f208"),
        ("\x1b[38;5;256m", ""),
        ("\x1b[48;2;255;0;0m", "b196"),
        ("\x1b[38:2:8:8:8m", "f232"),
        ("\x1b[38;2;255;255;255m", "f231"),
        ("\x1b[31;41m", "f1"),
        ("\x1b[7m", "ground ink"),
        ("\x1b[7;32m", "ground b2"),
        ("\x1b[8m", ""),
        ("\x1b[31m\x1b[0m", ""),
        ("\x1b[1;2m\x1b[22m", ""),
        ("\x1b[31;42m\x1b[39;49m", ""),
        ("\x1b[38;5m", ""),
        ("\x1b[99999999m", ""),
    ],
)
def test_colours_are_kept(escape: str, classes: str) -> None:
    assert [(run.text, run.classes) for run in Renderer().feed(f"{escape}x")] == [("x", classes)]


def test_a_pen_holds_from_one_piece_to_the_next() -> None:
    renderer = Renderer()
    assert [run.classes for run in renderer.feed("\x1b[3")] == []
    assert [(run.text, run.classes) for run in renderer.feed("1mred")] == [("red", "f1")]
    assert [(run.text, run.classes) for run in renderer.feed(" still")] == [(" still", "f1")]


@pytest.mark.parametrize("between", ["", "\x1b[m", "\x1b[K\x1b[32m"])
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_line_end_of_two_characters_is_one_whatever_stands_between_them(between: str, cut: int) -> None:
    text = f"a\r{between}\nb\rc\r"
    renderer = Renderer()
    runs = renderer.feed(text[:cut]) + renderer.feed(text[cut:]) + renderer.feed("", final=True)
    assert "".join(run.text for run in runs) == "a\nb\nc\n"


def test_output_that_changes_colour_at_every_character_makes_no_more_runs_than_the_bound() -> None:
    text = "".join(f"\x1b[3{n % 8}mx" for n in range(3 * MAX_RUNS))
    runs = Renderer().feed(text)
    assert len(runs) <= MAX_RUNS + 1
    assert sum(len(run.text) for run in runs) == 3 * MAX_RUNS


def test_what_would_not_be_seen_is_named() -> None:
    assert shown("a\u202eb\x1b[1m\x00\u200b") == "a⟦U+202E⟧b⟦ESC⟧[1m⟦NUL⟧⟦U+200B⟧"
    assert shown("tab\tline\n\u200d\ufe0f ä \U0001f600") == "tab\tline\n\u200d\ufe0f ä \U0001f600"
    assert hidden_characters("a\u202eb\r\n\x07") == 2


def test_a_name_is_not_made_another_one_by_letters_that_are_blank() -> None:
    for code in (0x34F, 0x115F, 0x1160, 0x3164, 0xFFA0, 0xFFF8, 0x1D173, 0xE00FF, 0xE0FFF):
        assert shown(f"a{chr(code)}b") == f"a⟦U+{code:04X}⟧b"


@pytest.mark.parametrize(
    "hidden",
    [
        *(
            "a\u200db",
            "a\u200d",
            "\u200cb",
            "é\u200dé",
            "\u043d\u200c\u043d",
            "\u4e2d\u200d b",
            "\u0645\u200d\u200d\u0645",
        ),
        *("a\ufe0fb", "\ufe00", "a\U000e0100", "\u4e2d\ufe00\ufe01", "\x80\ufe00", "a\ufe0f\u200d\u4e2d"),
        *("rm\xa0-rf", "a\u3000b", "a\u202fb", "a\u2003b", "a\u2800b"),
    ],
)
def test_what_somebody_decides_by_has_no_joiner_that_joins_nothing_and_no_space_that_is_none(hidden: str) -> None:
    assert "⟦U+" in exactly(hidden)
    assert shown(exactly(hidden)) == exactly(hidden)


@pytest.mark.parametrize(
    "seen",
    [
        *("plain\ttext\n", "\U0001f469\u200d\U0001f469", "\u2764\ufe0f\u200d\U0001f525", "1\ufe0f\u20e3", "©\ufe0f"),
        *("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0915\u094d\u200d\u0937", "\u845b\U000e0100", "\u0645"),
    ],
)
def test_emoji_and_scripts_keep_what_they_need_where_somebody_decides(seen: str) -> None:
    assert exactly(seen) == seen


@given(st.lists(st.one_of(PIECES, st.characters(), st.sampled_from("\u200d\ufe0f\xa0\U000e0100\x7f"))).map("".join))
def test_a_command_as_a_file_hides_nothing_and_means_the_same(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    told = escaped(json.dumps([text], indent=2, ensure_ascii=False))
    assert json.loads(told) == [text]
    assert exactly(told) == told


def test_what_stands_between_words_from_right_to_left_keeps_its_place() -> None:
    granted = TEMPLATES._environment.filters["granted"]
    line = '"\u05d0" && <"\u05d1 \u05d2">'
    assert granted(line) == ("&#34;<bdi>\u05d0</bdi>&#34; &amp;&amp; &lt;&#34;<bdi>\u05d1 \u05d2</bdi>&#34;&gt;")


def test_a_template_that_writes_nothing_at_all_is_an_error() -> None:
    with pytest.raises(TypeError):
        Templates().render("refused.html", {"why": None, "version": "1"})


# --- patches ----------------------------------------------------------------------------------------------------------
def whole(text: str) -> tuple[str, list[diff.Part]]:
    """What all parts together show."""
    first = diff.part_of(text, 1)
    parts = [diff.part_of(text, n) for n in range(1, first.parts + 1)]
    lines: list[str] = []
    for line in (line for part in parts for line in part.lines):
        if line.number is None:
            lines[-1] += line.text
        else:
            lines.append(line.text)
            assert line.number == len(lines)
    return "\n".join(lines), parts


@given(st.text(alphabet="+-@* \nab\r", max_size=400), st.integers(1, 50))
def test_the_parts_of_a_patch_are_all_of_it(text: str, most: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(diff, "PART_CHARS", most)
        shown_text, parts = whole(text)
        assert shown_text == text.removesuffix("\n")
        assert all(sum(len(line.text) + 1 for line in part.lines) <= most + 1 for part in parts)
        kinds = [line.kind for part in parts for line in part.lines if line.number is not None]
        assert (parts[0].added, parts[0].removed) == (kinds.count("add"), kinds.count("remove"))


def test_a_large_patch_is_shown_in_bounded_parts_and_none_of_it_is_lost() -> None:
    for text in ("+short\n" * 20_000, "\n" * 20_000, "-" + "x" * 300_000, "+a\n" + "-" + "x" * 200_000 + "\n+b"):
        shown_text, parts = whole(text)
        assert shown_text == text.removesuffix("\n")
        assert all(sum(len(line.text) for line in part.lines) <= diff.PART_CHARS for part in parts)
        assert all(len(part.lines) <= diff.PART_LINES + 1 for part in parts)
    assert {line.kind for line in diff.part_of("-" + "x" * 1_000_000, 5).lines} == {"remove"}
    assert diff.part_of("+short\n" * 100_000, 0).part == 1
    assert diff.part_of("+short\n" * 100_000, 10**6).part == diff.part_of("+short\n" * 100_000, 1).parts


def test_lines_of_a_patch_have_their_kinds() -> None:
    text = "*** Update File: a\n@@ class A:\n same\n-old\n+new\n\n*** Move to: b\n*** Delete File: c"
    kinds = [line.kind for line in diff.part_of(text, 1).lines]
    assert kinds == ["file", "mark", "same", "remove", "add", "same", "file", "file"]
    assert diff.files_of(text, 2) == ["Update a", "Move to b", "and 1 more"]
    assert diff.files_of("*** Add File: a\n+x\n \t*** Delete File: b", 4) == ["Add a", "Delete b"]


def test_where_parts_begin_is_found_in_one_go() -> None:
    """Of a patch that is line ends alone each part would be counted to its end again: 1 000 times 4 MiB."""

    class Counted(str):
        seen = 0

        def count(self, sub: str, *place: int) -> int:  # type: ignore[override]
            Counted.seen += len(self[slice(*(place or (None,)))])
            return super().count(sub, *place)

    text = Counted("\n" * 1_000_000)
    assert len(diff._starts(text)) == 1_000_000 // diff.PART_LINES
    assert Counted.seen <= 2 * len(text)
