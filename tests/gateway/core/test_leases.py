"""The mutation lease: one holder a root, never taken over, never leaked; against a model of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.errors import Code, ToolError
from gateway.leases import LeaseTable
from gateway.registry import Workspace
from runner.api import Limits
from tests.gateway.core.support import workspace


def bare(workspace_id: str, root: str, inode: int) -> Workspace:
    return Workspace(
        workspace_id=workspace_id,
        root=root,
        device=1,
        inode=inode,
        profile="workspace-write",
        network="restricted",
        approvals="off",
        environment_id="host",
        environment="host",
        sandbox="required",
        limits=Limits(),
        network_allow=(),
        network_deny=(),
        protect=(),
        mounts_read_only=(),
        env=MappingProxyType({}),
    )


@pytest.mark.covers("LEASE-1")
def test_a_second_holder_is_refused_with_kind_and_id_of_the_first(tmp_path: Path) -> None:
    table, demo = LeaseTable(), workspace(tmp_path / "demo")
    table.acquire(demo, "process", "proc_1", "run")
    with pytest.raises(ToolError) as busy:
        table.acquire(demo, "patch", "op_1", "run")
    assert (busy.value.code, busy.value.retryable) == (Code.WORKSPACE_BUSY, True)
    assert busy.value.details == {"workspace_id": "demo", "holder": {"kind": "process", "id": "proc_1"}}
    assert "proc_1" in busy.value.message
    table.acquire(workspace(tmp_path / "other", "other"), "process", "proc_2", "run")
    assert table.release("proc_1") is not None
    assert table.release("proc_1") is None
    table.acquire(demo, "patch", "op_1", "run")


@pytest.mark.covers("LEASE-1")
@pytest.mark.parametrize(
    ("held", "asked"),
    [
        (bare("a", "/w/a", 1), bare("b", "/w/a/in", 2)),
        (bare("a", "/w/a/in", 1), bare("b", "/w/a", 2)),
        (bare("a", "/w/a", 1), bare("b", "/mnt/same", 1)),
        (bare("a", "/w/a", 1), bare("a", "/w/a", 2)),
    ],
)
def test_roots_that_overlap_or_are_one_directory_count_as_one(held: Workspace, asked: Workspace) -> None:
    table = LeaseTable()
    table.acquire(held, "process", "proc_1", "run")
    with pytest.raises(ToolError):
        table.acquire(asked, "process", "proc_2", "run")
    table.acquire(bare("c", "/w/ab", 9), "process", "proc_3", "run")


@pytest.mark.covers("LEASE-1", "PATCH-6")
def test_two_patches_of_one_workspace_exclude_each_other_on_two_roots_too() -> None:
    table = LeaseTable()
    table.acquire(bare("a", "/w/a", 1), "patch", "op_1", "run")
    moved = bare("a", "/w/moved", 2)
    for holder in ("op_1", "op_2"):
        with pytest.raises(ToolError) as busy:
            table.acquire(moved, "patch", holder, "run")
        assert busy.value.details["holder"] == {"kind": "patch", "id": "op_1"}
    table.acquire(moved, "process", "proc_1", "run")
    table.release("proc_1")
    table.release("op_1")
    table.acquire(moved, "patch", "op_2", "run")


def test_one_id_never_holds_twice() -> None:
    table = LeaseTable()
    table.acquire(bare("a", "/w/a", 1), "process", "proc_1", "run")
    with pytest.raises(ValueError, match="proc_1"):
        table.acquire(bare("b", "/w/b", 2), "process", "proc_1", "run")


class Leases(RuleBasedStateMachine):
    """Any order of starts, ends, losses and proofs against a plain dict of workspace to holder."""

    @initialize()
    def begin(self) -> None:
        self.table = LeaseTable()
        self.model: dict[str, tuple[str, str]] = {}
        self.issued = 0

    @rule(name=st.sampled_from("abc"), kind=st.sampled_from(["process", "patch"]), instance=st.sampled_from("xy"))
    def acquire(self, name: str, kind: str, instance: str) -> None:
        self.issued += 1
        holder = f"h{self.issued}"
        target = bare(name, f"/w/{name}", ord(name))
        if name in self.model:
            with pytest.raises(ToolError) as busy:
                self.table.acquire(target, kind, holder, instance)  # type: ignore[arg-type]
            assert busy.value.details["holder"]["id"] == self.model[name][0]
        else:
            self.table.acquire(target, kind, holder, instance)  # type: ignore[arg-type]
            self.model[name] = (holder, instance)

    @rule(name=st.sampled_from("abc"))
    def end(self, name: str) -> None:
        if name in self.model:
            assert self.table.release(self.model.pop(name)[0]) is not None

    @rule(number=st.integers(0, 60))
    def late_or_repeated_end(self, number: int) -> None:
        holder = f"h{number}"
        if holder not in {held for held, _ in self.model.values()}:
            assert self.table.release(holder) is None

    @precondition(lambda self: self.model)
    @rule(instance=st.sampled_from("xy"))
    def proved_dead(self, instance: str) -> None:
        for lease in self.table.of_instance(instance):
            self.table.release(lease.holder_id)
        self.model = {name: held for name, held in self.model.items() if held[1] != instance}

    @invariant()
    def agrees_with_the_model(self) -> None:
        if hasattr(self, "table"):
            held = {lease.workspace_id: (lease.holder_id, lease.instance_id) for lease in self.table.held()}
            assert held == self.model


@pytest.mark.covers("LEASE-2")
class TestLeases(Leases.TestCase):  # type: ignore[misc,valid-type]
    """Runs the machine."""


def test_a_changed_entry_of_the_same_root_still_conflicts() -> None:
    table, demo = LeaseTable(), bare("a", "/w/a", 1)
    table.acquire(demo, "process", "proc_1", "run")
    with pytest.raises(ToolError):
        table.acquire(replace(demo, workspace_id="b", network="enabled"), "process", "proc_2", "run")
