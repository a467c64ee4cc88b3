"""Running `rg` on a batch of files that are read or open already.

The program gets one stream, or descriptors and the names `/proc/self/fd/N`, and is told to read nothing else (no
configuration, no ignore files, no directory): whatever links are swapped in a workspace, it has no path into it. Called
by `search`.
"""

from __future__ import annotations

import bisect
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adapters.ripgrep.batches import Batch
from adapters.ripgrep.output import FILE_PREFIX, MAX_TEXT_BYTES, MatchReader, NumberReader, RawMatch, clipped
from runner.api import ErrorCode, GrepFiles, RunnerError

MAX_PATTERN_BYTES = 32 * 1024
MAX_MEMORY_BYTES = 1024 * 1024 * 1024
"""Address space of one program: it holds a whole line at a time, however long."""
MAX_CPU_S = 20
"""Ends a program that outlives its runner."""
_READ_BYTES = 64 * 1024
_OPTIONS = (
    "--no-config",
    "--no-ignore",
    "--no-mmap",  # a file that shrinks under a mapping kills its reader
    "--threads=1",  # in the order of the arguments
    "--color=never",
    "--no-heading",
    "--line-number",
    "--no-context-separator",
    "--field-match-separator=:",
    "--field-context-separator=-",
    f"--max-columns={MAX_TEXT_BYTES + 2}",  # rg counts the line's ending
    "--max-columns-preview",
    "--crlf",
)
_STREAM_OPTIONS = ("--no-filename", "--text", "--encoding=none", "-")
_FILES_OPTIONS = ("--with-filename", "--null")


class ProgramDied(Exception):
    """`rg` did not get through its input: ended by a signal, as by its memory limit, or by an error of its own.
    `status`: as subprocess gives it."""

    def __init__(self, status: int, complaint: str = "") -> None:
        super().__init__(f"rg ended with status {status}: {complaint[:300]}")
        self.status, self.complaint = status, complaint


class Stopped(Exception):
    """The search was cancelled or is over, and its programs with it."""


@dataclass(frozen=True)
class Found:
    """`unreadable`: files of the batch that the program could not get through."""

    matches: tuple[RawMatch, ...]
    unreadable: tuple[int, ...]


class Programs:
    """The running programs of one search. Thread-safe: `stop` ends them all and lets no other start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self.stopped = False

    def start(self, command: Sequence[str], stdin: int, fds: Sequence[int], stderr: int) -> subprocess.Popen[bytes]:
        """Raises `Stopped`, `OSError`. The caller ends it by `finish`, always."""
        with self._lock:
            if self.stopped:
                raise Stopped
            program = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                pass_fds=fds,
                env={},
                cwd="/",
                start_new_session=True,
            )
            self._running.add(program)
        for kind, most in ((resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_CPU, MAX_CPU_S)):
            try:
                resource.prlimit(program.pid, kind, (most, most))
            except ProcessLookupError:
                break
        return program

    def finish(self, program: subprocess.Popen[bytes]) -> int:
        """Kills what has not ended, reaps it, closes its pipe. Returns its status."""
        program.kill()
        if program.stdout is not None:
            program.stdout.close()
        status = program.wait()
        with self._lock:
            self._running.discard(program)
        return status

    def stop(self) -> None:
        """Idempotent. Does not wait: each starter reaps its own."""
        with self._lock:
            self.stopped = True
            for program in self._running:
                program.kill()


def find_program() -> str | None:
    """The `rg` that belongs to this installation, else the system's; None if there is none."""
    folders = [os.path.dirname(sys.executable), *os.environ.get("PATH", os.defpath).split(":")]
    candidates = (os.path.join(folder, "rg") for folder in folders if folder.startswith("/"))
    return next(filter(_is_program, candidates), None)


def _is_program(path: str) -> bool:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    mode = os.fstat(fd).st_mode
    os.close(fd)
    return stat.S_ISREG(mode) and bool(mode & 0o111)


@dataclass(frozen=True)
class Query:
    """A request's pattern and options, checked. `command`: the program with all that does not depend on files."""

    command: tuple[str, ...]
    context: int


def query_for(program: str, request: GrepFiles) -> Query:
    """Raises `RunnerError` INVALID_ARGUMENT for a pattern that cannot be an argument. `check` asks the program."""
    try:
        size = len(request.pattern.encode())
    except UnicodeEncodeError:
        raise _bad_pattern("it is not valid Unicode (an unpaired surrogate)") from None
    if size > MAX_PATTERN_BYTES:
        raise _bad_pattern(f"it is longer than {MAX_PATTERN_BYTES} bytes")
    if "\0" in request.pattern:
        raise _bad_pattern("it holds a NUL character; write \\x00")
    case = "--ignore-case" if request.ignore_case else "--case-sensitive"
    return Query((program, *_OPTIONS, case, f"--regexp={request.pattern}"), request.context)


def _bad_pattern(why: str) -> RunnerError:
    return RunnerError(
        ErrorCode.INVALID_ARGUMENT,
        f"pattern is not a regular expression that can be searched for: {why}",
        details={"argument": "pattern"},
    )


def check(programs: Programs, query: Query) -> None:
    """Lets the program itself judge the pattern, on no input. Raises `RunnerError` INVALID_ARGUMENT with its words."""
    status, complaint = _run(programs, [*query.command, *_STREAM_OPTIONS], subprocess.DEVNULL, (), NumberReader(1))
    if status == 2:
        words = complaint.removeprefix("rg: ") or "rg refused it"
        if "--multiline" in words:
            # Its advice is an option that no caller can set.
            words = "it names a line ending, but matches lie within one line: search for one of the lines, with context"
        raise _bad_pattern(words if len(words) <= 1000 else f"{words[:400]} … {words[-400:]}")  # it repeats the pattern
    if status != 1:
        raise ProgramDied(status)


def search_batch(programs: Programs, query: Query, batch: Batch, needed: int, skip: tuple[int, int] | None) -> Found:
    """The first `needed` matches of a batch, in the order of its files. `skip`: a file and the line up to which its
    matches are not wanted; files before it have none to give.

    Raises `ProgramDied`, `Stopped`, `OSError`, and `RunnerError` FILE_OPERATION_FAILED where the program will not run.
    """
    matches = search_stream(programs, query, batch.small, needed, skip) if batch.small else []
    unreadable: list[int] = []
    if batch.held:
        more, unreadable = search_held(programs, query, batch.held, needed, skip)
        matches = sorted([*matches, *more], key=lambda match: (match.file, match.line))
    return Found(tuple(matches[:needed]), tuple(unreadable))


def search_stream(
    programs: Programs, query: Query, texts: Mapping[int, bytes], needed: int, skip: tuple[int, int] | None
) -> list[RawMatch]:
    """Searches small files as one text. Only the numbers of lines come from the program: it knows no file's edge, so
    context is taken from the file itself."""
    files, first_lines, total = list(texts), [], 0
    for text in texts.values():
        first_lines.append(total + 1)
        total += text.count(b"\n")
    after = 0
    if skip and skip[0] in texts:
        # A file that has fewer lines by now must not have lines of the next ones skipped for it.
        after = first_lines[files.index(skip[0])] - 1 + min(skip[1], texts[skip[0]].count(b"\n"))
    reader = NumberReader(needed, after)
    stream = os.memfd_create("rg-stream")
    try:
        with open(stream, "wb", closefd=False) as out:
            out.writelines(texts.values())
        os.lseek(stream, 0, os.SEEK_SET)
        status, complaint = _run(programs, [*query.command, *_STREAM_OPTIONS], stream, (), reader)
    finally:
        os.close(stream)
    if not reader.full and status not in (0, 1):
        raise ProgramDied(status, complaint)
    return _located(texts, files, first_lines, reader.numbers, query.context)


def _located(
    texts: Mapping[int, bytes], files: Sequence[int], first_lines: Sequence[int], numbers: Sequence[int], context: int
) -> list[RawMatch]:
    matches = []
    file, lines = -1, [b""]
    for number in numbers:
        # The last of the files that begin at or before the line: empty ones before it begin there too.
        at = bisect.bisect_right(first_lines, number) - 1
        if files[at] != file:
            file = files[at]
            lines = [clipped(line) for line in texts[file].split(b"\n")[:-1]]
        index = number - first_lines[at]
        before, after = lines[max(0, index - context) : index], lines[index + 1 : index + 1 + context]
        matches.append(RawMatch(file, index + 1, lines[index], tuple(before), after))
    return matches


def search_held(
    programs: Programs, query: Query, held: Mapping[int, int], needed: int, skip: tuple[int, int] | None
) -> tuple[list[RawMatch], list[int]]:
    """Searches open files by their descriptors. Returns matches, and the files that could not be read."""
    file_of = {fd: file for file, fd in held.items()}
    reader = MatchReader(query.context, needed, (held[skip[0]], skip[1]) if skip and skip[0] in held else None)
    names = [f"{FILE_PREFIX.decode()}{fd}" for fd in file_of]
    command = [*query.command, *_FILES_OPTIONS, f"--context={query.context}", "--", *names]
    status, complaint = _run(programs, command, subprocess.DEVNULL, list(file_of), reader)
    unreadable: list[int] = []
    if not reader.full and status not in (0, 1):
        unreadable = [file_of[fd] for fd in _complaints(status, complaint)]
    for match in reader.complete:
        match.file = file_of[match.file]
    return reader.complete, unreadable


def _run(
    programs: Programs, command: Sequence[str], stdin: int, fds: Sequence[int], reader: NumberReader | MatchReader
) -> tuple[int, str]:
    """Runs one program until it ends or the reader is full. Returns its status and what it wrote to stderr."""
    stderr = os.memfd_create("rg-stderr")
    try:
        program = programs.start(command, stdin, fds, stderr)
        try:
            assert program.stdout is not None
            while not reader.full and (chunk := program.stdout.read(_READ_BYTES)):
                reader.feed(chunk)
            if not reader.full:
                reader.end()
                program.wait()
        finally:
            status = programs.finish(program)
        if programs.stopped:
            raise Stopped
        return status, os.pread(stderr, 64 * 1024, 0).decode("utf-8", "replace").strip()
    finally:
        os.close(stderr)


def _complaints(status: int, text: str) -> list[int]:
    """Descriptors that `rg: /proc/self/fd/N: why` lines name. Raises `ProgramDied` where it says anything else."""
    prefix = f"rg: {FILE_PREFIX.decode()}"
    fds = []
    for line in text.splitlines():
        number, colon, _ = line.removeprefix(prefix).partition(":")
        if not (line.startswith(prefix) and colon and number.isdecimal()):
            raise ProgramDied(status, text)
        fds.append(int(number))
    if status != 2:
        raise ProgramDied(status, text)
    return fds
