"""Random files and patches that mostly fit them, for properties and for parity with the upstream engine."""

from __future__ import annotations

from hypothesis import strategies as st

from adapters.v4a.model import AddFile, Chunk, DeleteFile, Patch, UpdateFile

WORDS = (
    "a",
    "b",
    "c",
    "",
    " a",
    "a ",
    "\ta",
    "caf\u00e9",
    "cafe\u0301",
    "\u201cx\u201d",
    '"x"',
    "\u2013",
    "-",
    "@@",
    "*** End Patch",
)
PATHS = ("f", "g", "d/f", "d/e/g")

words = st.sampled_from(WORDS)
endings = st.sampled_from(("\n", "\n", "\n", "\r\n"))


@st.composite
def file_texts(draw: st.DrawFn) -> str:
    """Lines of few words, so that blocks repeat; mixed endings; perhaps a BOM, perhaps no final newline."""
    lines = draw(st.lists(st.tuples(words, endings), max_size=12))
    text = "".join(word + ending for word, ending in lines) + draw(st.sampled_from(("", "", "a")))
    return draw(st.sampled_from(("", "", "", "\ufeff"))) + text


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    lines = draw(st.lists(st.tuples(st.sampled_from(" -+"), words), min_size=1, max_size=6))
    headers = draw(st.lists(st.sampled_from([w for w in WORDS if w.strip() == w and w]), max_size=2))
    kinds, texts = zip(*lines, strict=True)
    return Chunk(headers, list(kinds), list(texts), draw(st.sampled_from((False, False, False, True))))


paths = st.sampled_from(PATHS)
updates = st.builds(UpdateFile, paths, st.just(0), st.none() | paths, st.lists(chunks(), min_size=1, max_size=3))
adds = st.builds(AddFile, paths, st.just(0), st.lists(words, max_size=4))
deletes = st.builds(DeleteFile, paths, st.just(0))
patches = st.builds(Patch, st.lists(updates | updates | adds | deletes, min_size=1, max_size=4), st.booleans())
trees = st.dictionaries(paths, file_texts(), max_size=4)
LINES = (
    "*** Begin Patch", "*** End Patch", "*** Add File: f", "*** Update File: f", "*** Delete File: f",
    "*** Move to: g",
    "*** Environment ID: x", "*** End of File", "@@", "@@ a", "+a", "-a", " a", "", "a", "--- a", "<<EOF", "EOF",
    "\r", "\t",
)  # fmt: skip
line_soup = st.lists(st.sampled_from(LINES) | st.text(max_size=4), max_size=14).map("\n".join)
