"""Runs the attack probes inside the real sandbox, and outside as the control that shows that each can succeed.

One sandboxed command tries most of them; those that take more than a limit allows get a command of their own, since the
limit may end all of it. Uses the launcher that every command goes through, and a temporary workspace. Refuses to know
registries and terminals. Joined in `gateway.__main__` for `codespace selftest`.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from adapters.linux_sandbox.host import ROOT_STAND_IN_ID
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from adapters.linux_sandbox.selftest import bait
from adapters.linux_sandbox.selftest.bait import Bait
from runner.api import ErrorCode, Limits, Protection, RunnerError, WorkspaceTerms
from runner.ports import LaunchFailed, LaunchRequest, LaunchUncertain, ManagedExit, SandboxUnavailable

TARGETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "targets.json")
"""Probe to its kind and to the errnos that count as the refusal meant; null: refused without one."""
RUN_S = 60
AN_ORDINARY_ID = 1000
"""Of a user's own workspace: the first that systems give."""
_MAX_OUTPUT_BYTES = 1024 * 1024
State = Literal["blocked", "open", "untried"]


@dataclass(frozen=True)
class Tried:
    """One probe. `control`: of the same probe outside; `open` proves that it can succeed. `expected`: whether the
    refusal was the one meant, by its errno."""

    name: str
    kind: str
    state: State
    errno: str | None
    detail: str
    expected: bool
    control: State
    control_detail: str
    excused: bool
    """The control could not succeed here for a reason that is none of the probe's."""

    @property
    def holds(self) -> bool:
        return self.state == "blocked" and (self.control == "open" or self.excused)


@dataclass(frozen=True)
class _Outcome:
    state: State
    errno: str | None
    detail: str


def targets() -> dict[str, dict[str, Any]]:
    """Raises OSError, ValueError for an installation that is not whole."""
    with open(TARGETS, encoding="utf-8") as file:
        loaded: dict[str, dict[str, Any]] = json.load(file)
    return loaded


async def selftest() -> list[Tried]:
    """Every probe of the table, in its order; one that printed nothing is `untried`.

    Raises `RunnerError` SANDBOX_UNAVAILABLE or PROCESS_SPAWN_FAILED where no sandbox could be made, OSError where the
    bait has no place.
    """
    wanted = await asyncio.to_thread(targets)
    interpreter = await asyncio.to_thread(find_interpreter)
    owner = ROOT_STAND_IN_ID if os.geteuid() == 0 else None
    if owner is not None:
        await check_workspaces()
    context = bait.lay_out(owner)
    laid = await asyncio.to_thread(context.__enter__)
    try:
        control = asyncio.create_task(asyncio.to_thread(_outside, laid, interpreter))
        try:
            inside = await _inside(laid, interpreter, wanted)
        finally:
            outside = await control
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)
    around = await asyncio.to_thread(confined_from_outside)
    return [_judge(name, target, inside, outside, around) for name, target in wanted.items()]


def find_interpreter() -> str:
    """One that a command can see. Raises RunnerError."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    for path in (os.path.realpath(base), "/usr/bin/python3", "/usr/local/bin/python3"):
        if path.startswith("/usr/") and os.access(path, os.X_OK):
            return path
    raise RunnerError(
        ErrorCode.INTERNAL,
        "The probes need a Python interpreter that commands can see, below /usr: install python3 there.",
    )


async def check_workspaces() -> None:
    """As root the probes run as a user that no workspace belongs to, for whom no id is mapped. That proves nothing of a
    machine where neither a workspace of root nor one of an ordinary user could have a sandbox.

    Raises `RunnerError` SANDBOX_UNAVAILABLE there, OSError where a workspace has no place.
    """
    launcher = LinuxSandboxLauncher()
    missing: Protection | None = None
    try:
        for owner in (0, AN_ORDINARY_ID):
            root = await asyncio.to_thread(_directory_of, owner)
            if root is None:
                continue
            try:
                report = await launcher.report(WorkspaceTerms(workspace_id="selftest", root=root, protect=()))
            finally:
                await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)
            if report.available:
                return
            missing = missing or next(p for p in report.protections if p.required and p.state == "off")
    finally:
        await launcher.close()
    assert missing is not None
    details = {"feature": missing.name, "errno": missing.errno, "remedy": missing.remedy}
    message = f"no workspace of root or of an ordinary user can have a sandbox here: {missing.detail or missing.name}"
    raise RunnerError(ErrorCode.SANDBOX_UNAVAILABLE, message, details=details)


def _directory_of(owner: int) -> str | None:
    """None where the id is not mapped in this user namespace."""
    root = os.path.realpath(tempfile.mkdtemp(prefix="codespace-selftest-"))
    try:
        os.chown(root, owner, owner)
    except OSError as error:
        os.rmdir(root)
        if error.errno == errno.EINVAL:
            return None
        raise
    return root


# --- inside -----------------------------------------------------------------------------------------------------------
async def _inside(laid: Bait, interpreter: str, wanted: Mapping[str, Mapping[str, Any]]) -> dict[str, _Outcome]:
    launcher = LinuxSandboxLauncher()
    try:
        await launcher.start()
        kinds = dict.fromkeys(target["kind"] for target in wanted.values() if target["kind"] != "resource")
        options = [word for kind in kinds for word in ("--only", kind)]
        argv = laid.command(interpreter, *options)
        found = _parse((await _command(launcher, laid, argv, Limits(timeout_s=RUN_S)))[0])
        for name, target in wanted.items():
            if target["kind"] == "resource":
                argv = laid.command(interpreter, "--only", name)
                output, ended = await _command(launcher, laid, argv, bait.LIMITS)
                found |= _parse(output) or _by_its_end(name, ended)
        return found
    except SandboxUnavailable as error:
        details = {"feature": error.feature, "errno": error.errno, "remedy": error.remedy}
        raise RunnerError(ErrorCode.SANDBOX_UNAVAILABLE, error.message, details=details) from error
    except LaunchFailed as error:
        details = {"stage": error.stage, "errno": error.errno, "remedy": error.remedy}
        raise RunnerError(ErrorCode.PROCESS_SPAWN_FAILED, error.message, details=details) from error
    except LaunchUncertain as error:
        raise RunnerError(ErrorCode.PROCESS_SPAWN_FAILED, error.message, details={"stage": "exec"}) from error
    finally:
        await launcher.close()


async def _command(
    launcher: LinuxSandboxLauncher, laid: Bait, argv: Sequence[str], limits: Limits
) -> tuple[bytes, ManagedExit]:
    """Output and end of one command, killed after RUN_S."""
    terms = WorkspaceTerms(
        workspace_id="selftest",
        root=laid.workspace,
        protect=bait.PROTECT,
        mounts_read_only=(laid.tools,),
        limits=limits,
    )
    process = await launcher.launch(LaunchRequest("proc_selftest", terms, tuple(argv), None))
    process.close_stdin()
    output, ended = bytearray(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def drain() -> None:
        try:
            chunk = os.read(process.output_fd, 65536)
        except BlockingIOError:
            return
        if chunk and len(output) < _MAX_OUTPUT_BYTES:
            output.extend(chunk)
        elif not chunk:
            loop.remove_reader(process.output_fd)
            ended.set()

    loop.add_reader(process.output_fd, drain)
    try:
        async with asyncio.timeout(RUN_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        process.kill()
        over = await process.wait()
        # Nothing of the command is alive, so that nobody holds the other end.
        await ended.wait()
        process.close()
    return bytes(output), over


def _parse(output: bytes) -> dict[str, _Outcome]:
    """Lines that are no record are left out: their probe stays without an outcome, which is no protection."""
    found = {}
    for line in output.decode("utf-8", "replace").splitlines():
        try:
            record = json.loads(line)
            state: State = {"open": "open", "refused": "blocked", "untried": "untried"}[record["state"]]  # type: ignore[assignment]
            found[str(record["id"])] = _Outcome(state, record["errno"], str(record["detail"]))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _by_its_end(name: str, ended: ManagedExit) -> dict[str, _Outcome]:
    """A limit may have ended the whole command; only the kernel's own word for it counts."""
    if ended.limit is None:
        return {}
    return {name: _Outcome("blocked", None, f"ended by the limit {ended.limit}")}


# --- outside ----------------------------------------------------------------------------------------------------------
def _outside(laid: Bait, interpreter: str) -> dict[str, _Outcome]:
    """In a process of its own with one descriptor too many, for the probe that looks for such."""
    extra = os.open("/dev/null", os.O_RDONLY)
    try:
        done = subprocess.run(
            laid.command(interpreter, control=True),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(extra,),
            start_new_session=True,
            timeout=RUN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return _parse(error.stdout or b"")
    finally:
        os.close(extra)
    return _parse(done.stdout)


def confined_from_outside() -> str | None:
    """What refuses things to this very process, a container engine's filter for one; None where nothing does."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    if status.get("Seccomp", "0").strip() != "0":
        return "a system call filter around this program"
    try:
        with open("/proc/self/attr/current", encoding="ascii", errors="replace") as file:
            profile = file.read().strip("\0\n ")
    except OSError:
        return None
    return f"the profile {profile} around this program" if profile not in ("", "unconfined", "kernel") else None


def _judge(
    name: str,
    target: Mapping[str, Any],
    inside: Mapping[str, _Outcome],
    outside: Mapping[str, _Outcome],
    around: str | None,
) -> Tried:
    missing = _Outcome("untried", None, "the probe said nothing")
    found, control = inside.get(name, missing), outside.get(name, missing)
    excused = control is not missing and (
        control.state == "untried" or (control.state == "blocked" and around is not None)
    )
    if control.state == "blocked" and around is not None:
        control = replace(control, detail=f"{control.errno or 'refused'} outside as well, by {around}")
    return Tried(
        name=name,
        kind=target["kind"],
        state=found.state,
        errno=found.errno,
        detail=found.detail,
        expected=found.state == "blocked" and found.errno in target["errnos"],
        control=control.state,
        control_detail=control.detail or control.errno or "",
        excused=excused,
    )
