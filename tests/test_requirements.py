"""The contract's ids against the tests: none without a test or a reason, none unknown, no outlived reason."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import REQUIREMENTS, Requirement

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = ROOT.parent / "shared" / "CONTRACT.md"


def marked(source: str, name: str) -> Iterator[str]:
    """Ids that the tests of one file say they cover.

    A marker counts where pytest sees it: on a test function or class, in `pytestmark`, or in `pytest.param(marks=…)`.
    Raises AssertionError for a marker that holds anything but literal ids.
    """
    for node in ast.walk(ast.parse(source, filename=name)):
        places: list[ast.expr] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name.startswith(("test", "Test")):
                places = node.decorator_list
        elif isinstance(node, ast.Assign):
            if any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets):
                places = [node.value]
        elif isinstance(node, ast.keyword) and node.arg == "marks":
            places = [node.value]
        for place in places:
            for call in ast.walk(place):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "covers":
                    for argument in call.args:
                        assert isinstance(argument, ast.Constant), f"{name}:{call.lineno}: covers takes literal ids"
                        assert isinstance(argument.value, str), f"{name}:{call.lineno}: covers takes literal ids"
                        yield argument.value


def covered() -> dict[str, set[str]]:
    """Id to the test files that name it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for requirement in marked(path.read_text(encoding="utf-8"), path.name):
            found[requirement].add(str(path.relative_to(ROOT)))
    return found


def complaints(requirements: dict[str, Requirement], tests: dict[str, set[str]]) -> list[str]:
    """What is wrong between the list and the tests, one sentence each."""
    found = [
        f"{name} is no requirement: {sorted(files)} name it"
        for name, files in tests.items()
        if name not in requirements
    ]
    for name, requirement in requirements.items():
        if name in tests and requirement.reason:
            found.append(f"{name} has tests in {sorted(tests[name])}: remove its reason: {requirement.reason!r}")
        if name not in tests and not requirement.reason:
            found.append(f"{name} has neither a test nor a reason: write one of them")
    return sorted(found)


def test_every_requirement_has_a_test_or_a_reason_and_never_both() -> None:
    assert complaints(dict(REQUIREMENTS), covered()) == []


def test_a_gap_an_outlived_reason_and_an_unknown_id_are_each_reported() -> None:
    listed = {
        "A-1": Requirement("a"),
        "A-2": Requirement("b", "later"),
        "A-3": Requirement("c"),
        "A-4": Requirement("d", "later"),
    }
    found = complaints(listed, {"A-2": {"t.py"}, "A-3": {"t.py"}, "Z-9": {"t.py"}})
    assert [line.split(" ")[0] for line in found] == ["A-1", "A-2", "Z-9"]


def test_markers_are_read_where_pytest_sees_them_and_nowhere_else() -> None:
    source = """
pytestmark = [pytest.mark.covers("A-1"), pytest.mark.kernel("x")]
@pytest.mark.covers("A-2", "A-3")
def test_one(): ...
class TestTwo:
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.covers("A-4"))])
    async def test_three(self, x): ...
@pytest.mark.covers("A-5")
def helper(): ...
"""
    assert sorted(set(marked(source, "t.py"))) == ["A-1", "A-2", "A-3", "A-4"]


def test_a_marker_with_a_computed_id_is_refused() -> None:
    with pytest.raises(AssertionError, match="literal ids"):
        list(marked("@pytest.mark.covers(NAME)\ndef test_one(): ...", "t.py"))


def test_the_list_is_the_contracts_list() -> None:
    if not CONTRACT.is_file():
        pytest.skip("the contract is not beside this checkout")
    ids = re.findall(r"^- ([A-Z]+-\d+) ", CONTRACT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(ids) == len(set(ids)) > 50
    assert set(REQUIREMENTS) == set(ids)
