"""From what the helper's own process printed of itself to the runner's account of its protections. Pure.

A protection is active because a record from inside says so, never because of a version. Refuses to probe. Called by the
launcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from adapters.linux_sandbox.cgroups import CONTROLLERS, NoSubtree
from adapters.linux_sandbox.network import network_protections
from adapters.linux_sandbox.plan import Abilities
from adapters.linux_sandbox.remedies import CGROUP_NAMESPACE, IDENTITY, LIMITS, MEMORY, OWN_PROC
from runner.api import Isolation, IsolationReport, Limits, Protection, WorkspaceTerms
from sandbox_helper.protocol import NAMESPACES, Plan

State = Literal["active", "degraded", "off"]
REQUIRED = frozenset(
    {
        "user_namespace", "mount_namespace", "pid_namespace", "network_namespace", "ipc_namespace", "uts_namespace",
        "read_only_system", "capabilities", "no_new_privs", "seccomp", "identity", "protected_names",
    }
)  # fmt: skip
_PROC_DETAILS = {
    "own": None,
    "processes": "/proc holds the command's processes only",
    "empty": "/proc is empty inside",
}
_NAMESPACE_NAMES = {"mnt": "mount_namespace", "net": "network_namespace"} | {
    name: f"{name}_namespace" for name in ("user", "pid", "ipc", "uts", "cgroup")
}
_CAP_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


class PostureError(ValueError):
    """The record is not one: the probe proves nothing."""


def protections(
    record: Mapping[str, Any],
    outside: Mapping[str, str],
    plan: Plan,
    abilities: Abilities,
    terms: WorkspaceTerms | None,
    no_group: NoSubtree | None,
) -> tuple[Protection, ...]:
    """`record`: as sandbox_helper.posture prints it. `outside`: the runner's own namespaces, by name. `no_group`: why
    commands have no control group of their own.

    Raises PostureError for a record that lacks what every record has.
    """
    try:
        found = _protections(record, outside, plan, abilities, terms.limits if terms else Limits())
        found += _limit_protections(record["limits"], terms.limits if terms else Limits(), abilities.leaf, no_group)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise PostureError(f"the probe's record lacks {error}") from error
    network = () if terms is None else network_protections(plan, terms, transparent=abilities.transparent)
    return (*found, *network)


def _protections(
    record: Mapping[str, Any], outside: Mapping[str, str], plan: Plan, abilities: Abilities, limits: Limits
) -> list[Protection]:
    status, inside, mounts = record["status"], record["namespaces"], record["mounts"]
    # Without a proc inside, the set-up's own verification stands for the record: it read the same through another proc.
    unseen = status is None and plan.proc == "empty"
    found = [_namespace(name, inside[name], outside[name], unseen, plan) for name in NAMESPACES]
    found.append(
        Protection(
            name="own_proc",
            state="active" if plan.proc == "own" and status is not None else "degraded",
            required=False,
            errno=None if plan.proc == "own" else "EPERM",
            detail=_PROC_DETAILS[plan.proc],
            remedy=None if plan.proc == "own" else OWN_PROC,
        )
    )
    checks = {
        "capabilities": unseen or all(int(status[name], 16) == 0 for name in _CAP_SETS),
        "no_new_privs": unseen or status["NoNewPrivs"] == "1",
        "seccomp": unseen or status["Seccomp"] == "2",
        "read_only_system": unseen or _sealed(mounts),
        "protected_names": unseen or _covered(mounts, plan),
    }
    found.extend(
        Protection(name=name, state="active" if holds else "off", required=True) for name, holds in checks.items()
    )
    found.append(_identity(record, plan, abilities))
    found.append(
        Protection(
            name="landlock", state="off", required=False,
            detail="not used for commands: the mount namespace holds what they may touch",
        )
    )  # fmt: skip
    return found


def _namespace(name: str, inside: str | None, outside: str, unseen: bool, plan: Plan) -> Protection:
    own = (unseen and name in plan.namespaces) or (inside is not None and inside != outside)
    public = _NAMESPACE_NAMES[name]
    required = public in REQUIRED
    return Protection(
        name=public,
        state="active" if own else "off" if required else "degraded",
        required=required,
        remedy=None if own or name != "cgroup" else CGROUP_NAMESPACE,
    )


def _sealed(mounts: list[list[str]]) -> bool:
    """The root and the system directories are read-only mounts of their own."""
    options = {point: flags.split(",") for point, flags in mounts}
    return all(point in options and "ro" in options[point] for point in ("/", "/usr"))


def _covered(mounts: list[list[str]], plan: Plan) -> bool:
    """Each protected name of the plan (the probe's own names all exist or have their parent) is a read-only mount."""
    options = {point: flags.split(",") for point, flags in mounts}
    return all("ro" in options.get(f"{plan.workspace}/{name}", ()) for name in plan.protect)


def _identity(record: Mapping[str, Any], plan: Plan, abilities: Abilities) -> Protection:
    true = record["uid"] == plan.uid and record["gid"] == plan.gid and plan.uid != 0 and record["workspace_writable"]
    state: State = "off" if not true else "active" if abilities.owner is None else "degraded"
    return Protection(
        name="identity",
        state=state,
        required=True,
        errno=None if abilities.owner is None else "EINVAL",
        detail="the command runs as the workspace's owner" if state == "degraded" else None,
        remedy=None if state == "active" else IDENTITY,
    )


def _limit_protections(
    inside: Mapping[str, int], limits: Limits, leaf: frozenset[str] | None, no_group: NoSubtree | None
) -> list[Protection]:
    """Limits of a control group were read back from it when it was made."""
    leaf, found = leaf or frozenset(), []
    by_group = {"memory_limit": "memory" in leaf, "process_limit": "pids" in leaf}
    for name, wanted, here, weaker in (
        ("process_limit", limits.processes, inside["NPROC"], None),
        ("cpu_limit", limits.cpu_s, inside["CPU"], "for each process, not for all of them together"),
        ("memory_limit", limits.memory_mb << 20, inside["DATA"], MEMORY),
        ("file_size_limit", limits.file_size_mb << 20, inside["FSIZE"], None),
        ("open_files_limit", limits.open_files, inside["NOFILE"], None),
    ):
        state: State = "off" if not 0 < here <= wanted else "degraded" if weaker else "active"
        if by_group.get(name):
            state = "active" if wanted else "off"
        detail = "no limit is set" if not wanted else weaker if state == "degraded" else None
        remedy = LIMITS if state == "degraded" else None
        found.append(Protection(name=name, state=state, required=False, detail=detail, remedy=remedy))
    found.append(
        Protection(name="limit_attribution", state="active", required=False)
        if leaf >= CONTROLLERS
        else Protection(
            name="limit_attribution",
            state="degraded",
            required=False,
            errno=None if no_group is None else no_group.errno,
            detail="memory and process limits hold, but nothing says when one ended a command"
            + ("" if no_group is None else f": {no_group.detail}"),
            remedy=LIMITS,
        )
    )
    return found


_LIMIT_NAMES = {
    "process_limit": "processes", "cpu_limit": "cpu_s", "memory_limit": "memory_mb",
    "file_size_limit": "file_size_mb", "open_files_limit": "open_files",
}  # fmt: skip


def under(found: tuple[Protection, ...], limits: Limits) -> tuple[Protection, ...]:
    """What the probe proved, for terms of other limits than its own: one that is not set protects from nothing."""
    return tuple(
        p.model_copy(update={"state": "off", "detail": "no limit is set", "remedy": None})
        if p.name in _LIMIT_NAMES and not getattr(limits, _LIMIT_NAMES[p.name])
        else p
        for p in found
    )


def available(found: tuple[Protection, ...], limits: Limits) -> IsolationReport:
    """The report of a sandbox that was made, for commands of these limits."""
    found = under(found, limits)
    whole = all(p.state != "off" for p in found if p.required)
    return IsolationReport(
        command_sandbox="linux-sandbox",
        available=whole,
        network_enforcement="enforced" if whole else "none",
        protections=found,
    )


def unavailable(feature: str, errno_name: str | None, message: str, remedy: str | None) -> IsolationReport:
    """The report of a sandbox that could not be made: the missing feature, and the rest unproved."""
    missing = Protection(name=feature, state="off", required=True, errno=errno_name, detail=message, remedy=remedy)
    rest = tuple(
        Protection(name=name, state="off", required=True, detail=f"not probed: {feature} is missing")
        for name in sorted(REQUIRED - {feature})
    )
    return IsolationReport(
        command_sandbox="linux-sandbox", available=False, network_enforcement="none", protections=(missing, *rest)
    )


def switched_off() -> IsolationReport:
    """The report of a workspace whose operator switched the sandbox off."""
    return IsolationReport(command_sandbox="none", available=True, network_enforcement="none", protections=())


def isolation_of(
    plan: Plan, found: tuple[Protection, ...], limits: Limits, leaf: frozenset[str] | None = None
) -> Isolation:
    """What was in force for one command, from the report that its launcher made of the same plan. `leaf`: the
    controllers of its control group, or None."""
    grouped = {
        name for controller, name in (("memory", "memory_mb"), ("pids", "processes")) if controller in (leaf or ())
    }
    sandboxed = plan.mode == "sandbox"
    return Isolation(
        command_sandbox="linux-sandbox" if sandboxed else "none",
        network="none" if not sandboxed else "enabled" if plan.network == "enabled" else "restricted",
        protections={p.name: p.state for p in under(found, limits)} if sandboxed else {},
        limits={
            "timeout_s": "deadline" if limits.timeout_s else "off",
            **{
                name: "off" if not value else "cgroup" if name in grouped else "rlimit"
                for name, value in (
                    ("cpu_s", limits.cpu_s),
                    ("memory_mb", limits.memory_mb),
                    # Counted for the whole uid outside a user namespace, so a plain command has none of its own.
                    ("processes", limits.processes),
                    ("open_files", limits.open_files),
                    ("file_size_mb", limits.file_size_mb),
                )
            },
        },
    )
