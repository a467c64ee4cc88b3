"""Ids that sort by age, and the policy table."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Code, ToolError
from gateway.ids import IdFactory
from gateway.policy import Action, check, permits
from gateway.registry import Guarded, load_registry
from tests.gateway.core.support import workspace, write_registry


@given(st.lists(st.integers(0, 2**48 - 1), min_size=2, max_size=30), st.integers(0, 2**80 - 1))
def test_ids_rise_and_never_repeat_however_the_clock_moves(times: list[int], bits: int) -> None:
    clock = iter(times)
    factory = IdFactory(now_ms=lambda: next(clock), random_bits=lambda _: bits)
    issued = [factory.new("proc") for _ in times]
    assert issued == sorted(set(issued))
    assert all(len(one) == len("proc_") + 26 for one in issued)


def test_the_kind_is_told_by_the_prefix() -> None:
    factory = IdFactory()
    assert factory.new("op").startswith("op_")
    assert factory.new("proc").startswith("proc_")


@pytest.mark.covers("POL-1")
@pytest.mark.parametrize(
    ("profile", "action", "allowed"),
    [
        ("read-only", Action.READ, True),
        ("read-only", Action.WRITE, False),
        ("read-only", Action.EXEC, False),
        ("workspace-write", Action.READ, True),
        ("workspace-write", Action.WRITE, True),
        ("workspace-write", Action.EXEC, True),
    ],
)
def test_a_profile_permits_what_the_table_says_and_a_refusal_names_all_three(
    tmp_path: Path, profile: str, action: Action, allowed: bool
) -> None:
    target = workspace(tmp_path / "demo", profile=profile)
    assert permits(target, action) is allowed
    if allowed:
        check(target, action)
        return
    with pytest.raises(ToolError) as refused:
        check(target, action)
    assert refused.value.code is Code.UNAUTHORIZED
    assert refused.value.details == {"workspace_id": "demo", "profile": profile, "action": action.value}
    assert all(word in refused.value.message for word in ('"demo"', profile, action.value))


@pytest.mark.covers("ENV-1", "POL-1")
def test_an_environment_without_backend_is_unavailable_but_a_profile_refuses_first(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    file = write_registry(
        tmp_path / "r.json",
        {"boxed": {"root": str(tmp_path / "root"), "environment": "box"}},
        environments={"box": {"kind": "linux-container"}},
    )
    boxed = load_registry(file, Guarded()).workspace("boxed")
    with pytest.raises(ToolError) as read:
        check(boxed, Action.READ)
    assert read.value.code is Code.ENVIRONMENT_UNAVAILABLE
    with pytest.raises(ToolError) as ran:
        check(boxed, Action.EXEC)
    assert ran.value.code is Code.UNAUTHORIZED


@pytest.mark.covers("POL-4")
def test_no_setting_of_a_workspace_takes_path_globs_as_permissions(tmp_path: Path) -> None:
    from gateway.registry_file import WorkspaceEntry

    assert not {"allow", "deny", "paths", "permissions", "globs"} & set(WorkspaceEntry.model_fields)
