"""Terms become plans: pure, equal for equal terms, and always what the helper's parser takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.linux_sandbox.host import ROOT_STAND_IN_ID, HostFacts, look_up
from adapters.linux_sandbox.plan import Abilities, PlanError, build_plan, plan_id
from runner.api import Limits, WorkspaceTerms
from sandbox_helper.protocol import Plan, parse_plan, plan_value

HOST = HostFacts(
    uid=1000, gid=1000, hostname="host", root_links=(("/bin", "usr/bin"),), root_directories=("/lib",),
    etc_copied=("/etc/services",), etc_bound=("/etc/ssl",), localtime="/usr/share/zoneinfo/UTC",
)  # fmt: skip
ROOT = HostFacts(0, 0, "host", (), (), (), (), None)


def terms(**changes: object) -> WorkspaceTerms:
    return WorkspaceTerms.model_validate({"workspace_id": "w", "root": "/work/space", **changes})


def targets(plan: Plan, kind: str) -> set[str]:
    return {mount.target for mount in plan.mounts if mount.kind == kind}


names = st.from_regex(r"[a-z.][a-z0-9.]{0,8}x", fullmatch=True)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@pytest.mark.covers("BOX-3")
@given(
    root=paths, protect=st.lists(paths, max_size=4, unique=True), extra=st.lists(paths, max_size=3, unique=True),
    env=st.dictionaries(names, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))),
    sandbox=st.sampled_from(["required", "off"]), terminal=st.booleans(), uid=st.sampled_from([0, 1000]),
    cgroup=st.booleans(), proc=st.booleans(), memory=st.integers(0, 10**6),
)  # fmt: skip
def test_every_plan_that_can_be_built_survives_the_wire(
    root: str, protect: list[str], extra: list[str], env: dict[str, str], sandbox: str, terminal: bool, uid: int,
    cgroup: bool, proc: bool, memory: int,
) -> None:  # fmt: skip
    what = terms(
        root=f"/srv/{root}", protect=protect, mounts_read_only=[f"/opt/{path}" for path in extra], env=env,
        sandbox=sandbox, limits={"memory_mb": memory},
    )  # fmt: skip
    host = HOST if uid else ROOT
    plan = build_plan(what, host, Abilities(cgroup_namespace=cgroup, own_proc=proc), terminal=terminal)
    assert parse_plan(json.loads(json.dumps(plan_value(plan)))) == plan
    again = build_plan(what.model_copy(), host, Abilities(cgroup_namespace=cgroup, own_proc=proc), terminal=terminal)
    assert plan_id(again) == plan_id(plan)


@pytest.mark.covers("BOX-6")
def test_a_plan_shows_the_allow_list_and_nothing_else() -> None:
    plan = build_plan(terms(mounts_read_only=("/opt/tool",)), HOST, Abilities())
    assert targets(plan, "read_only") == {"/usr", "/lib", "/etc/ssl", "/opt/tool"}
    assert targets(plan, "copy") == {"/etc/services"}
    assert targets(plan, "workspace") == {"/work/space"}
    assert targets(plan, "tmpfs") == {"/tmp", "/dev/shm"}
    for secret in ("/home", "/root", "/var", "/srv", "/etc/shadow", "/run"):
        assert not any(mount.source == secret or mount.source.startswith(secret + "/") for mount in plan.mounts)


def test_the_commands_accounts_name_nobody_of_the_host() -> None:
    files = dict(build_plan(terms(), HOST, Abilities()).files)
    assert [line.split(":")[0] for line in files["/etc/passwd"].splitlines()] == ["root", "agent", "nobody"]
    assert ":1000:1000:" in files["/etc/passwd"]


@pytest.mark.covers("BOX-1")
def test_roots_commands_get_another_id_and_a_mapped_workspace() -> None:
    plan = build_plan(terms(), ROOT, Abilities())
    assert (plan.uid, plan.gid, plan.idmap) == (ROOT_STAND_IN_ID, ROOT_STAND_IN_ID, True)
    plan = build_plan(terms(), ROOT, Abilities(owner=(500, 600)))
    assert (plan.uid, plan.gid, plan.idmap) == (500, 600, False)
    assert not build_plan(terms(), HOST, Abilities()).idmap


def test_a_terminal_adds_term_and_nothing_else() -> None:
    pipes, tty = (dict(build_plan(terms(), HOST, Abilities(), terminal=t).env) for t in (False, True))
    assert tty.items() - pipes.items() == {("TERM", "xterm-256color")}
    assert pipes.keys() == {"PATH", "HOME", "LANG"}


@pytest.mark.covers("BOX-8")
def test_the_private_file_systems_hold_no_more_than_the_memory_limit() -> None:
    plan = build_plan(terms(limits=Limits(memory_mb=100)), HOST, Abilities())
    assert sum(mount.size_mb for mount in plan.mounts) == 100
    assert plan.limits.memory_mb == 100


@pytest.mark.parametrize("root", ["/", "/usr", "/tmp", "/etc", "/proc/1", "/dev/shm", "/dev"])
def test_a_workspace_at_a_place_of_the_sandboxs_own_is_refused(root: str) -> None:
    with pytest.raises(PlanError, match=root):
        build_plan(terms(root=root), HOST, Abilities())


@pytest.mark.parametrize("path", ["/", "/tmp", "/proc/sys", "/opt/../etc", "relative"])
def test_a_read_only_mount_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(PlanError):
        build_plan(terms(mounts_read_only=(path,)), HOST, Abilities())


def test_home_is_never_within_the_workspace_nor_around_it() -> None:
    for root in ("/tmp/home", "/tmp/home/x"):
        assert build_plan(terms(root=root), HOST, Abilities()).home == "/tmp/agent-home"


def test_this_machines_facts_make_a_plan() -> None:
    plan = build_plan(terms(), look_up(), Abilities())
    assert parse_plan(json.loads(json.dumps(plan_value(plan)))) == plan
