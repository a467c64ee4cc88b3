#!/usr/bin/env python3
"""Checks the boundaries of the source tree: who imports whom, which packages, no model SDK and no model endpoint.

Runs alone, with the standard library, on a tree that is not installed: `python3 tools/check_boundaries.py [ROOT]`. It
reads source text and never imports it. What is allowed stands in `tools/allowed_dependencies.toml`. It finds what it
scans for and proves no absence: a host read from a file, or a name put together at run time, escapes it. `make lint`
calls it.

Exit status: 0 nothing found, 1 findings (one line each: place, rule, what, remedy), 2 it could not run.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

OURS = ("gateway", "runner", "sandbox_helper", "adapters")
SKIPPED_FOLDERS = {".git", ".venv", "__pycache__", "build", "dist", "results", "node_modules", "wheelhouse"}
TEXT_SUFFIXES = {
    "",
    ".cfg",
    ".conf",
    ".ini",
    ".json",
    ".md",
    ".py",
    ".service",
    ".sh",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
}
MAX_TEXT_BYTES = 4 * 1024 * 1024
REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:[\[=<>!~;@ (]|$)")
DYNAMIC_IMPORTS = {"import_module", "__import__", "run_module"}


@dataclass(frozen=True, order=True)
class Finding:
    """One line of the report. `line` counts from 1; 0 stands for the whole file."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


@dataclass(frozen=True)
class Import:
    """One imported name, absolute. `name` is None where it is computed at run time."""

    line: int
    name: str | None


def normalised(name: str) -> str:
    """A distribution's name as the registries compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def below(name: str, prefixes: Iterable[str]) -> bool:
    """Whether `name` is one of the dotted `prefixes` or inside one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def module_name(path: Path) -> str:
    """Dotted name of a source file given relative to the root."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, module: str, is_package: bool, exists: Callable[[str], bool]) -> Iterator[Import]:
    """Every import of a parsed file, wherever it stands, relative ones resolved.

    `from a import b` yields `a.b` where that is a module (`exists`), else `a`. Calls of import_module, __import__ and
    run_module count as imports.
    """
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(node.lineno, inner if exists(inner) or alias.name == "*" or not base else base)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if called in DYNAMIC_IMPORTS and node.args:
                argument = node.args[0]
                known = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                yield Import(node.lineno, argument.value if known else None)  # type: ignore[attr-defined]


def files_below(root: Path) -> list[Path]:
    """Every regular file of the tree, sorted, without generated folders."""
    found: list[Path] = []
    folders = [root]
    while folders:
        for entry in sorted(folders.pop().iterdir()):
            if entry.is_symlink() or entry.name in SKIPPED_FOLDERS or entry.name.endswith((".egg-info", "_cache")):
                continue
            if entry.is_dir():
                folders.append(entry)
            elif entry.is_file():
                found.append(entry)
    return sorted(found)


class Checker:
    """The rules over one tree. Reads files only."""

    def __init__(self, root: Path, allowed: dict[str, Any]) -> None:
        self.root = root
        self.packages: dict[str, dict[str, Any]] = allowed["packages"]
        self.components: dict[str, dict[str, Any]] = allowed["components"]
        self.forbidden: dict[str, Any] = allowed["forbidden"]
        self.pin: dict[str, str] = allowed["v4a_pin"]
        self.declarable = {normalised(name) for name in [*self.packages, *allowed["development"]["names"]]}
        self.lockable = self.declarable | {normalised(name) for name in allowed["transitive"]["names"]}
        self.files = files_below(root)
        self.python = [path for path in self.files if path.suffix == ".py"]
        self.modules = {module_name(path.relative_to(root)) for path in self.python}

    def run(self) -> list[Finding]:
        """All findings, sorted."""
        checks = (self.check_imports, self.check_manifests, self.check_text, self.check_pin)
        return sorted({finding for check in checks for finding in check()})

    def check_imports(self) -> Iterator[Finding]:
        """Direction between our packages, packages of each component, and forbidden modules in every Python file."""
        for path in self.python:
            relative = path.relative_to(self.root)
            module = module_name(relative)
            try:
                tree = ast.parse(path.read_bytes(), filename=str(relative))
            except (SyntaxError, ValueError) as error:
                yield Finding(
                    str(relative), getattr(error, "lineno", 0) or 0, "syntax", f"cannot be read: {error}: mend it"
                )
                continue
            for found in imports_of(tree, module, path.name == "__init__.py", self.modules.__contains__):
                for rule, message in self.judge(module, found.name):
                    yield Finding(str(relative), found.line, rule, message)

    def judge(self, module: str, name: str | None) -> Iterator[tuple[str, str]]:
        """What is wrong with `module` importing `name`, as (rule, message)."""
        if name is not None and below(name, self.forbidden["modules"]):
            yield "model-sdk", f"{name} is a model SDK: remove it"
            return
        if module.split(".")[0] not in OURS:
            return
        if name is None:
            yield "dynamic-import", "the imported name is computed, so it cannot be checked: write an import statement"
            return
        fitting = [prefix for prefix in self.components if below(module, [prefix])]
        if not fitting:
            yield "component", f"{module} belongs to no component: add one to tools/allowed_dependencies.toml"
            return
        component = self.components[max(fitting, key=len)]
        top = name.split(".")[0]
        if top in OURS or top in ("tests", "benchmarks", "tools"):
            if not below(name, component["ours"]) and name not in OURS:
                yield "direction", f"{module} may not import {name}: depend on the contract or the port instead"
        elif top not in sys.stdlib_module_names and top != "__future__":
            package = next(
                (key for key, value in self.packages.items() if top in value["modules"]), top.replace("_", "-")
            )
            only_in = self.packages.get(package, {}).get("only_in")
            if only_in and module not in only_in:
                yield "one-place", f"{package} is imported in {' and '.join(only_in)} alone: use that module"
            elif package not in component["packages"]:
                yield "package", f"{module} may not import {top} ({package}): see tools/allowed_dependencies.toml"

    def check_manifests(self) -> Iterator[Finding]:
        """Every dependency of every manifest in the tree is allowed by name; every allowed package is declared."""
        declared: set[str] = set()
        for path in self.files:
            relative = str(path.relative_to(self.root))
            if path.name == "pyproject.toml":
                project = tomllib.loads(path.read_text(encoding="utf-8"))
                tables = project.get("project", {})
                lines = [*tables.get("dependencies", []), *chain(*tables.get("optional-dependencies", {}).values())]
                lines += chain(*project.get("dependency-groups", {}).values())
                names = [(0, line) for line in lines if isinstance(line, str)]
                declared |= {normalised(match[1]) for _, line in names if (match := REQUIREMENT.match(line))}
                yield from self.judge_names(relative, names, self.declarable)
            elif path.suffix in (".txt", ".in") and ("requirements" in path.parts or "requirements" in path.stem):
                text = path.read_text(encoding="utf-8").splitlines()
                yield from self.judge_names(relative, enumerate(text, 1), self.lockable)
            elif path.name in (
                "setup.py",
                "setup.cfg",
                "Pipfile",
                "environment.yml",
                "package.json",
                "go.mod",
                "Cargo.toml",
            ):
                yield Finding(
                    relative, 0, "manifest", "a second manifest: declare dependencies in pyproject.toml alone"
                )
        if (self.root / "pyproject.toml").exists():
            for name in sorted(self.packages):
                if normalised(name) not in declared:
                    yield Finding(
                        "pyproject.toml", 0, "manifest", f"{name} is allowed but not declared: remove the allowance"
                    )

    def judge_names(self, path: str, lines: Iterable[tuple[int, str]], allowed: set[str]) -> Iterator[Finding]:
        """Names at the start of requirement lines; comments, options and hashes are passed over."""
        for number, line in lines:
            match = None if line.lstrip().startswith(("#", "-")) else REQUIREMENT.match(line)
            if match is None:
                continue
            name = normalised(match[1])
            if name in {normalised(known) for known in self.forbidden["distributions"]}:
                yield Finding(path, number, "model-sdk", f"{name} is a model SDK: remove it")
            elif name not in allowed:
                yield Finding(path, number, "manifest", f"{name} is not on the list: allow it or leave it out")

    def check_text(self) -> Iterator[Finding]:
        """Model endpoints, and variables that hold their keys, in any text file."""
        expressions = [re.compile(text) for text in self.forbidden["text"]]
        for path in self.files:
            relative = path.relative_to(self.root).as_posix()
            if relative in self.forbidden["text_exempt"] or path.suffix not in TEXT_SUFFIXES:
                continue
            if path.stat().st_size > MAX_TEXT_BYTES:
                yield Finding(relative, 0, "model-endpoint", f"over {MAX_TEXT_BYTES} bytes, so not scanned: split it")
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                for expression in expressions:
                    if found := expression.search(line):
                        yield Finding(
                            relative, number, "model-endpoint", f"{found[0]} names a model endpoint: remove it"
                        )

    def check_pin(self) -> Iterator[Finding]:
        """The V4A engine names the upstream version it was compared with; the recorded comparison names the same."""
        if not any(path.parts[-3:-1] == ("adapters", "v4a") and path.name != "__init__.py" for path in self.python):
            return
        pin, recorded = self.root / self.pin["file"], self.root / self.pin["recorded"]
        if not pin.is_file():
            yield Finding(self.pin["file"], 0, "v4a-pin", "missing: record the upstream version that was compared")
            return
        version = re.search(r'(?m)^version = "(\d+\.\d+\.\d+)"$', pin.read_text(encoding="utf-8"))
        if version is None:
            message = 'has no line version = "x.y.z": record the one that was compared'
            yield Finding(self.pin["file"], 0, "v4a-pin", message)
        elif not recorded.is_file():
            yield Finding(self.pin["recorded"], 0, "v4a-pin", "missing: record a comparison with make parity")
        else:
            named = json.loads(recorded.read_text(encoding="utf-8")).get("version")
            if named != version[1]:
                message = f"recorded with {named}, pinned is {version[1]}: record it anew"
                yield Finding(self.pin["recorded"], 0, "v4a-pin", message)


def main(arguments: list[str]) -> int:
    """Checks the tree that holds this script, or the one given. Returns the exit status."""
    here = Path(__file__).resolve().parent
    root = Path(arguments[0]).resolve() if arguments else here.parent
    try:
        checker = Checker(root, tomllib.loads((here / "allowed_dependencies.toml").read_text(encoding="utf-8")))
        findings = checker.run()
    except (OSError, KeyError, ValueError) as error:
        print(f"error: boundaries not checked: {root}: {error!r}: mend the file it names", file=sys.stderr)
        return 2
    for finding in findings:
        print(finding)
    print(
        f"boundaries: {len(checker.python)} Python files and {len(checker.files)} files in all scanned, "
        f"{len(findings)} findings. This finds what it scans for; it proves no absence."
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
