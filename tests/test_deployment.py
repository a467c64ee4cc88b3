"""The files that start the image: each gives it the same, least rights. And the snippets for hosts that connect."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

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
