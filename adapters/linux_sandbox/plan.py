"""From the terms of a workspace to the plan of its commands. Pure: equal terms and facts make equal plans.

The allow-list of BOX-6 is here: /usr and its links, what programs need of /etc, what the operator adds. It decides no
policy; the terms are the gateway's. Refuses to know descriptors, argv and the helper process. Called by the launcher.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from adapters.linux_sandbox.host import HostFacts
from adapters.linux_sandbox.network import RESTRICTED, BadRule, network_parts
from runner.api import WorkspaceTerms
from sandbox_helper.protocol import NAMESPACES, Limits, Mount, Plan, ProtocolError, parse_plan, plan_value

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOMES = ("/tmp/home", "/tmp/agent-home")
"""HOME is a directory of the private /tmp: one writable mount less. The second serves a workspace at the first."""
_OWN_PLACES = ("/", "/usr", "/proc", "/dev", "/tmp", "/etc")


@dataclass(frozen=True)
class Abilities:
    """What the probe found that a plan has to bend to. `cgroup_namespace`, `own_proc`: whether they can be had.
    `processes_proc`: whether at least a proc without the kernel's own entries can.
    `owner`: (uid, gid) of the workspace, where its file system takes no id map and the command must be its owner.
    `transparent`: whether addresses that stand for names can be had, with an `enabled` network. `leaf`: the controllers
    of the control group that a command starts in, or None without one. What they limit needs no limit by process."""

    cgroup_namespace: bool = True
    own_proc: bool = True
    processes_proc: bool = True
    transparent: bool = True
    owner: tuple[int, int] | None = None
    leaf: frozenset[str] | None = None


class PlanError(ValueError):
    """Terms that no plan can be made of. `path`: about which."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path, self.message = path, message


def build_plan(terms: WorkspaceTerms, host: HostFacts, abilities: Abilities, *, terminal: bool = False) -> Plan:
    """Raises PlanError for terms that no helper would take, a workspace at a place of the sandbox's own for one."""
    plan = (
        _plain_plan(terms, host, terminal)
        if terms.sandbox == "off"
        else _sandbox_plan(terms, host, abilities, terminal)
    )
    try:
        return parse_plan(json.loads(json.dumps(plan_value(plan))))
    except ProtocolError as error:
        raise PlanError(terms.root, f"the workspace's terms make no sandbox: {error}") from error


def _sandbox_plan(terms: WorkspaceTerms, host: HostFacts, abilities: Abilities, terminal: bool) -> Plan:
    if terms.root in _OWN_PLACES or terms.root.startswith(("/proc/", "/dev/")):
        raise PlanError(terms.root, f"{terms.root} is a place of the sandbox's own; register a directory elsewhere")
    home = next(home for home in _HOMES if not _is_within(home, terms.root) and not _is_within(terms.root, home))
    uid, gid = abilities.owner or (host.command_uid, host.command_gid)
    try:
        network = network_parts(terms, transparent=abilities.transparent)
    except BadRule as error:
        raise PlanError(terms.root, f"the workspace's network lists: {error}") from error
    return Plan(
        mode="sandbox",
        workspace=terms.root,
        uid=uid,
        gid=gid,
        idmap=host.uid == 0 and abilities.owner is None,
        mounts=_mounts(terms, host),
        links=(*host.root_links, *((("/etc/localtime", host.localtime),) if host.localtime else ()),
               ("/etc/mtab", "/proc/self/mounts"), *_unoccupied(terms)),
        files=_files(host, uid, gid, home, network.resolv_conf),
        namespaces=NAMESPACES if abilities.cgroup_namespace else NAMESPACES[:6],
        proc="own" if abilities.own_proc else "processes" if abilities.processes_proc else "empty",
        protect=tuple(sorted(terms.protect)),
        network=terms.network,
        listeners=network.listeners,
        netlink=network.netlink,
        limits=_limits(terms, abilities.leaf or frozenset()),
        env=_environment(terms, home, terminal, network.env),
        home=home,
        umask=0o022,
    )  # fmt: skip


def _unoccupied(terms: WorkspaceTerms) -> tuple[tuple[str, str], ...]:
    """Conveniences that give way: where the operator's directories lie below one, it is a directory instead."""
    links = (("/var/tmp", "/tmp"), ("/run/shm", "/dev/shm"))
    given = (terms.root, *terms.mounts_read_only)
    return tuple(link for link in links if not any(_is_within(path, link[0]) for path in given))


def _plain_plan(terms: WorkspaceTerms, host: HostFacts, terminal: bool) -> Plan:
    return Plan(
        mode="plain",
        workspace=terms.root,
        uid=host.uid,
        gid=host.gid,
        idmap=False,
        mounts=(),
        links=(),
        files=(),
        namespaces=(),
        proc="own",
        protect=(),
        network="none",
        listeners=(),
        netlink=(),
        limits=_limits(terms, frozenset()),
        env=_environment(terms, "/tmp", terminal, RESTRICTED.env),
        home="/tmp",
        umask=0o022,
    )


def _is_within(path: str, ancestor: str) -> bool:
    return path == ancestor or path.startswith(ancestor.rstrip("/") + "/")


def _mounts(terms: WorkspaceTerms, host: HostFacts) -> tuple[Mount, ...]:
    bound = dict.fromkeys(("/usr", *host.root_directories, *host.etc_bound, *terms.mounts_read_only))
    # What lies within /usr is there already, and mounting it again would need its directory.
    seen = [path for path in bound if path == "/usr" or not _is_within(path, "/usr")]
    # Halves of the memory limit, so that together they hold no more than it.
    memory = terms.limits.memory_mb
    return (
        *(Mount("read_only", path, path) for path in seen if path != terms.root),
        *(Mount("copy", path, path) for path in host.etc_copied),
        Mount("workspace", terms.root, terms.root),
        Mount("tmpfs", "/tmp", size_mb=_share(memory, 2), mode=0o1777),
        Mount("tmpfs", "/dev/shm", size_mb=_share(memory, 2), mode=0o1777),
    )


def _share(memory_mb: int, part: int) -> int:
    return max(1, memory_mb // part) if memory_mb else 0


def _files(host: HostFacts, uid: int, gid: int, home: str, resolv_conf: str) -> tuple[tuple[str, str], ...]:
    """Accounts and names of the sandbox's own: the host's would tell who else is there."""
    nologin = "/usr/sbin/nologin"
    accounts = (
        f"root:x:0:0:root:/root:{nologin}",
        f"agent:x:{uid}:{gid}:agent:{home}:/bin/sh",
        f"nobody:x:65534:65534:nobody:/nonexistent:{nologin}",
    )
    return (
        ("/etc/passwd", "\n".join(accounts) + "\n"),
        ("/etc/group", f"root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n"),
        ("/etc/hosts", f"127.0.0.1 localhost {host.hostname}\n::1 localhost ip6-localhost ip6-loopback\n"),
        ("/etc/hostname", f"{host.hostname}\n"),
        ("/etc/resolv.conf", resolv_conf),
        ("/etc/machine-id", ""),
        ("/etc/shells", "/bin/sh\n/bin/bash\n"),
    )


def _limits(terms: WorkspaceTerms, leaf: frozenset[str]) -> Limits:
    """Those of each process. Beside a group's own they would strike first, and nobody would tell of it."""
    limits = terms.limits
    return Limits(
        cpu_s=limits.cpu_s,
        memory_mb=0 if "memory" in leaf else limits.memory_mb,
        processes=0 if "pids" in leaf else limits.processes,
        open_files=limits.open_files,
        file_size_mb=limits.file_size_mb,
    )


def _environment(
    terms: WorkspaceTerms, home: str, terminal: bool, proxy: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    clean = {"PATH": PATH, "HOME": home, "LANG": "C.UTF-8", **dict(proxy)}
    if terminal:
        clean["TERM"] = "xterm-256color"
    return tuple(sorted((clean | terms.env).items()))


def plan_id(plan: Plan) -> str:
    """Equal for equal plans."""
    return hashlib.sha256(json.dumps(plan_value(plan), sort_keys=True).encode()).hexdigest()
