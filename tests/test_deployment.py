"""The files that start the image: each gives it the same, least rights. And the snippets for hosts that connect."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROFILE = ROOT / "image" / "seccomp.json"


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.covers("IMG-2")
def test_the_profile_departs_from_the_engines_default_only_as_declared() -> None:
    declared = json.loads(text_of("image/seccomp/departures.json"))
    default = json.loads(text_of("image/seccomp/engine-default.json"))
    ours = json.loads(PROFILE.read_text())
    assert {key: value for key, value in ours.items() if key != "syscalls"} == {
        key: value for key, value in default.items() if key != "syscalls"
    }
    added = [rule for rule in ours["syscalls"] if rule not in default["syscalls"]]
    gone = [rule for rule in default["syscalls"] if rule not in ours["syscalls"]]
    assert added == [{"names": list(declared["added"]), "action": "SCMP_ACT_ALLOW"}]
    assert [name for rule in gone for name in rule["names"]] == list(declared["replaced"])
    assert all(len(reason) > 20 for reasons in declared.values() for reason in reasons.values())


@pytest.mark.covers("IMG-2")
def test_a_profile_that_was_edited_by_hand_is_found(tmp_path: Path) -> None:
    for name in ("tools/seccomp_profile.py", "image/seccomp/engine-default.json", "image/seccomp/departures.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text_of(name))
    copy = tmp_path / "image/seccomp.json"
    check = [sys.executable, str(tmp_path / "tools/seccomp_profile.py"), "--check"]
    copy.write_text(PROFILE.read_text())
    assert subprocess.run(check, capture_output=True, timeout=15, check=False).returncode == 0
    copy.write_text(PROFILE.read_text().replace('"open_tree"', '"open_tree", "bpf"'))
    refused = subprocess.run(check, capture_output=True, text=True, timeout=15, check=False)
    assert (refused.returncode, refused.stderr.startswith("error: out of date")) == (1, True)


@pytest.mark.covers("IMG-1")
@pytest.mark.parametrize("document", ["docs/image.md", "deploy/up.sh", "deploy/compose.yaml"])
def test_every_way_to_start_it_drops_the_same_rights(document: str) -> None:
    text = re.sub(r"\\\n\s*", "", text_of(document))
    for needle in (
        r"cap[-_]drop:? (\[ALL\]|ALL)", r"no-new-privileges",
        r"seccomp=\S*image/seccomp\.json", r"systempaths=unconfined",
        r"read[-_]only", r"tmpfs:? (\[/tmp\]|/tmp)", r"/etc/codespace:ro",
    ):  # fmt: skip
        assert re.search(needle, text), f"{document} lacks {needle}"
    assert not re.search(r"privileged(:| )|SYS_ADMIN|docker\.sock", text)


@pytest.mark.covers("IMG-1")
def test_the_pod_keeps_a_user_namespace_and_drops_everything() -> None:
    text = text_of("deploy/kubernetes/codespace.yaml")
    for needle in (
        "hostUsers: false", "procMount: Unmasked", "runAsNonRoot: true", "readOnlyRootFilesystem: true",
        "allowPrivilegeEscalation: false", "capabilities: {drop: [ALL]}", "localhostProfile: profiles/codespace.json",
        "automountServiceAccountToken: false",
    ):  # fmt: skip
        assert needle in text, needle
    assert "privileged" not in text


KUBERNETES = ("1.33", "1.37")
"""The oldest version that the manifests are for, and the newest that there are schemas of."""


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text_of("deploy/kubernetes/codespace.yaml")))


@pytest.mark.covers("IMG-1")
@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifests_hold_what_the_published_schemas_know_and_nothing_else(version: str) -> None:
    documents = manifests()
    assert [document["kind"] for document in documents] == [
        "ServiceAccount", "ConfigMap", "Service", "StatefulSet", "NetworkPolicy",
    ]  # fmt: skip
    for document in documents:
        assert kubernetes_validate.validate(document, version, strict=True) == version


def pod(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize(
    "mistake",
    [
        lambda document: pod(document).update(hostUser=False),
        lambda document: pod(document).update(hostUsers="no"),
        lambda document: pod(document)["containers"][0]["securityContext"].update(procMonut="Unmasked"),
        lambda document: pod(document)["containers"][0]["startupProbe"].update(period=1),
        lambda document: document["spec"]["volumeClaimTemplates"][0]["spec"].update(size="1Gi"),
        lambda document: document["spec"].pop("selector"),
    ],
    ids=["pod field", "type", "container field", "probe field", "volume field", "missing field"],
)
def test_a_mistake_in_a_manifest_is_found(mistake: Callable[[dict[str, Any]], None], version: str) -> None:
    (document,) = (copy.deepcopy(document) for document in manifests() if document["kind"] == "StatefulSet")
    mistake(document)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, version, strict=True)


def complaints(unit: Path) -> list[str]:
    """What systemd has against a unit; what it says of other units of the machine is theirs."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return [line for line in done.stderr.splitlines() if unit.name in line]


@pytest.mark.covers("IMG-1")
@pytest.mark.timeout(120)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    text = text_of("deploy/systemd/codespace.service")
    # The program is not installed there; everything else is as shipped.
    assert "ExecStart=/opt/codespace/bin/codespace serve" in text
    text = text.replace("ExecStart=/opt/codespace/bin/codespace", "ExecStart=/bin/true")
    good, bad = tmp_path / "codespace.service", tmp_path / "mistaken.service"
    good.write_text(text)
    assert complaints(good) == []
    bad.write_text(text.replace("NoNewPrivileges=", "NoNewPrivilege=").replace("Restart=on-failure", "Restart=maybe"))
    assert len(complaints(bad)) == 2


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text_of(name), flags=re.DOTALL)


@pytest.mark.covers("NETIF-1")
def test_every_host_configuration_in_the_documents_starts_the_bridge() -> None:
    found: list[Any] = [json.loads(block) for block in blocks("docs/connect.md", "json")]
    found += [tomllib.loads(block) for block in blocks("docs/connect.md", "toml")]
    assert len(found) == 3
    for document in found:
        (servers,) = document.values()
        server = servers["codespace"]
        assert [server["command"], *server["args"]] == ["docker", "exec", "-i", "codespace", "codespace", "connect"]
