"""The registry: which workspaces exist and on what terms, as the operator wrote them (ENV, POL-5).

A registry is loaded whole or refused whole. Refuses to know: policy decisions, leases, transports. Called at start,
at reload and by `codespace registry check`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from gateway import system_places
from gateway.answers import Profile
from gateway.errors import Code, RegistryRefused, ToolError
from gateway.image import check_root_inside
from gateway.links import link_within
from gateway.registry_file import RegistryFile, WorkspaceEntry, read_registry_file
from gateway.root_access import REMEDY, lacking, readable
from gateway.system_places import inside
from runner.api import Limits, WorkspaceRef, WorkspaceTerms

EnvironmentKind = Literal["host", "linux-container"]


@dataclass(frozen=True)
class Guarded:
    """What no workspace and no mount may hold: (what it is, absolute path), and the homes of people.

    `private`: files and sockets; `data_dir`: the directory that also must not hold a root. `program`: where the code of
    this program lies, which a command that could write it would run outside its sandbox; a mount may show it.
    `in_image`: roots must then be mounted and writable, and the sandbox cannot be switched off.
    """

    private: tuple[tuple[str, str], ...] = ()
    data_dir: str | None = None
    homes: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    in_image: bool = False


@dataclass(frozen=True)
class Workspace:
    """One entry, checked. `root`: canonical. `device`/`inode`: of that root when it was checked.

    `shut`: its owner lacked permission on it then, which a command can do; locking it for service gives it back.
    """

    workspace_id: str
    root: str
    device: int
    inode: int
    profile: Profile
    network: Literal["restricted", "enabled"]
    approvals: Literal["off", "confirm"]
    environment_id: str
    environment: EnvironmentKind
    sandbox: Literal["required", "off"]
    limits: Limits
    network_allow: tuple[str, ...]
    network_deny: tuple[str, ...]
    protect: tuple[str, ...]
    mounts_read_only: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    shut: bool = False

    def ref(self) -> WorkspaceRef:
        """What a reading request names."""
        return WorkspaceRef(workspace_id=self.workspace_id, root=self.root, environment=self.environment)

    def terms(self) -> WorkspaceTerms:
        """What a command runs under (PROC-1)."""
        return WorkspaceTerms(
            workspace_id=self.workspace_id,
            root=self.root,
            environment=self.environment,
            sandbox=self.sandbox,
            network=self.network,
            network_allow=self.network_allow,
            network_deny=self.network_deny,
            limits=self.limits,
            protect=self.protect,
            mounts_read_only=self.mounts_read_only,
            env=dict(self.env),
        )


@dataclass(frozen=True)
class Registry:
    """`file`: where it came from. `workspaces`: in the order of the file."""

    file: str
    workspaces: Mapping[str, Workspace]

    def __iter__(self) -> Iterator[Workspace]:
        return iter(self.workspaces.values())

    def workspace(self, workspace_id: str) -> Workspace:
        """Raises `ToolError` WORKSPACE_NOT_FOUND."""
        found = self.workspaces.get(workspace_id)
        if found is None:
            raise ToolError(
                Code.WORKSPACE_NOT_FOUND,
                f"no workspace {workspace_id[:80]!r} is registered: call workspace_info without arguments for the list",
                details={"workspace_id": workspace_id[:80]},
            )
        return found


def load_registry(path: Path, guarded: Guarded) -> Registry:
    """Reads, validates and looks at the disk. A root that is reached through a symbolic link is resolved: what is
    served is the directory it leads to now, and that is what `registry check` prints.

    Raises `RegistryRefused` with file, key and remedy. Blocks on the disk.
    """
    file = read_registry_file(path)
    name = str(path)
    kinds: dict[str, EnvironmentKind] = {"host": "host"}
    kinds.update({entry_id: entry.kind for entry_id, entry in file.environments.items()})
    guarded = replace(guarded, private=(("this registry", name), *guarded.private))
    workspaces = {
        workspace_id: _workspace(name, workspace_id, entry, kinds, guarded)
        for workspace_id, entry in file.workspaces.items()
    }
    _check_apart(name, list(workspaces.values()))
    _check_links(name, file, workspaces)
    _check_mounts(name, file, workspaces, guarded)
    return Registry(file=name, workspaces=MappingProxyType(workspaces))


def _places(path: str) -> tuple[str, str]:
    """Where a guarded name leads, and where the name lies: whoever can write the latter can put a link there."""
    absolute = os.path.abspath(path)
    return os.path.realpath(path), os.path.join(os.path.realpath(os.path.dirname(absolute)), os.path.basename(absolute))


def _workspace(
    file: str, workspace_id: str, entry: WorkspaceEntry, kinds: Mapping[str, EnvironmentKind], guarded: Guarded
) -> Workspace:
    key = f"workspaces.{workspace_id}"
    if entry.environment not in kinds:
        raise RegistryRefused(
            file,
            f"{key}.environment",
            f"no environment {entry.environment[:80]!r}",
            f"use one of {', '.join(kinds)}, or add it under environments",
        )
    if entry.sandbox == "off" and guarded.in_image:
        raise RegistryRefused(file, f"{key}.sandbox", "the image never runs commands unsandboxed", "remove the key")
    root = os.path.realpath(entry.root)
    status = _check_root(file, f"{key}.root", root, guarded)
    shut = lacking(status, writes=guarded.in_image and entry.profile == "workspace-write") != 0
    if guarded.in_image:
        check_root_inside(file, f"{key}.root", root, entry.profile, shut=shut)
    return Workspace(
        workspace_id=workspace_id,
        root=root,
        device=status.st_dev,
        inode=status.st_ino,
        profile=entry.profile,
        network=entry.network,
        approvals=entry.approvals,
        environment_id=entry.environment,
        environment=kinds[entry.environment],
        sandbox=entry.sandbox,
        limits=Limits(**entry.limits.model_dump()),
        network_allow=tuple(entry.network_allow),
        network_deny=tuple(entry.network_deny),
        protect=tuple(dict.fromkeys(entry.protect)),
        mounts_read_only=tuple(dict.fromkeys(entry.mounts_read_only)),
        env=MappingProxyType(dict(entry.env)),
        shut=shut,
    )


def _check_root(file: str, key: str, root: str, guarded: Guarded) -> os.stat_result:
    def refuse(problem: str, remedy: str) -> RegistryRefused:
        return RegistryRefused(file, key, problem, remedy)

    try:
        root.encode()
        status = os.stat(root)
    except OSError as error:
        raise refuse(f"{root} does not exist or is out of reach ({error.strerror})", "create the directory") from None
    except UnicodeEncodeError:
        raise refuse("leads to a name that is not UTF-8", "rename that directory") from None
    if not os.path.isdir(root):
        raise refuse(f"{root} is not a directory", "name the project's directory")
    if not lacking(status) and not readable(root):
        raise refuse(f"{root} cannot be read by uid {os.geteuid()}", "grant that user read and search permission")
    if root == "/":
        raise refuse("the root is /", "name the project's own directory")
    for home in guarded.homes:
        if inside(home, root):
            raise refuse(f"{root} is or holds the home {home}", "name a project's directory inside it")
    for what, path in guarded.private:
        if inside(os.path.realpath(path), root):
            raise refuse(f"{root} holds {what}, {path}", "move that file, or name a narrower root")
    if guarded.data_dir is not None:
        data = os.path.realpath(guarded.data_dir)
        if inside(data, root) or inside(root, data):
            raise refuse(f"{root} and the data directory {data} overlap", "keep them apart, with --data-dir")
    for what, name in (*guarded.private, ("the data directory", guarded.data_dir)):
        if name is not None and (link := link_within(os.path.abspath(name), root)):
            raise refuse(f"{root} holds {link}, over which {what}, {name}, is reached", "name it without that link")
    if problem := system_places.why_no_root(root):
        raise refuse(problem, "name the project's directory")
    for program in map(os.path.realpath, guarded.program):
        if inside(program, root) or inside(root, program):
            how = "holds" if inside(program, root) else "lies in"
            raise refuse(f"{root} {how} this program's own code, {program}", "register a copy, or install it elsewhere")
    return status


def _check_apart(file: str, workspaces: list[Workspace]) -> None:
    for index, one in enumerate(workspaces):
        for other in workspaces[:index]:
            key = f"workspaces.{one.workspace_id}.root"
            if (one.device, one.inode) == (other.device, other.inode):
                problem = f"{one.root} is also the root of {other.workspace_id}"
                raise RegistryRefused(file, key, f"duplicate root: {problem}", "register each directory once")
            if inside(one.root, other.root) or inside(other.root, one.root):
                problem = f"{one.root} and {other.root} of {other.workspace_id} lie in one another"
                raise RegistryRefused(file, key, f"nested roots: {problem}", "register directories that lie apart")


def _check_links(file: str, source: RegistryFile, workspaces: Mapping[str, Workspace]) -> None:
    """A command could lead a link in its root elsewhere, and with it whatever root is reached over it."""
    for workspace_id, entry in source.workspaces.items():
        for other in workspaces.values():
            if link := link_within(entry.root, other.root):
                problem = f"{entry.root} is reached over {link}, which lies in the root of {other.workspace_id}"
                real = workspaces[workspace_id].root
                raise RegistryRefused(file, f"workspaces.{workspace_id}.root", problem, f"write {real}")


def _check_mounts(file: str, source: RegistryFile, workspaces: Mapping[str, Workspace], guarded: Guarded) -> None:
    for workspace_id, entry in source.workspaces.items():
        for index, mount in enumerate(entry.mounts_read_only):
            key = f"workspaces.{workspace_id}.mounts_read_only.{index}"

            def refuse(problem: str, remedy: str, key: str = key) -> RegistryRefused:
                return RegistryRefused(file, key, problem, remedy)

            real = os.path.realpath(mount)
            if not os.path.exists(real):
                raise refuse(f"{mount} does not exist", "create it or remove the entry")
            if real != mount:
                raise refuse(f"{mount} is not a canonical path", f"write {real}")
            if problem := system_places.why_no_mount(real):
                raise refuse(problem, "name a narrower directory")
            for what, path in (*guarded.private, ("the data directory", guarded.data_dir)):
                if path is not None:
                    held = _places(path)
                    if any(inside(at, real) for at in held) or (path == guarded.data_dir and inside(real, held[0])):
                        raise refuse(f"{mount} would show {what}, {path}", "name a narrower directory")
            for home in guarded.homes:
                if inside(home, real):
                    raise refuse(f"{mount} is or holds the home {home}", "name a directory inside it")
            for other in workspaces.values():
                if inside(other.root, real) or inside(real, other.root):
                    remedy = "name a directory outside all roots; `protect` keeps a name of the root unchanged"
                    raise refuse(f"{mount} and the root of {other.workspace_id} overlap", remedy)


def effective_permissions(registry: Registry) -> str:
    """What each workspace really grants, as text for the operator. Ends in a newline."""
    lines = [f"registry {registry.file}: {len(registry.workspaces)} workspace(s)"]
    for workspace in registry:
        write = workspace.profile == "workspace-write" and workspace.environment == "host"
        read = workspace.environment == "host"
        lines.append(f"{workspace.workspace_id}")
        lines.append(f"  root         {workspace.root}")
        if workspace.shut:
            lines.append(f"  WARNING      its owner lacks permission on the root: {REMEDY} {workspace.root}")
            lines.append("               a start or reload of serve does so; a command may have taken it away")
        lines.append(f"  environment  {workspace.environment_id} ({workspace.environment})")
        lines.append(
            f"  profile      {workspace.profile}: read {_word(read)}, write {_word(write)}, exec {_word(write)}"
        )
        if workspace.environment != "host":
            lines.append("  unavailable  this environment has no backend here: every tool on it is refused")
        lines.append(f"  approvals    {workspace.approvals}")
        lines.append(f"  sandbox      {workspace.sandbox}" + ("" if workspace.sandbox == "required" else " (UNSAFE)"))
        lines.append(f"  network      {workspace.network}")
        if workspace.network == "enabled":
            lines.append(f"    allow      {', '.join(workspace.network_allow) or 'no destination'}")
            lines.append(f"    deny       {', '.join(workspace.network_deny) or 'nothing more'}")
        limits = ", ".join(f"{name} {value or 'none'}" for name, value in workspace.limits.model_dump().items())
        lines.append(f"  limits       {limits}")
        lines.append(f"  protect      {', '.join(workspace.protect) or 'nothing'}")
        if workspace.mounts_read_only:
            lines.append(f"  read-only    {', '.join(workspace.mounts_read_only)}")
        if workspace.env:
            lines.append(f"  env          {', '.join(sorted(workspace.env))}")
    return "\n".join(lines) + "\n"


def _word(fact: bool) -> str:
    return "yes" if fact else "no"
