"""The engine beside a plain reading of the format's reference, on random files and chunks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.v4a.engine import plan
from adapters.v4a.errors import PatchError
from adapters.v4a.model import Chunk, Patch, UpdateFile, render
from adapters.v4a.text import shorten
from tests.adapters.v4a.memory import MemoryView
from tests.adapters.v4a.reference import Reference

WORDS = ("a", "b", "", " a", "a ", "\u2013", "-", "e\u0301", "\u00e9", "\ufeffa")
words = st.sampled_from(WORDS)


@st.composite
def texts(draw: st.DrawFn) -> str:
    lines = draw(st.lists(st.tuples(words, st.sampled_from(("\n", "\n", "\r\n", "\r\r\n"))), max_size=9))
    return (
        draw(st.sampled_from(("", "", "\ufeff"))) + "".join(map("".join, lines)) + draw(st.sampled_from(("", "", "a")))
    )


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    headers = draw(st.lists(st.sampled_from([word for word in WORDS if word.rstrip() == word != ""]), max_size=3))
    lines = draw(st.lists(st.tuples(st.sampled_from("  -+"), words), min_size=1, max_size=4))
    kinds, line_texts = zip(*lines, strict=True)
    return Chunk(headers, list(kinds), list(line_texts), draw(st.sampled_from((False, False, False, True))))


@settings(max_examples=settings().max_examples * 4)
@pytest.mark.covers("PATCH-1")
@given(texts(), st.lists(chunks(), min_size=1, max_size=3))
def test_the_engine_does_what_a_plain_reading_of_the_reference_does(text: str, made: list[Chunk]) -> None:
    section = UpdateFile("f", 0, None, made)
    plain = Reference(text, section)
    view = MemoryView({"f": text.encode()})
    patch = render(Patch([section]))
    refusal = plain.run()
    if refusal is not None:
        with pytest.raises(PatchError) as caught:
            plan(patch, view)
        details = caught.value.details
        assert (details["reason"], details["chunk"]) == (refusal.reason, refusal.chunk)
        if refusal.header is not None:
            assert f"context `{shorten(refusal.header)}`" in caught.value.message
        return
    done = plan(patch, view)
    content = done.targets[0].content
    assert content is not None
    assert content.decode() == plain.result()
    assert list(done.warnings) == plain.warnings
