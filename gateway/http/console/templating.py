"""Templates and static files of the console, read once when the program starts.

Every value that a template writes is made visible, then escaped; markup comes out of templates alone. `exact` is for
the one place where text has to stay as it is: what a person edits. Refuses to know: what the pages are about. Used by
the console.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

from gateway.http.console.visible import exactly, hidden_characters, shown

TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class StaticFile:
    body: bytes
    media_type: str


def _read(folder: str) -> dict[str, bytes]:
    files = (resources.files("gateway.http.console") / folder).iterdir()
    return {file.name: file.read_bytes() for file in files if not file.name.startswith(".")}


# When the module is loaded, since the event loop must not wait for a disk.
_TEMPLATES = {name: body.decode() for name, body in _read("templates").items()}
STATIC: Mapping[str, StaticFile] = {
    name: StaticFile(body, TYPES[name[name.rindex(".") :]]) for name, body in _read("static").items()
}
BUILD = hashlib.sha256(
    b"".join(name.encode() + body for folder in ("templates", "static") for name, body in sorted(_read(folder).items()))
).hexdigest()[:16]
"""Of this state of the files: part of their addresses, so that browsers may keep them."""


def _finalize(value: Any) -> Any:
    """None is an error of ours, and would read as a word."""
    if value is None:
        raise TypeError("a template writes None")
    return value if isinstance(value, Markup) else shown(str(value))


def _exact(text: str) -> Markup:
    """After a line end, since a parser drops the first one of a textarea (HTML, 13.1.2.5)."""
    return Markup("\n") + escape(text)


_RIGHT_TO_LEFT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00010fff\U0001e800-\U0001efff"
_WORDS = re.compile(f"[{_RIGHT_TO_LEFT}]+(?: +[{_RIGHT_TO_LEFT}]+)*")


def _granted(text: str) -> Markup:
    """Of what a person decides on. Words that are written from right to left stand each for themselves, so that what
    is between two of them keeps its place: browsers would turn that around too (UAX 9)."""
    return Markup(_WORDS.sub(r"<bdi>\g<0></bdi>", str(escape(exactly(text)))))


def _moment(value: datetime) -> Markup:
    """UTC; the page's script puts it into the reader's own time."""
    utc = value.astimezone(UTC)
    exact = utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}">{} UTC</time>').format(exact, utc.strftime("%Y-%m-%d %H:%M:%S"))


def _size(size: int) -> str:
    for unit, least in (("MiB", 1024 * 1024), ("KiB", 1024)):
        if size >= least:
            return f"{size / least:.1f} {unit}"
    return f"{size} byte" if size == 1 else f"{size} bytes"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"


class Templates:
    def __init__(self) -> None:
        self._environment = Environment(
            loader=DictLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_finalize,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            exact=_exact, granted=_granted, moment=_moment, size=_size, cut=_cut, hidden=hidden_characters, words=_words
        )
        self._environment.globals["build"] = BUILD

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        return self._environment.get_template(name).render(values)


def _words(name: str) -> str:
    """A name of ours as words."""
    return name.replace("_", " ")
