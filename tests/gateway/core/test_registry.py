"""The registry: what is accepted as written, what is refused with file, key and remedy, and that nothing crashes."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from adapters.egress_proxy.policy import parse_policy
from gateway.errors import Code, RegistryRefused, ToolError
from gateway.links import links_over
from gateway.registry import Guarded, effective_permissions, load_registry
from gateway.registry_file import MAX_REGISTRY_BYTES, RegistryFile, WorkspaceEntry, parse_registry
from gateway.settings import Settings
from runner.api import Limits
from tests.gateway.core.support import write_registry


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("etc", "ws/demo/in", "ws/other", "home/someone", "data", "opt/tools/in"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ws/file").write_text("")
    (tmp_path / "ws/link").symlink_to("demo")
    (tmp_path / "etc/token").write_text("t")
    return tmp_path


def guarded(place: Path) -> Guarded:
    return Guarded(
        private=(("the token", str(place / "etc/token")),),
        data_dir=str(place / "data"),
        homes=(str(place / "home/someone"),),
        program=(str(place / "opt/tools"),),
    )


def load(place: Path, workspaces: dict[str, Any], name: str = "registry.json", **more: Any) -> Any:
    return load_registry(write_registry(place / "etc" / name, workspaces, **more), guarded(place))


@pytest.mark.covers("ENV-3", "POL-2", "POL-3")
def test_only_root_is_required_and_the_rest_has_the_documented_defaults(place: Path) -> None:
    workspace = load(place, {"demo": {"root": str(place / "ws/demo")}}).workspace("demo")
    assert (workspace.profile, workspace.network, workspace.approvals) == ("read-only", "restricted", "off")
    assert (workspace.environment, workspace.sandbox) == ("host", "required")
    assert workspace.limits == Limits()
    assert workspace.protect == (".git/hooks", ".git/config")
    assert workspace.terms().model_dump()["env"] == {}
    assert workspace.terms().mounts_read_only == ()


@pytest.mark.covers("POL-5")
def test_every_documented_key_is_taken_from_json_and_toml_alike(place: Path) -> None:
    entry = {
        "root": str(place / "ws/demo"),
        "profile": "workspace-write",
        "network": "enabled",
        "approvals": "confirm",
        "environment": "box",
        "sandbox": "off",
        "limits": {"timeout_s": 5, "memory_mb": 0},
        "network_allow": ["PyPI.example:443", "*.example.org", "10.0.0.0/8", "[2001:db8::1]:8443", "::1"],
        "network_deny": ["10.1.2.3"],
        "protect": ["a/b"],
        "mounts_read_only": [str(place / "opt")],
        "env": {"CI": "1"},
    }
    by_json = load(place, {"demo": entry}, environments={"box": {"kind": "linux-container"}})
    lines = [
        "[environments.box]",
        'kind = "linux-container"',
        "[workspaces.demo]",
        *(f"{key} = {json.dumps(value)}" for key, value in entry.items() if not isinstance(value, dict)),
        "limits = {timeout_s = 5, memory_mb = 0}",
        'env = {CI = "1"}',
    ]
    (place / "etc/registry.toml").write_text("\n".join(lines))
    by_toml = load_registry(place / "etc/registry.toml", guarded(place))
    assert by_json.workspace("demo") == by_toml.workspace("demo")
    workspace = by_json.workspace("demo")
    assert workspace.environment == "linux-container"
    assert workspace.limits.memory_mb == 0
    assert workspace.network_allow[0] == "pypi.example:443"
    assert dict(workspace.env) == {"CI": "1"}


def test_a_root_behind_a_link_is_served_as_the_directory_it_leads_to(place: Path) -> None:
    workspace = load(place, {"demo": {"root": str(place / "ws/link")}}).workspace("demo")
    assert workspace.root == str(place / "ws/demo")
    assert workspace.inode == os.stat(place / "ws/demo").st_ino


ROOT = "{place}/ws/demo"
BAD: dict[str, tuple[Any, str, str]] = {
    "unknown key": ({"w": {"root": ROOT, "profil": "read-only"}}, "workspaces.w.profil", "did you mean profile?"),
    "unknown limit": ({"w": {"root": ROOT, "limits": {"cpu": 1}}}, "workspaces.w.limits.cpu", "unknown key"),
    "no root": ({"w": {}}, "workspaces.w.root", "missing"),
    "wrong type of a limit": ({"w": {"root": ROOT, "limits": {"cpu_s": "1"}}}, "workspaces.w.limits.cpu_s", "type"),
    "a float for a limit": ({"w": {"root": ROOT, "limits": {"cpu_s": 1.0}}}, "workspaces.w.limits.cpu_s", "type"),
    "true for a limit": ({"w": {"root": ROOT, "limits": {"cpu_s": True}}}, "workspaces.w.limits.cpu_s", "type"),
    "a negative limit": ({"w": {"root": ROOT, "limits": {"cpu_s": -1}}}, "workspaces.w.limits.cpu_s", "greater"),
    "output without bound": ({"w": {"root": ROOT, "limits": {"output_retained_kb": 0}}}, "output_retained_kb", "1"),
    "unknown profile": ({"w": {"root": ROOT, "profile": "root"}}, "workspaces.w.profile", "workspace-write"),
    "unknown network": ({"w": {"root": ROOT, "network": "host"}}, "workspaces.w.network", "restricted"),
    "unknown environment": ({"w": {"root": ROOT, "environment": "box"}}, "workspaces.w.environment", "box"),
    "bad id": ({"Bad Id": {"root": ROOT}}, "workspaces.Bad Id", "a-z"),
    "empty id": ({"": {"root": ROOT}}, "workspaces.", "a-z"),
    "long id": ({"a" * 65: {"root": ROOT}}, "workspaces.aaa", "64"),
    "relative root": ({"w": {"root": "ws/demo"}}, "workspaces.w.root", "absolute"),
    "missing root": ({"w": {"root": "{place}/ws/nope"}}, "workspaces.w.root", "does not exist"),
    "a file as root": ({"w": {"root": "{place}/ws/file"}}, "workspaces.w.root", "not a directory"),
    "slash": ({"w": {"root": "/"}}, "workspaces.w.root", "the root is /"),
    "a home": ({"w": {"root": "{place}/home/someone"}}, "workspaces.w.root", "home"),
    "above a home": ({"w": {"root": "{place}/home"}}, "workspaces.w.root", "home"),
    "holds the registry": ({"w": {"root": "{place}/etc"}}, "workspaces.w.root", "this registry"),
    "holds the data": ({"w": {"root": "{place}/data"}}, "workspaces.w.root", "data directory"),
    "holds this program": ({"w": {"root": "{place}/opt"}}, "workspaces.w.root", "holds this program's own code"),
    "in this program": (
        {"w": {"root": "{place}/opt/tools/in"}},
        "workspaces.w.root",
        "lies in this program's own code",
    ),
    "a system directory": ({"w": {"root": "/usr"}}, "workspaces.w.root", "system directory"),
    "the kernel's files": ({"w": {"root": "/proc/self"}}, "workspaces.w.root", "kernel"),
    "NUL": ({"w": {"root": "/a\0b"}}, "workspaces.w.root", "NUL"),
    "not Unicode": ({"w": {"root": "/\ud800"}}, "workspaces.w.root", "unicode"),
    "duplicate": ({"v": {"root": ROOT}, "w": {"root": "{place}/ws/link"}}, "workspaces.w.root", "duplicate"),
    "nested": ({"v": {"root": ROOT}, "w": {"root": ROOT + "/in"}}, "workspaces.w.root", "nested"),
    "nested the other way": ({"v": {"root": ROOT + "/in"}, "w": {"root": ROOT}}, "workspaces.w.root", "nested"),
    "protect with ..": ({"w": {"root": ROOT, "protect": ["a/../b"]}}, "workspaces.w.protect.0", "relative"),
    "protect absolute": ({"w": {"root": ROOT, "protect": ["/a"]}}, "workspaces.w.protect.0", "relative"),
    "protect empty": ({"w": {"root": ROOT, "protect": [""]}}, "workspaces.w.protect.0", "relative"),
    "allow a URL": ({"w": {"root": ROOT, "network_allow": ["https://a.b"]}}, "network_allow.0", "host"),
    "allow everything": ({"w": {"root": ROOT, "network_allow": ["*"]}}, "network_allow.0", "host"),
    "allow a bad port": ({"w": {"root": ROOT, "network_allow": ["a.b:0"]}}, "network_allow.0", "port"),
    "allow a long port": ({"w": {"root": ROOT, "network_allow": ["a.b:000080"]}}, "network_allow.0", "port"),
    "allow host bits": ({"w": {"root": ROOT, "network_allow": ["10.0.0.1/8"]}}, "network_allow.0", "CIDR"),
    "deny half an address": ({"w": {"root": ROOT, "network_deny": ["10.0.0"]}}, "network_deny.0", "address"),
    "deny no address": ({"w": {"root": ROOT, "network_deny": ["[::1"]}}, "network_deny.0", "IPv6"),
    "mount relative": ({"w": {"root": ROOT, "mounts_read_only": ["opt"]}}, "mounts_read_only.0", "absolute"),
    "mount missing": ({"w": {"root": ROOT, "mounts_read_only": ["/nope"]}}, "mounts_read_only.0", "not exist"),
    "mount all": ({"w": {"root": ROOT, "mounts_read_only": ["/"]}}, "mounts_read_only.0", "whole system"),
    "mount the token": ({"w": {"root": ROOT, "mounts_read_only": ["{place}/etc"]}}, "mounts_read_only.0", "registry"),
    "mount the data": ({"w": {"root": ROOT, "mounts_read_only": ["{place}/data"]}}, "mounts_read_only.0", "data"),
    "mount homes": ({"w": {"root": ROOT, "mounts_read_only": ["{place}/home"]}}, "mounts_read_only.0", "home"),
    "mount a root": (
        {"w": {"root": ROOT, "mounts_read_only": ["{place}/ws/other"]}, "o": {"root": "{place}/ws/other"}},
        "workspaces.w.mounts_read_only.0",
        "overlap",
    ),
    "mount by a link": ({"w": {"root": ROOT, "mounts_read_only": ["{place}/ws/link"]}}, "mounts_read_only.0", "write "),
    "bad variable": ({"w": {"root": ROOT, "env": {"A=B": "1"}}}, "workspaces.w.env", "name"),
    "a number as variable": ({"w": {"root": ROOT, "env": {"A": 1}}}, "workspaces.w.env.A", "type"),
    "workspaces as a list": ([], "workspaces", "type"),
}


def placed(value: Any, place: Path) -> Any:
    if isinstance(value, str):
        return value.replace("{place}", str(place))
    if isinstance(value, dict):
        return {key: placed(item, place) for key, item in value.items()}
    return [placed(item, place) for item in value] if isinstance(value, list) else value


@pytest.mark.covers("POL-5")
@pytest.mark.parametrize("case", BAD)
def test_a_bad_registry_is_refused_with_file_key_and_remedy(place: Path, case: str) -> None:
    workspaces, key, words = BAD[case]
    with pytest.raises(RegistryRefused) as refused:
        load(place, placed(workspaces, place))
    text = str(refused.value)
    assert str(place / "etc/registry.json") in text, text
    assert key in refused.value.key, text
    assert words in text, text
    assert refused.value.remedy, text
    assert refused.value.exit_status == 2


@pytest.mark.covers("POL-5")
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("r.json", "{", "is not JSON"),
        ("r.json", "[]", "not an object"),
        ("r.json", '{"workspaces": {"a": {"root": "/x"}, "a": {"root": "/y"}}}', "appears twice"),
        ("r.json", '{"workspaces": {}, "x": NaN}', "NaN"),
        ("r.json", "[" * 100_000, "too deeply"),
        ("r.json", '{"workspaces": {"a": {"root": "/x", "limits": {"cpu_s": ' + "9" * 5000 + "}}}}", "is not JSON"),
        ("r.toml", "a = 1\na = 2", "is not TOML"),
        ("r.toml", "workspaces = ", "is not TOML"),
        ("r.yaml", "{}", "neither .json nor .toml"),
        ("r.json", '{"extra": 1, "workspaces": {}}', "unknown key"),
        ("r.json", "{}", "missing"),
        ("r.json", " " * (MAX_REGISTRY_BYTES + 1), "larger than"),
    ],
)
def test_a_file_that_is_no_registry_is_refused(place: Path, name: str, text: str, words: str) -> None:
    path = place / "etc" / name
    path.write_text(text)
    with pytest.raises(RegistryRefused, match=words) as refused:
        load_registry(path, guarded(place))
    assert name in str(refused.value)


@pytest.mark.covers("POL-5")
def test_what_is_no_readable_private_file_is_refused_without_blocking(place: Path) -> None:
    os.mkfifo(place / "etc/fifo.json")
    for name, words in (("fifo.json", "not a regular file"), ("nope.json", "ENOENT"), ("", "not a regular file")):
        with pytest.raises(RegistryRefused, match=words):
            load_registry(place / "etc" / name, guarded(place))
    open_to_all = write_registry(place / "etc/all.json", {})
    open_to_all.chmod(0o666)
    with pytest.raises(RegistryRefused, match="everyone may write"):
        load_registry(open_to_all, guarded(place))
    (place / "etc/latin.json").write_bytes(b'{"\xff": 1}')
    with pytest.raises(RegistryRefused, match="not UTF-8"):
        load_registry(place / "etc/latin.json", guarded(place))


@pytest.mark.covers("POL-5")
@pytest.mark.parametrize("what", ["the token", "the data directory"])
@pytest.mark.parametrize(
    "links",
    [
        {"ws/demo/it": "{place}/far/it"},
        {"ws/demo/up": "{place}/far", "it": "ws/demo/up/it"},
        {"it": "ws/demo/it", "ws/demo/it": "../../far/it"},
        {"it": "x/it", "x": "{place}/ws/link/in/..", "ws/demo/it": "{place}/far/it"},
    ],
    ids=["its name", "a directory on its way", "a link to a link", "links in all parts"],
)
def test_a_root_that_holds_a_link_over_which_our_own_is_reached_is_refused(
    place: Path, what: str, links: dict[str, str]
) -> None:
    """A command there could lead it elsewhere, for the next start."""
    (place / "far/it").mkdir(parents=True)
    for name, target in links.items():
        (place / name).symlink_to(target.replace("{place}", str(place)))
    name = str(place / ("it" if "it" in links else "ws/demo/it"))
    assert os.path.samefile(name, place / "far/it")
    own = Guarded(data_dir=name) if what == "the data directory" else Guarded(private=(("the token", name),))
    registry = write_registry(place / "etc/r.json", {"w": {"root": str(place / "ws/demo")}})
    with pytest.raises(RegistryRefused, match=f"over which {what}, .*, is reached"):
        load_registry(registry, own)


@pytest.mark.covers("POL-5")
def test_a_registry_that_is_reached_over_a_root_is_refused(place: Path) -> None:
    write_registry(place / "etc/real.json", {"w": {"root": str(place / "ws/demo")}})
    (place / "ws/demo/r.json").symlink_to(place / "etc/real.json")
    (place / "etc/r.json").symlink_to(place / "ws/demo/r.json")
    with pytest.raises(RegistryRefused, match=r"over which this registry, .*, is reached"):
        load_registry(place / "etc/r.json", Guarded())
    assert load_registry(place / "etc/real.json", Guarded()).workspaces


@pytest.mark.covers("POL-5", "ENV-3")
@pytest.mark.parametrize("through", ["another", "itself"])
def test_a_root_that_is_reached_over_a_root_is_refused(place: Path, through: str) -> None:
    (place / "ws/demo/way").symlink_to(place / "ws/other" if through == "another" else ".")
    roots = {"v": {"root": str(place / "ws/demo")}} if through == "another" else {}
    with pytest.raises(RegistryRefused, match=r"is reached over .*/way, which lies in the root of") as refused:
        load(place, {**roots, "w": {"root": str(place / "ws/demo/way")}})
    assert refused.value.key == "workspaces.w.root"
    served = str(place / ("ws/other" if through == "another" else "ws/demo"))
    assert load(place, {**roots, "w": {"root": served}}).workspace("w").root == served


def test_links_in_a_circle_are_followed_to_no_end(place: Path) -> None:
    (place / "ws/demo/a").symlink_to("b")
    (place / "ws/demo/b").symlink_to("a")
    assert str(place / "ws/demo/a") in links_over(str(place / "ws/demo/a"))


PARTS = (
    *("a", "b.c", "*.", "*", "10.0.0.0", "/8", "/33", "/128", "::1", "[", "]", ":", "80", "0", "000080", "0000165536"),
    *("99999", "\u00e9", "\u0663", "_", "-", "x-", "1.2.3", "1.2.3.4", "a.1", "%eth0", "::ffff:1.2.3.4", ".", "a."),
)


@pytest.mark.covers("POL-5", "NET-4")
@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join))
def test_the_proxy_understands_every_destination_that_is_accepted(destination: str) -> None:
    """Else a command of that workspace would be refused at its start, long after the registry was accepted."""
    try:
        accepted = WorkspaceEntry(root="/r", network_allow=[destination]).network_allow
    except ValidationError:
        return
    assert parse_policy(accepted, accepted).allow


@pytest.mark.covers("POL-5")
@pytest.mark.parametrize("package", ["gateway", "runner", "adapters", "sandbox_helper"])
def test_no_root_holds_or_lies_in_the_code_that_runs_commands(place: Path, package: str) -> None:
    code = Path(importlib.util.find_spec(package).origin or "").parent  # type: ignore[union-attr]
    inner = next((path for path in code.rglob("*") if path.is_dir()), code)  # on a fresh checkout there may be none
    own = Settings.load(socket=place / "s", data_dir=place / "data").guarded()
    for root in (code, inner, Path(sys.prefix), Path(sys.prefix, "lib")):
        registry = write_registry(place / "etc/r.json", {"w": {"root": str(root)}})
        with pytest.raises(RegistryRefused, match="this program's own code"):
            load_registry(registry, own)


def test_the_image_refuses_a_workspace_without_sandbox(place: Path) -> None:
    registry = write_registry(place / "etc/r.json", {"w": {"root": str(place / "ws/demo"), "sandbox": "off"}})
    assert load_registry(registry, Guarded()).workspace("w").sandbox == "off"
    with pytest.raises(RegistryRefused, match="never runs commands unsandboxed"):
        load_registry(registry, Guarded(in_image=True))


def test_an_unknown_workspace_is_named_in_the_error(place: Path) -> None:
    registry = load(place, {"demo": {"root": str(place / "ws/demo")}})
    with pytest.raises(ToolError) as error:
        registry.workspace("nope")
    assert error.value.code is Code.WORKSPACE_NOT_FOUND
    assert "nope" in error.value.message


def test_effective_permissions_name_what_each_workspace_grants(place: Path) -> None:
    text = effective_permissions(
        load(
            place,
            {
                "demo": {"root": str(place / "ws/link"), "profile": "workspace-write", "sandbox": "off"},
                "ro": {"root": str(place / "ws/other"), "network": "enabled"},
            },
        )
    )
    assert f"root         {place}/ws/demo" in text
    assert "write yes, exec yes" in text
    assert "UNSAFE" in text
    assert "write no, exec no" in text
    assert "no destination" in text


KEYS = st.sampled_from(
    ["workspaces", "environments", "demo", "root", "profile", "limits", "cpu_s", "protect", "env"]
) | (st.text(max_size=6))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def outcome(name: str, data: bytes) -> RegistryFile | RegistryRefused:
    try:
        return parse_registry(name, data)
    except RegistryRefused as refused:
        return refused


@pytest.mark.covers("POL-5")
@given(JSON)
def test_any_json_is_a_registry_or_a_refusal(value: Any) -> None:
    found = outcome("r.json", json.dumps(value).encode())
    assert isinstance(found, RegistryFile) or (found.remedy and found.file == "r.json")


@pytest.mark.covers("POL-5")
@given(st.binary(max_size=200), st.sampled_from(["r.json", "r.toml", "r.txt"]))
def test_any_bytes_are_a_registry_or_a_refusal(data: bytes, name: str) -> None:
    found = outcome(name, data)
    assert isinstance(found, RegistryFile) or (found.remedy and found.file == name)
