"""The patch helper: a process that serves one workspace, from JSON lines on stdin to JSON lines on stdout.

    {"id", "method": "apply", patch, expected_versions, check_only, operation_id, protect}   a patch or a preview
    {"id", "method": "recover"}                                                              finish what was interrupted

Answers are {"id", "ends", "result"}, {"id", "ends", "error": {code, message, retryable, details}}, or {"id", "stale"}
where the root is not the directory that this helper was started on (nothing was done then). `ends`: it was the last
answer of this process. The first line is a hello.
Requests are served one at a time. End of input ends it. It holds a lock on the journal directory, so two never serve
one workspace; it knows no policy, no ledger, and nothing outside its two directories.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from adapters.patch_helper.commit import Commit, Defaults, describe
from adapters.patch_helper.journal import Journal, Record, is_operation_id
from adapters.patch_helper.lockdown import MEMORY_BYTES, confine, die_with_parent, renew_cpu_limit, set_limits
from adapters.patch_helper.recovery import Recovery
from adapters.patch_helper.steps import Steps
from adapters.patch_helper.tree import Tree, version_of
from adapters.v4a.budget import Limits
from adapters.v4a.engine import plan
from adapters.v4a.errors import PatchError, TooCostly
from adapters.v4a.paths import clean_path

MAX_REQUEST_BYTES = 64 * 1024 * 1024
LOCK_WAIT_S = 10.0
RECYCLE_KIB = 64 * 1024
"""Above this peak the helper ends after its answer, so that memory one patch fragmented is not missing for the next."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RootClosed(OSError):
    """The root itself cannot be opened: a fact about the workspace, none about this program."""


class Workspace:
    """The two directories, and what one request does with them."""

    def __init__(self, root: str, journal_dir: str, steps: Steps) -> None:
        self._root = root
        os.makedirs(journal_dir, mode=0o700, exist_ok=True)
        try:
            self.root_fd = os.open(root, _DIRECTORY)
        except OSError as error:
            raise RootClosed(error.errno, error.strerror) from error
        self.journal_fd = os.open(journal_dir, _DIRECTORY)
        self._steps = steps
        self._journal = Journal(self.journal_fd, steps)
        umask = os.umask(0)
        os.umask(umask)
        status = os.fstat(self.root_fd)
        owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
        self._defaults = Defaults(0o644 & ~umask, 0o755, owner)

    def close(self) -> None:
        self._journal.close()
        os.close(self.root_fd)
        os.close(self.journal_fd)

    def lock(self) -> None:
        """Waits for a helper before this one to be gone. Raises OSError (EWOULDBLOCK) where it does not go."""
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self.journal_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return

    def is_stale(self) -> bool:
        """The root's name leads to another directory than the one held."""
        held = os.fstat(self.root_fd)
        try:
            now = os.stat(self._root)
        except OSError:
            return True
        return (held.st_dev, held.st_ino) != (now.st_dev, now.st_ino)

    def apply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Raises `PatchError`."""
        limits = Limits()
        with Tree(self.root_fd, limits) as tree:
            made = plan(request["patch"], tree, request["expected_versions"], protect=request["protect"], limits=limits)
            expected = {clean_path(path): version for path, version in request["expected_versions"].items()}
            answer: dict[str, Any] = {
                "status": "checked",
                "files": [target.path for target in made.targets],
                "changes": describe(made, tree),
                "warnings": made.warnings,
            }
            if request["check_only"]:
                return answer
            operation_id = request["operation_id"]
            if not isinstance(operation_id, str) or not is_operation_id(operation_id):
                raise PatchError("INVALID_ARGUMENT", "operation_id must be given: letters, digits, `_` and `-`.")
            self._settle_earlier(operation_id)
            Commit(self.root_fd, tree, self._journal, self._steps, self._defaults).run(operation_id, made, expected)
        return answer | {"status": "applied"}

    def recover(self) -> dict[str, Any]:
        return {"recovered": [self._recover(name) for name in self._journal.names()]}

    def _settle_earlier(self, new_id: str) -> None:
        """Forgets operations that are over, finishes those that are not. The caller holds the workspace's lease, so
        whatever is over has been recorded. An operation that has a journal is not begun again."""
        for name in self._journal.names():
            if self._journal.goes_on(name, new_id):
                continue
            recovery = Recovery(self.root_fd, self._journal, self._steps)
            try:
                record = self._journal.read(name)
                if record.operation_id == new_id:
                    raise PatchError(
                        "FILE_OPERATION_FAILED",
                        f"operation {new_id} has been begun before and is not run again. Ask for its status.",
                    )
                if record.outcome is not None or record.intent is None:
                    self._journal.forget(name)
                elif not recovery.is_foreign(record.intent):
                    recovery.recover(name)
            except (OSError, ValueError, LookupError, TypeError) as error:
                raise PatchError(
                    "FILE_OPERATION_FAILED",
                    f"operation {name} was interrupted and cannot be recovered ({type(error).__name__}). "
                    "The operator has to look at its journal.",
                ) from error

    def _recover(self, name: str) -> dict[str, Any]:
        recovery = Recovery(self.root_fd, self._journal, self._steps)
        try:
            record = recovery.recover(name)
        except (ValueError, LookupError, TypeError):
            record = Record(name, None, False, None, "its journal is damaged, so nothing is proved")
        except OSError as error:
            raise PatchError(
                "FILE_OPERATION_FAILED",
                f"operation {name} cannot be recovered now: {error.strerror}. It will be tried again.",
                errno=errno.errorcode.get(error.errno or 0, "unknown"),
            ) from error
        intent = record.intent
        return {
            "operation_id": record.operation_id,
            "status": record.outcome or "unknown",
            "files": list(intent.files) if intent else [],
            "changes": list(intent.changes) if intent else [],
            "reason": record.reason,
        }


def serve(root: str, journal_dir: str, parent_pid: int, steps: Steps) -> int:
    """Runs until end of input. The exit status: 0, or 1 where it could not start or failed by its own fault."""
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    os.dup2(2, 1)  # nothing but answers goes out on the pipe
    die_with_parent(parent_pid)
    set_limits()
    try:
        workspace = Workspace(root, journal_dir, steps)
        workspace.lock()
        memory = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        version_of(b"")  # loads what hashing needs while files outside the workspace can still be opened
        confinement = confine((workspace.root_fd, workspace.journal_fd))
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "unknown")
        of = "root" if isinstance(error, RootClosed) else "helper"
        _send(answers, {"failed": {"of": of, "errno": name, "message": f"cannot start: {error.strerror}"}})
        return 1
    _send(answers, {"hello": {"confinement": confinement}})
    for request in _requests(0):
        renew_cpu_limit()
        answer = _answer(workspace, request)
        ends = "stale" in answer or _peak_kib(memory) > RECYCLE_KIB
        _send(answers, {"id": request["id"], "ends": ends, **answer})
        if ends:
            return 0
    return 0


def _peak_kib(status: int) -> int:
    """Peak resident memory. Not from getrusage: that begins with the peak of the program that started this one."""
    _, _, after = os.pread(status, 8192, 0).partition(b"VmHWM:")
    return int(after.split(maxsplit=1)[0])


def _answer(workspace: Workspace, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if workspace.is_stale():
            return {"stale": True}
        return {"result": workspace.apply(request) if request["method"] == "apply" else workspace.recover()}
    except PatchError as error:
        return {"error": _error(error)}
    except MemoryError:
        return {"error": _error(TooCostly("memory_bytes", MEMORY_BYTES, "it needs too much memory"))}
    except Exception as error:  # noqa: BLE001 (the outermost handler: our own fault must not end in silence)
        # Where it happened, never the values: those could be of the patch.
        frames = [f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        record = {"level": "error", "event": "patch_helper_fault", "error": type(error).__name__, "at": frames}
        print(json.dumps(record), file=sys.stderr, flush=True)
        if request["method"] == "apply" and not request["check_only"]:
            # How far it came is in the journal: the engine reads that with a new helper, and answers the truth.
            raise SystemExit(1) from None
        message = "the patch helper failed by its own fault; the log has the place."
        return {"error": {"code": "INTERNAL", "message": message, "retryable": False, "details": {}}}


def _error(error: PatchError) -> dict[str, Any]:
    retryable = error.code == "FILE_OPERATION_FAILED" and error.details.get("status") == "failed_rolled_back"
    return {"code": error.code, "message": error.message, "retryable": retryable, "details": error.details}


def _requests(descriptor: int) -> Iterator[dict[str, Any]]:
    """Lines of at most MAX_REQUEST_BYTES; a longer one ends the input."""
    buffer = bytearray()
    while chunk := os.read(descriptor, 1 << 20):
        buffer += chunk
        while (cut := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:cut])
            del buffer[: cut + 1]
            yield json.loads(line)
        if len(buffer) > MAX_REQUEST_BYTES:
            return


def _send(descriptor: int, record: Mapping[str, Any]) -> None:
    view = memoryview(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    while view:
        view = view[os.write(descriptor, view) :]
