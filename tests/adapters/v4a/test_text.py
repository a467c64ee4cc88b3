"""White space, lines, quoting and normal forms."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.v4a.text import PASSES, WHITE_SPACE, lines_of, nfc, shorten, trim

pytestmark = pytest.mark.covers("PATCH-1")

marks = st.sampled_from("\u0301\u0323\u0344\u0f73\u0f71\u0f75\u0338\u3099\U0001d165\u05b0a\u00e9")


@given(st.text(marks, min_size=1, max_size=8), st.integers(1, 60), st.text(marks, max_size=8))
def test_long_runs_of_marks_have_the_normal_form_of_the_library(run: str, times: int, after: str) -> None:
    for text in (run * times + after, "e" + "".join(sorted(run)) * times + after):
        assert nfc(text) == unicodedata.normalize("NFC", text)


def test_white_space_is_the_unicode_property_and_no_more() -> None:
    # Python counts the information separators in as well.
    assert {chr(code) for code in range(0x110000) if chr(code).isspace()} - set("\x1c\x1d\x1e\x1f") == set(WHITE_SPACE)
    assert trim("\u3000\x1f \ufeff\x85") == "\x1f \ufeff"


@given(st.text(st.sampled_from("ab\n\r\u2028"), max_size=40))
def test_only_line_feeds_end_lines(text: str) -> None:
    assert list(lines_of(text)) == text.split("\n")
    assert list(lines_of(text * 5_000)) == (text * 5_000).split("\n")


@given(st.text(max_size=300))
def test_a_quote_is_short_and_valid(text: str) -> None:
    quoted = shorten(text + "\udcff", 50)
    assert len(quoted) <= 50
    assert quoted.encode()
    assert "\n" not in quoted


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=6), max_size=5))
def test_each_pass_is_as_loose_as_the_one_before_on_equal_lines(lines: list[str]) -> None:
    for _, keys in PASSES:
        assert keys(lines) == keys(list(lines))
        assert len(keys(lines)) == len(lines)


@given(st.text(st.sampled_from("a-\u2010\u2212\u2019\u201c\u00a0\u2009\u3000x\u00e9"), min_size=1, max_size=8))
def test_long_lines_have_the_keys_that_short_ones_have(part: str) -> None:
    for _, keys in PASSES:
        # Letters around, so that trimming takes nothing away in between.
        (short,) = keys([f"x{part}x"])
        assert keys([f"x{part}x" * 400]) == [short * 400]
