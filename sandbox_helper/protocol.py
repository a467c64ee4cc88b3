"""The language between the runner's adapter and the sandbox helper: plans, requests, replies and status records.

A plan is data: what the command will find, never which command it is. Plans are equal for equal workspaces, and argv
and descriptors travel apart from them, in the request that runs one. Everything is parsed strictly: an unknown field,
a wrong type or a missing mount is a ProtocolError, and nothing runs.

Requests (one SEQPACKET message each: JSON, then NUL and the argv as NUL-ended strings; descriptors by SCM_RIGHTS):
`plan` lays a plan down, `run` starts a command under one, `adopt` hands over pidfds of children that an earlier helper
made (a helper outlives its children, so that its end proves theirs). Replies repeat the request's `id`.
Records (JSON lines): on the report socket what the runner has to act upon, then EOF; on the status pipe, which nobody
waits for meanwhile, one for each stage of the set-up, then the raw end of the command. A run that `waits` is told its
argv later, in one message on the report socket (`fed_message`), and runs it when GO follows.

Imported by the adapter and the tests, and by the helper itself; imports nothing of ours. It refuses to know how any of
it is done.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

VERSION = 1
MAX_MESSAGE_BYTES = 400 * 1024
"""Of one request or reply: what a Unix socket takes at most when nobody raised the machine's limits."""

STAGES = (
    "namespace", "maps", "parent", "identity", "mounts", "protect", "pivot", "network", "terminal", "limits",
    "capabilities", "seccomp", "verify", "session", "chdir", "exec",
)  # fmt: skip
"""Where a start can fail, in order. `namespace` is the helper server's own; the rest are the child's."""

RUN_DESCRIPTORS = ("stdin", "stdout", "stderr", "report", "status", "control")
"""What travels with `run`. With a terminal the first three are absent: it is made inside, and its master comes back.
With `leaf` one more follows: the directory of the control group that the child starts in."""

SET_UP_FAILED = 125
"""The exit status of `run --plan` for a command that never ran; standard error then holds the failure in JSON."""

INTERPRETER_MISSING = "the program exists, but the interpreter that its first line names (#!), or its loader, does not"
"""The message of a failed `exec` that says ENOENT of something else than the program."""

PLACEHOLDER_MODE = 0o000
PLACEHOLDER_MTIME_S = 1_000_000_007
"""An empty regular file with one name, this mode and this time is a placeholder of ours for an absent protected name:
whoever finds one after the command may remove it. No other file can be lost by that, since it holds nothing."""

MAX_FED_BYTES = 32 * 1024
"""Of the argv of a command that a waiting child takes: it fits the socket at once, and arrives whole or never."""
GO = b"1"
"""What the runner says to a waiting child that was fed once its own look is done; anything else ends the child."""

MAX_ADOPTED = 8
"""Descriptors that travel with one request, at most."""

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")

LISTENER_KINDS = ("proxy", "transparent", "names_udp", "names_tcp")
MAX_LISTENERS = 200
"""The kernel passes at most 253 descriptors with one message."""
MAX_NETLINK_MESSAGES = 1024
LISTENERS_TAKEN = b"1"
"""What the runner answers on the report socket once somebody serves the listeners; anything else ends the start."""


class ProtocolError(ValueError):
    """A message that is not of this protocol: `what` is wrong, at `where`."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where, self.what = where, what


class Mount(NamedTuple):
    """One thing in the command's tree, at the absolute path `target`.

    `read_only`: a host directory or file, bound. `workspace`: the workspace, bound writable. `copy`: a small host file,
    copied. `tmpfs`: a private file system of at most `size_mb` (0: the kernel's own half of memory).
    """

    kind: str
    target: str
    source: str = ""
    size_mb: int = 0
    mode: int = 0o755


class Listener(NamedTuple):
    """A socket that is made in the command's own network and handed to the runner: `kind` of LISTENER_KINDS."""

    kind: str
    address: str
    port: int


class Limits(NamedTuple):
    """Per process, except `processes`. 0 means no limit. `memory_mb` bounds private writable memory (RLIMIT_DATA)."""

    cpu_s: int
    memory_mb: int
    processes: int
    open_files: int
    file_size_mb: int


class Plan(NamedTuple):
    """What a command finds.

    `mode`: `sandbox`, or `plain` for a session, limits and descriptors without any isolation. `uid`, `gid`: the
    command's, inside and outside. `idmap`: bind the workspace so that its owner's files are the command's. `links`:
    (path, target). `files`: (path, text). `namespaces`: of NAMESPACES. `proc`: `own`, `processes` where only one
    without the kernel's own entries can be mounted, or `empty` where none can. `protect`: names below the
    workspace. `network`: `restricted`, `enabled`, or `none` for a plain one. `home`: a private directory, made at
    the top of one of the private file systems. `listeners`, `netlink`: with `enabled` alone; `netlink` are requests
    of rtnetlink(7) in hexadecimal, each of which the kernel must acknowledge.
    """

    mode: str
    workspace: str
    uid: int
    gid: int
    idmap: bool
    mounts: tuple[Mount, ...]
    links: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    namespaces: tuple[str, ...]
    proc: str
    protect: tuple[str, ...]
    network: str
    listeners: tuple[Listener, ...]
    netlink: tuple[str, ...]
    limits: Limits
    env: tuple[tuple[str, str], ...]
    home: str
    umask: int


class Run(NamedTuple):
    """`payload`: `exec` runs argv; `posture` prints what the command would be, as JSON, and ends with 0. `leaf`: start
    in the control group whose directory comes with the request. `waits`: there is no argv yet; the child prepares
    everything, says so, and waits for it. It makes no placeholder, and fails at `protect` where one would be needed."""

    id: int
    plan_id: str
    argv: tuple[bytes, ...]
    tty: tuple[int, int] | None
    payload: str
    leaf: bool = False
    waits: bool = False


# --- strict reading ---------------------------------------------------------------------------------------------------
def _fields(value: Any, where: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(where, "must be an object")
    unknown, missing = value.keys() - set(names), set(names) - value.keys()
    if unknown:
        raise ProtocolError(where, f"unknown field {sorted(unknown)[0]}")
    if missing:
        raise ProtocolError(where, f"missing field {sorted(missing)[0]}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ProtocolError(where, "must be text without NUL")
    return value


def _one_of(value: Any, where: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed or not isinstance(value, str):
        raise ProtocolError(where, f"must be one of {', '.join(allowed)}")
    return value


def _number(value: Any, where: str, least: int = 0, most: int = 2**63 - 1) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(where, f"must be a whole number from {least} to {most}")
    return value


def _truth(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ProtocolError(where, "must be true or false")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ProtocolError(where, "must be a list")
    return value


def _absolute(value: Any, where: str) -> str:
    """Canonical, so that no `..` or doubled slash reaches a mount call."""
    path = _text(value, where)
    if not path.startswith("/") or (path != "/" and any(part in ("", ".", "..") for part in path[1:].split("/"))):
        raise ProtocolError(where, "must be an absolute path without empty, . or .. components")
    return path


def _relative(value: Any, where: str) -> str:
    path = _text(value, where)
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ProtocolError(where, "must be a relative path without empty, . or .. components")
    return path


def _pairs(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for place, item in enumerate(_list(value, where)):
        if not isinstance(item, list) or len(item) != 2:
            raise ProtocolError(f"{where}[{place}]", "must be a pair")
        pairs.append((_text(item[0], f"{where}[{place}]"), _text(item[1], f"{where}[{place}]")))
    return tuple(pairs)


def _mount(value: Any, where: str) -> Mount:
    item = _fields(value, where, Mount._fields)
    kind = _one_of(item["kind"], f"{where}.kind", ("read_only", "workspace", "copy", "tmpfs"))
    source = _text(item["source"], f"{where}.source")
    if (kind == "tmpfs") == bool(source):
        raise ProtocolError(f"{where}.source", "a tmpfs has none, everything else has one")
    if source:
        _absolute(source, f"{where}.source")
    return Mount(
        kind=kind,
        target=_absolute(item["target"], f"{where}.target"),
        source=source,
        size_mb=_number(item["size_mb"], f"{where}.size_mb", 0, 2**40),
        mode=_number(item["mode"], f"{where}.mode", 0, 0o7777),
    )


def parse_plan(value: Any) -> Plan:
    """The plan that `plan_value` made. Raises ProtocolError for anything else."""
    item = _fields(value, "plan", Plan._fields)
    mode = _one_of(item["mode"], "plan.mode", ("sandbox", "plain"))
    mounts = tuple(_mount(m, f"plan.mounts[{n}]") for n, m in enumerate(_list(item["mounts"], "plan.mounts")))
    workspace = _absolute(item["workspace"], "plan.workspace")
    namespaces = tuple(_one_of(n, "plan.namespaces", NAMESPACES) for n in _list(item["namespaces"], "plan.namespaces"))
    networks = ("restricted", "enabled") if mode == "sandbox" else ("none",)
    network = _one_of(item["network"], "plan.network", networks)
    if mode == "sandbox":
        _check_sandbox(mounts, workspace, namespaces)
        if os.path.dirname(_absolute(item["home"], "plan.home")) not in {m.target for m in mounts if m.kind == "tmpfs"}:
            raise ProtocolError("plan.home", "must be at the top of a private file system")
    elif mounts or namespaces or item["protect"]:
        raise ProtocolError("plan.mode", "a plain plan has no mounts, namespaces or protected names")
    limits = _fields(item["limits"], "plan.limits", Limits._fields)
    links = _pairs(item["links"], "plan.links")
    files = _pairs(item["files"], "plan.files")
    for path, _ in (*links, *files):
        _absolute(path, "plan.links or plan.files")
    _check_hidden(mounts, links, files)
    env = _pairs(item["env"], "plan.env")
    if any(not name or "=" in name for name, _ in env):
        raise ProtocolError("plan.env", "a name must not be empty or hold =")
    return Plan(
        mode=mode,
        workspace=workspace,
        uid=_number(item["uid"], "plan.uid", 0, 2**32 - 2),
        gid=_number(item["gid"], "plan.gid", 0, 2**32 - 2),
        idmap=_truth(item["idmap"], "plan.idmap"),
        mounts=mounts,
        links=links,
        files=files,
        namespaces=namespaces,
        proc=_one_of(item["proc"], "plan.proc", ("own", "processes", "empty")),
        protect=tuple(_relative(name, "plan.protect") for name in _list(item["protect"], "plan.protect")),
        network=network,
        listeners=_listeners(item["listeners"], network),
        netlink=_netlink(item["netlink"], network),
        limits=Limits(*(_number(limits[name], f"plan.limits.{name}", 0, 2**40) for name in Limits._fields)),
        env=env,
        home=_absolute(item["home"], "plan.home"),
        umask=_number(item["umask"], "plan.umask", 0, 0o777),
    )


def _listeners(value: Any, network: str) -> tuple[Listener, ...]:
    found = []
    for place, entry in enumerate(_list(value, "plan.listeners")):
        where = f"plan.listeners[{place}]"
        item = _fields(entry, where, Listener._fields)
        kind = _one_of(item["kind"], f"{where}.kind", LISTENER_KINDS)
        address = _one_of(item["address"], f"{where}.address", ("127.0.0.1", "0.0.0.0"))
        found.append(Listener(kind, address, _number(item["port"], f"{where}.port", 1, 65535)))
    if network != "enabled" and found:
        raise ProtocolError("plan.listeners", "need network `enabled`")
    if network == "enabled" and "proxy" not in {listener.kind for listener in found}:
        raise ProtocolError("plan.listeners", "missing the proxy's")
    if len(found) > MAX_LISTENERS:
        raise ProtocolError("plan.listeners", f"more than {MAX_LISTENERS}")
    return tuple(found)


def _netlink(value: Any, network: str) -> tuple[str, ...]:
    messages = tuple(_text(message, "plan.netlink") for message in _list(value, "plan.netlink"))
    if messages and network != "enabled":
        raise ProtocolError("plan.netlink", "needs network `enabled`")
    if len(messages) > MAX_NETLINK_MESSAGES:
        raise ProtocolError("plan.netlink", f"more than {MAX_NETLINK_MESSAGES} messages")
    for message in messages:
        try:
            length = len(bytes.fromhex(message))
        except ValueError:
            raise ProtocolError("plan.netlink", "is not hexadecimal") from None
        if not 16 <= length <= 4096:
            raise ProtocolError("plan.netlink", "a message has a header, and at most 4096 bytes")
    return messages


def _check_sandbox(mounts: tuple[Mount, ...], workspace: str, namespaces: tuple[str, ...]) -> None:
    """What a sandbox cannot be without, and what it must never hold twice."""
    missing = set(NAMESPACES[:6]) - set(namespaces)
    if missing:
        raise ProtocolError("plan.namespaces", f"missing namespace {sorted(missing)[0]}")
    own = [m for m in mounts if m.kind == "workspace"]
    if len(own) != 1 or own[0].target != workspace or own[0].source != workspace:
        raise ProtocolError("plan.mounts", "missing mount: exactly one workspace, at its own path")
    targets = [m.target for m in mounts]
    for needed in ("/usr", "/tmp", "/dev/shm"):
        if needed not in targets:
            raise ProtocolError("plan.mounts", f"missing mount {needed}")
    if len(set(targets)) != len(targets):
        raise ProtocolError("plan.mounts", "two mounts have one target")
    if "/" in targets or any(t == p or t.startswith(p + "/") for t in targets for p in ("/proc", "/dev/pts")):
        raise ProtocolError("plan.mounts", "/, /proc and /dev/pts are the helper's own")


def is_below(path: str, ancestor: str) -> bool:
    return path.startswith(ancestor.rstrip("/") + "/")


def _check_hidden(
    mounts: tuple[Mount, ...], links: tuple[tuple[str, str], ...], files: tuple[tuple[str, str], ...]
) -> None:
    """Nothing that is written into the tree lies under a mount, where nobody would see it; no mount goes by a link."""
    covers = [m.target for m in mounts if m.kind != "copy"]
    written = [path for path, _ in (*links, *files)] + [m.target for m in mounts if m.kind == "copy"]
    for path in written:
        for cover in covers:
            if path == cover or is_below(path, cover):
                raise ProtocolError("plan.mounts", f"{cover} would hide {path}")
    for path, _ in links:
        for target in (*covers, *written):
            if is_below(target, path):
                raise ProtocolError("plan.mounts", f"{target} would go by the link {path}")


def plan_value(plan: Plan) -> dict[str, Any]:
    """The JSON value of a plan."""
    value = plan._asdict()
    value["mounts"] = [mount._asdict() for mount in plan.mounts]
    value["listeners"] = [listener._asdict() for listener in plan.listeners]
    value["limits"] = plan.limits._asdict()
    return value


# --- requests ---------------------------------------------------------------------------------------------------------
def plan_request(request_id: int, plan_id: str, plan: Plan) -> bytes:
    """Raises ProtocolError for a plan beyond MAX_MESSAGE_BYTES."""
    return _bounded({"op": "plan", "id": request_id, "plan_id": plan_id, "plan": plan_value(plan)}, b"")


def run_request(run: Run) -> bytes:
    """Raises ProtocolError for a command beyond MAX_MESSAGE_BYTES, or with NUL in an argument."""
    if any(b"\0" in argument for argument in run.argv):
        raise ProtocolError("run.argv", "holds NUL")
    head = {"op": "run", "id": run.id, "plan_id": run.plan_id, "tty": run.tty, "payload": run.payload}
    head |= {"leaf": run.leaf, "waits": run.waits}
    return _bounded(head, b"".join(argument + b"\0" for argument in run.argv))


def fed_message(argv: tuple[bytes, ...]) -> bytes | None:
    """What a waiting child takes: the length in 4 bytes, big-endian, then NUL-ended strings; None where it is too long.

    Raises ProtocolError for NUL in an argument.
    """
    if any(b"\0" in argument for argument in argv):
        raise ProtocolError("run.argv", "holds NUL")
    content = b"".join(argument + b"\0" for argument in argv)
    return None if len(content) > MAX_FED_BYTES else len(content).to_bytes(4, "big") + content


def parse_fed(content: bytes) -> tuple[bytes, ...]:
    """The argv, of what follows the length. Raises ProtocolError."""
    arguments = tuple(content.split(b"\0"))
    if arguments[-1] or len(arguments) < 2 or not arguments[0]:
        raise ProtocolError("run.argv", "needs a program, and an end for each argument")
    return arguments[:-1]


def adopt_request(request_id: int) -> bytes:
    """With it go up to MAX_ADOPTED pidfds."""
    return _bounded({"op": "adopt", "id": request_id}, b"")


def _bounded(head: dict[str, Any], argv: bytes) -> bytes:
    message = json.dumps(head, separators=(",", ":")).encode() + b"\0" + argv
    if len(message) > MAX_MESSAGE_BYTES:
        raise ProtocolError(str(head["op"]), f"is {len(message)} bytes, more than {MAX_MESSAGE_BYTES}")
    return message


def split_request(message: bytes) -> tuple[str, int, dict[str, Any], bytes]:
    """(op, id, all fields, raw argv) of a request. Raises ProtocolError."""
    head, nul, argv = message.partition(b"\0")
    try:
        value = json.loads(head)
    except ValueError as error:
        raise ProtocolError("request", "is not JSON") from error
    if not nul or not isinstance(value, dict):
        raise ProtocolError("request", "must be an object, then NUL")
    return (
        _one_of(value.get("op"), "request.op", ("plan", "run", "adopt")),
        _number(value.get("id"), "request.id"),
        value,
        argv,
    )


def parse_run(value: dict[str, Any], argv: bytes) -> Run:
    """Raises ProtocolError."""
    item = _fields(value, "run", ("op", "id", "plan_id", "tty", "payload", "leaf", "waits"))
    tty = _size(item["tty"], "run.tty")
    payload = _one_of(item["payload"], "run.payload", ("exec", "posture"))
    waits = _truth(item["waits"], "run.waits")
    if waits and (payload != "exec" or argv):
        raise ProtocolError("run.waits", "is for a command that is told later")
    arguments = () if waits or (payload != "exec" and not argv) else parse_fed(argv)
    leaf = _truth(item["leaf"], "run.leaf")
    number, plan_id = _number(item["id"], "run.id"), _text(item["plan_id"], "run.plan_id")
    return Run(number, plan_id, arguments, tty, payload, leaf, waits)


def parse_laid_plan(value: dict[str, Any]) -> tuple[str, Plan]:
    """(plan_id, plan) of a `plan` request. Raises ProtocolError."""
    item = _fields(value, "request", ("op", "id", "plan_id", "plan"))
    return _text(item["plan_id"], "request.plan_id"), parse_plan(item["plan"])


class Once(NamedTuple):
    """One command for `run --plan`. `tty`: the size of the terminal to make, or None for the caller's streams."""

    plan: Plan
    argv: tuple[str, ...]
    tty: tuple[int, int] | None


def once_value(once: Once) -> bytes:
    """What the descriptor of `run --plan` holds."""
    return json.dumps({"plan": plan_value(once.plan), "argv": once.argv, "tty": once.tty}).encode()


def parse_once(data: bytes) -> Once:
    """Raises ProtocolError."""
    item = _fields(parse_object(data, "once"), "once", Once._fields)
    argv = tuple(_text(argument, "once.argv") for argument in _list(item["argv"], "once.argv"))
    if not argv or not argv[0]:
        raise ProtocolError("once.argv", "needs a program")
    return Once(parse_plan(item["plan"]), argv, _size(item["tty"], "once.tty"))


def _size(value: Any, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise ProtocolError(where, "must be rows and columns")
    return _number(value[0], where, 1, 1000), _number(value[1], where, 1, 1000)


# --- replies and records ----------------------------------------------------------------------------------------------
class Failure(NamedTuple):
    """A step that failed: `stage` of STAGES, `errno` a name such as EPERM, `path` what it was about or empty."""

    stage: str
    errno: str
    path: str
    message: str


class Cover(NamedTuple):
    """A name of the workspace that was covered or pinned, with what stood there. A cover stays on what it was put on:
    whoever replaces or renames that from outside takes it off the name. `placeholder`: an empty one of ours."""

    name: str
    device: int
    inode: int
    placeholder: bool


def parse_covers(value: Any) -> tuple[Cover, ...]:
    """Raises ProtocolError."""
    covers = []
    for item in _list(value, "covers"):
        if not isinstance(item, list) or len(item) != len(Cover._fields):
            raise ProtocolError("covers", "must be lists of name, device, inode, placeholder")
        covers.append(
            Cover(
                _relative(item[0], "covers.name"),
                _number(item[1], "covers.device"),
                _number(item[2], "covers.inode", 0, 2**64 - 1),
                _truth(item[3], "covers.placeholder"),
            )
        )
    return tuple(covers)


class Standing(NamedTuple):
    """What one place of a sandbox was when its tree was laid out: `stamp` of the workspace is device, inode, uid, gid;
    of anything else device, inode, and size and time (ns) of a file. A place that differs is another one."""

    path: str
    stamp: tuple[int, int, int, int]


def parse_standing(value: Any) -> tuple[Standing, ...]:
    """Of the reply to a run that waits; the workspace is the first. Raises ProtocolError."""
    found = []
    for item in _list(value, "stands_on"):
        if not isinstance(item, list) or len(item) != 5:
            raise ProtocolError("stands_on", "must be lists of a path and four numbers")
        device, inode, third, fourth = (_number(part, "stands_on", -(2**63), 2**64 - 1) for part in item[1:])
        found.append(Standing(_absolute(item[0], "stands_on"), (device, inode, third, fourth)))
    if not found:
        raise ProtocolError("stands_on", "must name the workspace")
    return tuple(found)


class CommandEnd(NamedTuple):
    """The raw end of the main command, as PID 1 reaped it: exactly one of `code` and `signal` (a number) is set.
    `cpu_ms`: what it and its reaped children used."""

    code: int | None
    signal: int | None
    cpu_ms: int


def encode(record: dict[str, Any]) -> bytes:
    """One JSON line."""
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def failure_value(failure: Failure) -> dict[str, Any]:
    return {"failed": failure._asdict()}


def parse_failure(value: Any) -> Failure:
    """Raises ProtocolError."""
    item = _fields(value, "failed", Failure._fields)
    return Failure(*(_text(item[name], f"failed.{name}") for name in Failure._fields))


def parse_object(line: bytes, where: str) -> dict[str, Any]:
    """Raises ProtocolError."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ProtocolError(where, "is not JSON") from error
    if not isinstance(value, dict):
        raise ProtocolError(where, "must be an object")
    return value


def end_record(code: int | None, signal: int | None, cpu_ms: int) -> bytes:
    """The record of a `CommandEnd`, written without an encoder: PID 1 has nothing else to encode."""
    code_text, signal_text = ("null" if number is None else str(number) for number in (code, signal))
    return b'{"code":%s,"signal":%s,"cpu_ms":%d}\n' % (code_text.encode(), signal_text.encode(), cpu_ms)


_STAGE_PREFIX = b'{"stage":"'


def stage_line(stage: str) -> bytes:
    """The record of a stage that was entered."""
    return _STAGE_PREFIX + stage.encode() + b'"}\n'


def split_status(data: bytes) -> tuple[str | None, bytes]:
    """(last stage that was entered, what follows the stages) of what the status pipe held."""
    stage = None
    while data.startswith(_STAGE_PREFIX):
        line, _, data = data.partition(b"\n")
        stage = line[len(_STAGE_PREFIX) : -2].decode(errors="replace")
    return stage, data


def parse_command_end(line: bytes) -> CommandEnd:
    """Raises ProtocolError."""
    item = _fields(parse_object(line, "status"), "status", CommandEnd._fields)
    code, signal = item["code"], item["signal"]
    if (code is None) == (signal is None):
        raise ProtocolError("status", "needs exactly one of code and signal")
    return CommandEnd(
        None if code is None else _number(code, "status.code", 0, 255),
        None if signal is None else _number(signal, "status.signal", 1, 64),
        _number(item["cpu_ms"], "status.cpu_ms"),
    )
