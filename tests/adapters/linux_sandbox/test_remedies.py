"""What an operator is told: flags that engines take, files that exist, and a remedy for the failure at hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adapters.linux_sandbox import remedies
from adapters.linux_sandbox.remedies import remedy_for
from sandbox_helper.protocol import STAGES, Failure

pytestmark = pytest.mark.covers("BOX-4")
SYMPTOMS = [
    ("namespace", "EPERM", "user_namespace", "seccomp=image/seccomp.json"),
    ("namespace", "EACCES", "user_namespace", "apparmor=unconfined"),
    ("namespace", "ENOSPC", "user_namespace", "sysctl -w user.max_user_namespaces="),
    ("maps", "EPERM", "user_namespace", "CAP_SETUID"),
    ("maps", "EACCES", "user_namespace", "apparmor_restrict_unprivileged_userns"),
    ("mounts", "EPERM", "mount_namespace", "seccomp=image/seccomp.json"),
    ("mounts", "EACCES", "mount_namespace", "apparmor=unconfined"),
    ("mounts", "ENOENT", "mount_namespace", "`mounts_read_only`"),
    ("mounts", "ENOSPC", "mount_namespace", "fs.mount-max"),
    ("protect", "ELOOP", "protected_names", "`protect`"),
    ("exec", "ENOENT", "exec", "/usr"),
]


@pytest.mark.parametrize(("stage", "errno", "feature", "said"), SYMPTOMS)
def test_each_symptom_has_its_remedy(stage: str, errno: str, feature: str, said: str) -> None:
    found, remedy = remedy_for(Failure(stage, errno, "", "refused"))
    assert found == feature
    assert said in (remedy or "")


def test_a_symptom_without_a_known_cause_has_no_made_up_remedy() -> None:
    assert remedy_for(Failure("mounts", "EIO", "", "broken")) == ("mount_namespace", None)
    assert remedy_for(Failure("verify", "EPERM", "", "refused")) == ("verify", None)


def test_a_place_that_cannot_be_given_away_is_not_short_of_room() -> None:
    assert "uid_map" in remedies.remedy_without_place("EINVAL")
    assert "TMPDIR" in remedies.remedy_without_place("ENOSPC")


@pytest.mark.parametrize("path", ["/proc", "/proc/self/ns/user"])
@pytest.mark.parametrize("stage", ["namespace", "mounts", "identity"])
def test_a_proc_that_is_not_mounted_is_named_whatever_missed_it_first(stage: str, path: str) -> None:
    feature, remedy = remedy_for(Failure(stage, "ENOENT", path, "No such file or directory"))
    assert feature == "proc"
    assert "mount -t proc" in (remedy or "")
    assert remedy_for(Failure(stage, "ENOENT", "/processes", ""))[0] != "proc"


@pytest.mark.parametrize("stage", STAGES)
def test_a_missing_directory_is_never_blamed_on_an_engine(stage: str) -> None:
    remedy = remedy_for(Failure(stage, "ENOENT", "/opt/tool", "No such file or directory"))[1]
    assert stage in ("namespace", "maps", "network") or "Docker" not in (remedy or "")


def test_every_engine_gets_the_words_for_its_proc() -> None:
    for words in ("systempaths=unconfined", "unmask=ALL", "procMount: Unmasked", "hostUsers: false"):
        assert words in remedies.OWN_PROC


def test_remedies_name_only_sysctls_that_kernels_have() -> None:
    source = Path(remedies.__file__).read_text()
    named = set(re.findall(r"\b((?:user|kernel|fs)\.[a-z_-]+)", source))
    distributions = {"kernel.unprivileged_userns_clone", "kernel.apparmor_restrict_unprivileged_userns"}
    absent = {name for name in named if not Path("/proc/sys", name.replace(".", "/")).exists()}
    assert named > distributions
    assert absent <= distributions
