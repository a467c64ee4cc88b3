"""What the registry accepts as root or mount, the sandbox can make: tried with the directories of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapters.linux_sandbox import host as host_facts
from adapters.linux_sandbox.host import look_up
from adapters.linux_sandbox.plan import Abilities, build_plan
from gateway.errors import RegistryRefused
from gateway.registry import Guarded, Workspace, load_registry
from gateway.system_places import why_no_mount, why_no_root
from tests.gateway.core.support import write_registry

OTHERS = ("/tmp/home", "/tmp/agent-home", "/dev/shm", "/dev/pts", "/var/tmp", "/run/shm", "/run/user")


def places() -> list[str]:
    """Canonical names of the top two levels of this machine, and names that only other machines have."""
    tops = ["/" + name for name in os.listdir("/")]
    below = [
        os.path.join(top, name)
        for top in tops
        if os.access(top, os.R_OK) and os.path.isdir(top)
        for name in sorted(os.listdir(top))[:400]
    ]
    known = [*host_facts._ETC_COPIED, *host_facts._ETC_BOUND, *host_facts._LINKS]
    return list(dict.fromkeys(["/", *tops, *below, *OTHERS, *known]))


def entry(tmp_path: Path, **given: object) -> Workspace | None:
    root = tmp_path / "ws"
    root.mkdir(exist_ok=True)
    file = write_registry(tmp_path / "r.json", {"w": {"root": str(root), **given}})
    try:
        return load_registry(file, Guarded()).workspace("w")
    except RegistryRefused:
        return None


@pytest.mark.covers("POL-5", "BOX-6")
@pytest.mark.parametrize("key", ["root", "mounts_read_only"])
def test_a_place_that_the_registry_accepts_makes_a_sandbox(tmp_path: Path, key: str) -> None:
    host = look_up()
    accepted = 0
    for place in places():
        workspace = entry(tmp_path, **{key: place if key == "root" else [place]})
        if workspace is not None:
            accepted += 1
            build_plan(workspace.terms(), host, Abilities())
    assert accepted, "no place was accepted, so nothing was tried"


@pytest.mark.covers("BOX-6")
def test_what_the_sandbox_makes_in_etc_is_known_to_the_registry(tmp_path: Path) -> None:
    workspace = entry(tmp_path)
    assert workspace is not None
    plan = build_plan(workspace.terms(), look_up(), Abilities())
    copied = [mount.target for mount in plan.mounts if mount.kind == "copy"]
    for name in [path for path, _ in (*plan.files, *plan.links)] + copied + list(host_facts._ETC_COPIED):
        if name.startswith("/etc/"):
            assert why_no_mount(name), name


@pytest.mark.covers("POL-5")
@pytest.mark.parametrize("system", ["bin", "boot", "etc", "lib", "lib64", "sbin", "usr", "proc", "sys", "dev", "run"])
def test_nothing_below_a_system_directory_is_a_root(system: str) -> None:
    for path in (f"/{system}", f"/{system}/x", f"/{system}/x/y/z"):
        assert why_no_root(path), path
    assert why_no_root(f"/{system}-of-ours") is None


@pytest.mark.covers("POL-5")
@pytest.mark.parametrize("held", ["/var", "/var/lib", "/var/log", "/var/cache", "/var/spool", "/var/tmp", "/tmp"])
def test_the_places_of_the_system_that_hold_projects_are_no_root_themselves(held: str) -> None:
    assert why_no_root(held)
    assert why_no_root(f"{held}/project") is None


@pytest.mark.covers("POL-5")
def test_where_operators_keep_projects_a_root_may_lie() -> None:
    for root in ("/srv/p", "/srv", "/opt/p", "/workspaces/demo", "/home/u/p", "/var/www/p", "/mnt/p", "/data"):
        assert why_no_root(root) is None, root
    for root in ("/run/user/1000/p", "/run/media/u/disk", "/run/media/u/disk/p"):
        assert why_no_root(root) is None, root
    for root in ("/run/user", "/run/user/1000", "/run/media", "/run/media/u", "/run/users/1000/p", "/run/systemd/a/b"):
        assert why_no_root(root), root
