"""The boundary script on this tree, which must be clean, and on copies with one violation planted in each."""

from __future__ import annotations

import ast
import datetime
import enum
import inspect
import re
import shutil
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel

from runner import api, ports

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tools" / "check_boundaries.py"
COPIED = ("gateway", "runner", "sandbox_helper", "adapters", "requirements", "pyproject.toml", "tests/data/v4a")


def check(root: Path) -> subprocess.CompletedProcess[str]:
    """Runs the script alone: no site packages, no paths of this checkout."""
    command = [sys.executable, "-I", "-S", str(SCRIPT), str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)


@pytest.fixture(scope="module")
def clean_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the script looks at; tests add one violation and take it away again."""
    root = tmp_path_factory.mktemp("tree")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
    result = check(root)
    assert result.returncode == 0, result.stdout + result.stderr
    return root


@pytest.mark.covers("BND-1", "ENV-5")
def test_this_tree_crosses_no_boundary_and_the_report_claims_no_proof() -> None:
    result = check(ROOT)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert "0 findings" in result.stdout
    assert "proves no absence" in result.stdout


PLANTED = [
    ("gateway/planted.py", "from adapters.filesystem import glob\n", "direction"),
    ("gateway/planted.py", "from runner import ports\n", "direction"),
    ("gateway/planted.py", "import runner.processes\n", "direction"),
    ("gateway/use_cases/planted.py", "def f():\n    from sandbox_helper import seccomp\n", "direction"),
    ("runner/planted.py", "import sandbox_helper.protocol\n", "direction"),
    ("runner/planted.py", "from gateway.errors import ToolError\n", "direction"),
    ("runner/processes/planted.py", "from ...gateway import errors\n", "direction"),
    ("runner/planted.py", "import adapters.v4a\n", "direction"),
    ("runner/planted.py", "import importlib\nimportlib.import_module('adapters.v4a')\n", "direction"),
    ("runner/planted.py", "import importlib\nimportlib.import_module('adapters' + '.v4a')\n", "dynamic-import"),
    ("sandbox_helper/planted.py", "from runner import api\n", "direction"),
    ("sandbox_helper/planted.py", "import structlog\n", "package"),
    ("adapters/filesystem/planted.py", "import adapters.ripgrep\n", "direction"),
    ("adapters/v4a/planted.py", "import runner.api\n", "direction"),
    ("adapters/linux_sandbox/planted.py", "import sandbox_helper.seccomp\n", "direction"),
    ("adapters/filesystem/planted.py", "import pydantic\n", "package"),
    ("adapters/planted/__init__.py", "import requests\n", "package"),
    ("adapters/inotify_watch/planted.py", "import inotify.calls\n", "one-place"),
    ("sandbox_helper/planted.py", "import prctl\n", "one-place"),
    ("sandbox_helper/planted.py", "import pyroute2\n", "one-place"),
    ("gateway/planted.py", "import tests.fakes\n", "direction"),
    ("gateway/planted.py", "def broken(:\n", "syntax"),
    ("gateway/planted.py", "import openai\n", "model-sdk"),
    ("tests/planted.py", "from google.generativeai import types\n", "model-sdk"),
    ("benchmarks/planted.py", "__import__('anthropic')\n", "model-sdk"),
    ("deploy/planted.yaml", "url: https://api.openai.com/v1\n", "model-endpoint"),
    ("docs/planted.md", "export ANTHROPIC_API_KEY=x\n", "model-endpoint"),
    ("image/requirements.txt", "openai==1.0\n", "model-sdk"),
    ("requirements/extra.txt", "left-pad==1.0\n", "manifest"),
    ("package.json", "{}\n", "manifest"),
    ("adapters/v4a/UPSTREAM", 'version = "newest"\n', "v4a-pin"),
]


@pytest.mark.covers("BND-1", "BND-2", "ENV-5", "BOX-2")
@pytest.mark.parametrize(("path", "text", "rule"), PLANTED)
def test_a_planted_violation_is_found_and_nothing_else(clean_copy: Path, path: str, text: str, rule: str) -> None:
    planted = clean_copy / path
    before = planted.read_bytes() if planted.exists() else None
    made = [parent for parent in planted.parents if not parent.exists()]
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(text)
    try:
        result = check(clean_copy)
    finally:
        planted.unlink()
        if before is not None:
            planted.write_bytes(before)
        for parent in made:
            parent.rmdir()
    findings = result.stdout.splitlines()[:-1]
    assert result.returncode == 1
    assert [re.match(r"([^:]+):\d+: ([a-z0-9-]+): .+: .+", line).groups() for line in findings] == [(path, rule)]  # type: ignore[union-attr]


@pytest.mark.covers("BND-1")
def test_a_declared_package_that_is_not_allowed_is_found(clean_copy: Path) -> None:
    manifest = clean_copy / "pyproject.toml"
    before = manifest.read_text()
    try:
        manifest.write_text(before.replace('"mcp>=', '"left-pad>=1",\n  "mcp>='))
        result = check(clean_copy)
    finally:
        manifest.write_text(before)
    assert result.returncode == 1
    assert "pyproject.toml:0: manifest: left-pad" in result.stdout


@pytest.mark.covers("BND-2")
@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("tests/data/v4a/parity.json", '{"version": "0.0.1"}', "v4a-pin: recorded with 0.0.1"),
        ("tests/data/v4a/parity.json", None, "v4a-pin: missing"),
        ("adapters/v4a/UPSTREAM", None, "v4a-pin: missing"),
    ],
)
def test_a_pin_that_is_missing_or_not_what_was_compared_is_found(
    clean_copy: Path, path: str, text: str | None, complaint: str
) -> None:
    before = (clean_copy / path).read_bytes()
    (clean_copy / path).unlink()
    try:
        if text is not None:
            (clean_copy / path).write_text(text)
        result = check(clean_copy)
    finally:
        (clean_copy / path).write_bytes(before)
    assert result.returncode == 1
    assert f"{path}:0: {complaint}" in result.stdout


def test_a_tree_that_cannot_be_read_is_an_error_and_not_a_pass(tmp_path: Path) -> None:
    result = check(tmp_path / "absent")
    assert result.returncode == 2
    assert result.stderr.startswith("error: boundaries not checked: ")


def types_in(annotation: object) -> typing.Iterator[type]:
    """Every class inside an annotation."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        yield annotation
    for inner in typing.get_args(annotation):
        if not isinstance(inner, str | bytes | int | bool) and inner is not Ellipsis:
            yield from types_in(inner)


@pytest.mark.covers("BND-3")
@pytest.mark.parametrize("method", api.REQUESTS)
def test_a_runner_message_holds_only_our_own_types(method: str) -> None:
    waiting: list[type[BaseModel]] = list(api.REQUESTS[method])
    seen: set[type] = set()
    while waiting:
        model = waiting.pop()
        seen.add(model)
        assert model.__module__ == "runner.api"
        for field in typing.get_type_hints(model).values():
            for found in types_in(field):
                if issubclass(found, BaseModel):
                    assert found.__module__ == "runner.api"
                    waiting += [found] if found not in seen else []
                elif found.__module__ != "builtins" and not found.__module__.startswith("annotated_types"):
                    assert found in (datetime.datetime, typing.Any) or found.__module__ in (
                        "pydantic.fields",
                        "collections.abc",
                    )
    assert len(seen) >= 2


BACKENDS = (
    "bwrap",
    "bubblewrap",
    "seccomp",
    "landlock",
    "openat",
    "ripgrep",
    "inotify",
    "docker",
    "podman",
    "prctl",
    "ptyprocess",
)


def public_words(module: types.ModuleType) -> set[str]:
    """Names of classes, fields, methods, parameters and enumerated values of an interface module, in lower case."""
    words: set[str] = set()
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        words.add(name)
        if inspect.isclass(value):
            words |= set(vars(value)) | set(getattr(value, "__annotations__", {}))
            words |= {str(member.value) for member in value} if issubclass(value, enum.Enum) else set()
            words |= {str(annotation) for annotation in getattr(value, "__annotations__", {}).values()}
    return {word.lower() for word in words}


@pytest.mark.covers("BND-3")
@pytest.mark.parametrize("module", [api, ports])
def test_no_backend_is_named_in_the_runners_interfaces(module: types.ModuleType) -> None:
    words = public_words(module)
    assert len(words) > 30
    assert [word for word in words for backend in BACKENDS if backend in word] == []


def git_in(source: str) -> list[int]:
    """Lines with a text that starts the program git: its name or path alone, or with arguments."""
    texts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return sorted(node.lineno for node in texts if re.match(r"(\S*/)?git( |$)", str(node.value)))


@pytest.mark.covers("PATCH-7")
def test_nothing_that_handles_patches_names_the_program_git() -> None:
    assert git_in('x = ["git", "apply"]\ny = "/usr/bin/git"\nz = "git stash"\nw = ".git/config"\n') == [1, 2, 3]
    places = ("adapters", "runner", "sandbox_helper", "gateway/store", "gateway/use_cases")
    sources = [path for place in places for path in (ROOT / place).rglob("*.py")]
    assert len(sources) > 80
    assert [path.name for path in sources if git_in(path.read_text(encoding="utf-8"))] == []
