"""Every case and scenario of the format's reference against the pure engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.v4a.engine import plan
from adapters.v4a.errors import PatchError
from tests.adapters.v4a.memory import MemoryView, content, load_cases

CASES = load_cases()
SCENARIOS = Path(__file__).parents[3] / "../shared/v4a/scenarios"


def run(view: MemoryView, patch: str, expected_versions: dict[str, str] | None = None) -> dict[str, Any]:
    """The outcome in the words of a case."""
    try:
        done = plan(patch, view, expected_versions)
    except PatchError as error:
        return {"status": "error", "code": error.code, "detail": error.details, "message": error.message}
    return {"status": "ok", "files": view.after(done), "warnings": list(done.warnings)}


@pytest.mark.covers("PATCH-1", "PATCH-2", "BND-2")
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_case_of_the_reference_has_its_outcome(case: dict[str, Any]) -> None:
    view = MemoryView.of_case(case)
    before = dict(view.files)
    expect = case["expect"]
    got = run(view, case["patch"].replace("@@ROOT@@", "/workspace"), case.get("expected_versions"))
    assert got["status"] == expect["status"], got
    if expect["status"] == "ok":
        assert got["files"] == {path: content(value) for path, value in expect["files"].items()}
        assert {warning["kind"] for warning in got["warnings"]} == set(expect["warnings"])
        for detail in expect.get("detail", []):
            assert any(detail.items() <= warning.items() for warning in got["warnings"]), (detail, got["warnings"])
    else:
        assert got["code"] == expect["code"]
        assert expect.get("detail", {}).items() <= got["detail"].items()
        if got["detail"].get("reason") == "invalid_patch":
            assert "*** Begin Patch" in got["message"]
            assert "*** End Patch" in got["message"]
    assert view.files == before


def scenario_names() -> list[str]:
    return sorted(path.name for path in SCENARIOS.iterdir() if path.is_dir()) if SCENARIOS.is_dir() else []


def tree(directory: Path) -> dict[str, bytes]:
    files = directory.rglob("*") if directory.is_dir() else ()
    return {str(path.relative_to(directory)): path.read_bytes() for path in files if path.is_file()}


@pytest.mark.covers("PATCH-1", "BND-2")
@pytest.mark.skipif(not scenario_names(), reason="the upstream project's scenarios are not beside the repository")
@pytest.mark.parametrize("name", scenario_names())
def test_a_scenario_of_the_upstream_project_has_its_outcome(name: str) -> None:
    product = json.loads((SCENARIOS / "product.json").read_text())
    start = tree(SCENARIOS / name / "input")
    got = run(MemoryView(start), (SCENARIOS / name / "patch.txt").read_text())
    expect = product["differs"].get(name) or product["errors"].get(name)
    if expect is None:
        assert got == {"status": "ok", "files": tree(SCENARIOS / name / "expected"), "warnings": []}
        return
    assert got["status"] == "error"
    assert got["code"] == expect["code"]
    assert expect.get("detail", {}).items() <= got["detail"].items()
    if name in product["errors"]:
        assert tree(SCENARIOS / name / "expected") == start
