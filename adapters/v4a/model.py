"""A parsed patch: plain data between the parser, the matcher and the engine. It knows no file."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Chunk:
    """One place of an Update. `headers`: texts after `@@ `, bare ones left out. `kinds` and `texts` run in parallel:
    the kind of a line is ' ', '-' or '+', its text is all that follows it. `end_of_file`: only the very end fits."""

    headers: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    end_of_file: bool = False

    def old(self) -> list[str]:
        """Context and old lines, in order."""
        return [text for kind, text in zip(self.kinds, self.texts, strict=True) if kind != "+"]

    def without_trailing_blank(self) -> Chunk:
        """The same chunk after its last OLD line, which is empty, lost its old side, and the last NEW line its new
        side if that is empty too. A line that loses both sides is gone."""
        kinds = list(self.kinds)
        last_old = max(i for i, kind in enumerate(kinds) if kind != "+")
        last_new = max((i for i, kind in enumerate(kinds) if kind != "-"), default=-1)
        kinds[last_old] = "+" if kinds[last_old] == " " else ""
        if last_new >= 0 and self.texts[last_new] == "":
            kinds[last_new] = "-" if kinds[last_new] == " " else ""
        kept = [i for i, kind in enumerate(kinds) if kind]
        return Chunk(self.headers, [kinds[i] for i in kept], [self.texts[i] for i in kept], self.end_of_file)


@dataclass
class AddFile:
    """`content`: the lines after `+`, each with LF. `line`: of the header, in the patch."""

    path: str
    line: int
    lines: list[str] = field(default_factory=list)

    @property
    def content(self) -> str:
        return "".join([line + "\n" for line in self.lines])


@dataclass
class DeleteFile:
    path: str
    line: int


@dataclass
class UpdateFile:
    """`move_to`: the new name, if any. At least one chunk, each with at least one line."""

    path: str
    line: int
    move_to: str | None = None
    chunks: list[Chunk] = field(default_factory=list)


Section = AddFile | DeleteFile | UpdateFile


@dataclass
class Patch:
    """`environment_id`: the patch carried that line, which selects nothing."""

    sections: list[Section] = field(default_factory=list)
    environment_id: bool = False


def render(patch: Patch) -> str:
    """The strict form of `patch`: parsing it gives an equal patch. Meant for tests and for teaching."""
    lines = ["*** Begin Patch"]
    if patch.environment_id:
        lines.append("*** Environment ID: ignored")
    for section in patch.sections:
        match section:
            case AddFile():
                lines += [f"*** Add File: {section.path}", *("+" + line for line in section.lines)]
            case DeleteFile():
                lines.append(f"*** Delete File: {section.path}")
            case UpdateFile():
                lines.append(f"*** Update File: {section.path}")
                if section.move_to is not None:
                    lines.append(f"*** Move to: {section.move_to}")
                for chunk in section.chunks:
                    lines += [f"@@ {header}" for header in chunk.headers] or ["@@"]
                    lines += [kind + text for kind, text in zip(chunk.kinds, chunk.texts, strict=True)]
                    lines += ["*** End of File"] if chunk.end_of_file else []
    return "\n".join([*lines, "*** End Patch"]) + "\n"
