"""Every case of the format's reference on a real disk: as a preview, then for real."""

from __future__ import annotations

import stat
from typing import Any

import pytest

from adapters.patch_helper.engine import PatchHelperEngine
from runner.api import PatchApplied, RunnerError
from tests.adapters.patch_helper.workspaces import Workspace, outcome, snapshot, workspace
from tests.adapters.v4a.memory import content, load_cases, version

CASES = load_cases()
GROUPS = sorted({case["group"] for case in CASES})


@pytest.mark.covers("PATCH-1", "PATCH-3", "PATCH-5", "FS-1")
@pytest.mark.parametrize("group", GROUPS)
async def test_cases_on_disk_have_their_outcome_and_leave_the_rest_alone(engine: PatchHelperEngine, group: str) -> None:
    with workspace() as made:
        for case in CASES:
            if case["group"] == group:
                made.clear()
                made.fill(case)
                await run_case(engine, made, case)


async def run_case(engine: PatchHelperEngine, made: Workspace, case: dict[str, Any]) -> None:
    name, expect = case["name"], case["expect"]
    before = snapshot(made.root, times=True)
    text = case["patch"].replace("@@ROOT@@", str(made.root))
    asked = {"expected_versions": case["expected_versions"]} if "expected_versions" in case else {}
    preview = await outcome(engine, made.request(text, check_only=True, **asked))
    assert snapshot(made.root, times=True) == before, name
    done = await outcome(engine, made.request(text, **asked))
    if expect["status"] == "error":
        assert snapshot(made.root, times=True) == before, name
        for got in (preview, done):
            assert isinstance(got, RunnerError), name
            assert got.code == expect["code"], name
            assert expect.get("detail", {}).items() <= got.details.items(), name
            assert "status" not in got.details, name
        return
    assert isinstance(preview, PatchApplied), preview
    assert isinstance(done, PatchApplied), done
    assert done == preview.model_copy(update={"status": "applied"}), name
    assert made.files() == {path: content(value) for path, value in expect["files"].items()}, name
    assert {warning["kind"] for warning in done.warnings} == set(expect["warnings"]), name
    for change in done.changes:
        after = made.files().get(change.path)
        assert change.after_version == (version(after) if after is not None else None), name
    after_all = snapshot(made.root)
    for path, mode in expect.get("modes", {}).items():
        assert after_all[path][1] == int(mode, 8), name
    untouched = {path for path, entry in before.items() if entry[0] in (stat.S_IFLNK, stat.S_IFIFO)}
    assert {path: after_all.get(path) for path in untouched} == {
        path: (*before[path][:4], None, before[path][5]) for path in untouched
    }, name
