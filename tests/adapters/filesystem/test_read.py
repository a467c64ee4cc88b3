"""Reading one file: what comes back, and everything that is refused."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import hashlib
import os
import socket
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.filesystem import beneath
from adapters.filesystem.beneath import OpenAt2, Walk, choose_opener
from adapters.filesystem.openat_filesystem import OpenatFileSystem
from adapters.filesystem.paths import parse_path
from adapters.filesystem.reading import read_content
from adapters.filesystem.window import LineWindow, cut
from runner.api import READ_LIMIT_BYTES, VERSION_LIMIT_BYTES, ErrorCode, ReadFile, RunnerError, WorkspaceRef
from tests.adapters.filesystem.conftest import Files


def sha(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def refusal(files: Files, path: str) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        files.read(path)
    assert str(files.outside) not in caught.value.message
    assert str(files.root) not in caught.value.message
    return caught.value


# --- what comes back --------------------------------------------------------------------------------------------------
@pytest.mark.covers("FS-3")
@pytest.mark.parametrize(
    "content", ["", "one\ntwo\n", "no final newline", "crlf\r\nline\r\n", "\ufeffmarked\n", "é\0ü\n"]
)
def test_text_comes_back_as_it_is_with_the_version_of_its_bytes(files: Files, content: str) -> None:
    data = content.encode()
    files.put("sub/a.txt", data)
    got = files.read("sub/a.txt")
    assert (got.content.encode(), got.encoding, got.version, got.size) == (data, "utf-8", sha(data), len(data))
    assert not got.truncated
    assert got.start_line is None
    assert got.end_line is None


@pytest.mark.covers("FS-3")
def test_bytes_that_are_not_utf8_come_back_as_base64(files: Files) -> None:
    data = b"\x00\xff\xfe\x80" * 8
    files.put("blob", data)
    got = files.read("blob")
    assert got.encoding == "base64"
    assert base64.b64decode(got.content) == data
    assert got.version == sha(data)


@pytest.mark.covers("FS-3", "FS-5")
def test_text_over_the_limit_is_cut_after_a_whole_line_and_the_rest_is_reached_by_lines(files: Files) -> None:
    text = "".join(f"{number:062d}é\n" for number in range(20_000))
    files.put("big.txt", text)
    pieces, offset = [], None
    while True:
        got = files.read("big.txt", offset=offset)
        assert got.version == sha(text.encode())
        assert len(got.content.encode()) <= READ_LIMIT_BYTES
        pieces.append(got.content)
        if not got.truncated:
            break
        assert got.content.endswith("\n")
        assert got.end_line is not None
        assert got.start_line == (offset or 1)
        offset = got.end_line + 1
    assert "".join(pieces) == text
    assert len(pieces) > 1


@pytest.mark.covers("FS-3")
@pytest.mark.parametrize("shift", range(5))
def test_a_line_longer_than_the_limit_is_cut_between_characters(files: Files, shift: int) -> None:
    text = "a" * shift + "😀" * (READ_LIMIT_BYTES // 4 + 10)
    files.put("long", text)
    got = files.read("long")
    assert got.encoding == "utf-8"
    assert got.truncated
    assert text.startswith(got.content)
    assert READ_LIMIT_BYTES - 4 < len(got.content.encode()) <= READ_LIMIT_BYTES
    assert (got.start_line, got.end_line) == (1, 1)


@pytest.mark.covers("FS-3")
def test_a_large_binary_file_is_cut_at_the_limit_exactly(files: Files) -> None:
    data = b"\xff\n" * READ_LIMIT_BYTES
    files.put("big.bin", data)
    got = files.read("big.bin")
    assert base64.b64decode(got.content) == data[:READ_LIMIT_BYTES]
    assert got.truncated
    assert got.version == sha(data)


@pytest.mark.covers("FS-3")
def test_a_file_of_exactly_the_limit_is_whole(files: Files) -> None:
    files.put("exact", "x" * READ_LIMIT_BYTES)
    got = files.read("exact")
    assert not got.truncated
    assert len(got.content) == READ_LIMIT_BYTES


@pytest.mark.covers("FS-5")
@pytest.mark.parametrize(
    ("offset", "limit", "content", "span"),
    [
        (3, 2, "line 3\nline 4\n", (3, 4)),
        (None, 1, "line 1\n", (1, 1)),
        (9, None, "line 9\nline 10", (9, 10)),
        (10, 5, "line 10", (10, 10)),
        (11, 5, "", (None, None)),
        (10**12, None, "", (None, None)),
    ],
)
def test_a_range_of_lines_comes_with_the_version_of_the_whole_file(
    files: Files, offset: int | None, limit: int | None, content: str, span: tuple[int | None, int | None]
) -> None:
    data = "\n".join(f"line {number}" for number in range(1, 11)).encode()
    files.put("lines", data)
    got = files.read("lines", offset=offset, limit=limit)
    assert got.content == content
    assert (got.start_line, got.end_line) == span
    assert (got.version, got.size, got.truncated) == (sha(data), len(data), False)


@pytest.mark.covers("FS-5")
def test_lines_are_told_from_bytes_by_the_range_that_is_shown(files: Files) -> None:
    files.put("mixed", b"text\n\xff\xfe\nmore\n")
    assert files.read("mixed").encoding == "base64"
    assert files.read("mixed", offset=3).content == "more\n"
    second = files.read("mixed", offset=2, limit=1)
    assert (second.encoding, base64.b64decode(second.content)) == ("base64", b"\xff\xfe\n")


@pytest.mark.covers("FS-3", "FS-5")
def test_a_sparse_file_over_the_version_limit_has_no_version_and_a_bounded_read(files: Files) -> None:
    path = files.put("huge", "first\nsecond\n")
    os.truncate(path, VERSION_LIMIT_BYTES + 1)
    got = files.read("huge", limit=2)
    assert got.content == "first\nsecond\n"
    assert got.version is None
    assert got.size == VERSION_LIMIT_BYTES + 1
    assert not got.truncated


@pytest.mark.covers("FS-5")
def test_lines_beyond_the_version_limit_are_refused_and_not_sought_for_ever(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.filesystem.reading.VERSION_LIMIT_BYTES", 1000)
    files.put("large", "line\n" * 1000)
    got = files.read("large", offset=100, limit=2)
    assert (got.content, got.version, got.size) == ("line\nline\n", None, 5000)
    with pytest.raises(RunnerError, match="beyond the first 1000 bytes") as caught:
        files.read("large", offset=300)
    assert caught.value.code is ErrorCode.FILE_OPERATION_FAILED


@pytest.mark.covers("FS-3")
def test_memory_does_not_follow_the_size_of_a_file(files: Files) -> None:
    path = files.put("sparse", "x\n" * 10)
    os.truncate(path, 64 * 1024 * 1024)
    tracemalloc.start()
    try:
        got = files.read("sparse", offset=3, limit=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (got.content, got.size) == ("x\nx\n", 64 * 1024 * 1024)
    assert peak < 8 * 1024 * 1024


@given(
    data=st.binary(max_size=200), first=st.integers(1, 12), count=st.none() | st.integers(1, 12), step=st.integers(1, 9)
)
def test_a_window_is_the_same_lines_however_the_file_is_fed(
    data: bytes, first: int, count: int | None, step: int
) -> None:
    window = LineWindow(first, count, 1000)
    for at in range(0, len(data), step):
        window.feed(memoryview(data)[at : at + step])
    lines = data.splitlines(keepends=True) if not data else [line + b"\n" for line in data.split(b"\n")]
    if data and not data.endswith(b"\n"):
        lines[-1] = lines[-1][:-1]
    elif data:
        lines.pop()
    end = None if count is None else first - 1 + count
    assert bytes(window.kept) == b"".join(lines[first - 1 : end])


@given(text=st.text(max_size=40), limit=st.integers(4, 60))
def test_a_cut_never_splits_a_character_and_loses_at_most_three_bytes(text: str, limit: int) -> None:
    data = text.encode()
    shown = cut(data[: limit + 1], limit, whole_lines=False)
    assert data.startswith(shown.data)
    assert text.startswith(shown.data.decode())
    assert len(shown.data) <= limit
    assert shown.truncated == (len(data) > limit)
    assert len(shown.data) >= min(len(data), limit - 3)


# --- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.covers("FS-2")
@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.txt",
        "sub/../../outside/secret.txt",
        "sub/..",
        "..",
        "/etc/passwd",
        "/",
        "a\0b",
        "sub//c.py",
        "sub/",
        "",
        "./",
    ],
)
def test_a_path_that_could_leave_the_root_by_its_syntax_is_an_escape(files: Files, path: str) -> None:
    files.put("sub/c.py", "c = 1\n")
    assert refusal(files, path).code is ErrorCode.PATH_ESCAPE


@pytest.mark.covers("FS-2")
def test_the_absolute_path_of_a_file_inside_the_root_is_an_escape_too(files: Files) -> None:
    path = files.put("a.txt", "a")
    with pytest.raises(RunnerError) as caught:
        files.read(str(path))
    assert caught.value.code is ErrorCode.PATH_ESCAPE


@pytest.mark.covers("FS-2")
def test_dot_components_are_dropped_from_the_path_that_is_answered(files: Files) -> None:
    files.put("sub/c.py", "c = 1\n")
    got = files.read("./sub/./c.py")
    assert (got.path, got.content) == ("sub/c.py", "c = 1\n")


@pytest.mark.covers("FS-1", "FS-2")
@pytest.mark.parametrize("path", ["link.txt", "linked/secret.txt", "linked", "dangling", "loop", "sub/up/a.txt"])
def test_a_link_at_any_component_is_rejected_wherever_it_leads(files: Files, path: str) -> None:
    files.put("a.txt", "a")
    (files.root / "sub").mkdir()
    (files.root / "link.txt").symlink_to("a.txt")
    (files.root / "linked").symlink_to(files.outside)
    (files.root / "dangling").symlink_to("nowhere")
    (files.root / "loop").symlink_to("loop")
    (files.root / "sub/up").symlink_to("..")
    assert refusal(files, path).code is ErrorCode.SYMLINK_REJECTED


@pytest.mark.covers("FS-2")
@pytest.mark.parametrize("path", ["nope", "no/such/file", "sub/nope"])
def test_what_is_missing_is_not_found(files: Files, path: str) -> None:
    (files.root / "sub").mkdir()
    assert refusal(files, path).code is ErrorCode.FILE_NOT_FOUND


@pytest.mark.covers("FS-2")
@pytest.mark.parametrize("path", ["a.txt/x", "fifo/x/y"])
def test_anything_but_a_directory_used_as_one_is_not_a_directory(files: Files, path: str) -> None:
    files.put("a.txt", "a")
    os.mkfifo(files.root / "fifo")
    assert refusal(files, path).code is ErrorCode.PATH_NOT_DIRECTORY


@pytest.mark.covers("FS-2")
@pytest.mark.parametrize(
    ("path", "kind"), [("sub", "directory"), (".", "directory"), ("fifo", "FIFO"), ("sock", "socket")]
)
def test_what_is_no_regular_file_is_rejected_by_kind(files: Files, path: str, kind: str) -> None:
    (files.root / "sub").mkdir()
    os.mkfifo(files.root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener, tempfile.TemporaryDirectory() as short:
        listener.bind(f"{short}/s")
        os.rename(f"{short}/s", files.root / "sock")
        error = refusal(files, path)
    assert error.code is ErrorCode.SPECIAL_FILE_REJECTED
    assert error.details["kind"] == kind


@pytest.mark.covers("FS-2")
def test_rejecting_a_fifo_neither_blocks_nor_lets_a_writer_through(files: Files) -> None:
    os.mkfifo(files.root / "fifo")
    assert refusal(files, "fifo").code is ErrorCode.SPECIAL_FILE_REJECTED
    # A writer that does not wait gets ENXIO as long as nobody has opened the other end.
    with pytest.raises(OSError, match="fifo") as caught:
        os.open(files.root / "fifo", os.O_WRONLY | os.O_NONBLOCK)
    assert caught.value.errno == errno.ENXIO


@pytest.mark.covers("FS-2")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a device node")
def test_a_device_is_rejected_without_being_opened(files: Files) -> None:
    # Major 240 is for local use: no driver, so an open would fail with ENXIO and be another error.
    os.mknod(files.root / "device", 0o20666, os.makedev(240, 7))
    assert refusal(files, "device").code is ErrorCode.SPECIAL_FILE_REJECTED


@pytest.mark.covers("FS-2")
@pytest.mark.parametrize("path", ["x" * 256, "é" * 128, "/".join(["d" * 200] * 21), "a\ud800b", "\udcff"])
def test_names_that_cannot_exist_are_invalid_arguments(files: Files, path: str) -> None:
    error = refusal(files, path)
    assert error.code is ErrorCode.INVALID_ARGUMENT
    error.message.encode()


@given(st.text(max_size=30) | st.text(alphabet="./a\0\ud800", max_size=12))
def test_any_text_is_components_or_a_typed_refusal(path: str) -> None:
    with contextlib.suppress(RunnerError):
        components = parse_path(path)
        assert all(part not in ("", ".", "..") and "/" not in part and "\0" not in part for part in components)


@pytest.mark.covers("FS-2")
def test_a_file_without_permission_says_so(as_ordinary_user: Callable[..., Any]) -> None:
    def body() -> tuple[str, str]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            adapter = OpenatFileSystem()
            files = Files(adapter, root, root)
            files.put("closed", "x").chmod(0)
            error = refusal(files, "closed")
            adapter.close()
            return error.code.value, error.details["errno"]

    assert as_ordinary_user(body) == ("FILE_OPERATION_FAILED", "EACCES")


# --- files that change ------------------------------------------------------------------------------------------------
@pytest.mark.covers("FS-1", "FS-3")
def test_content_and_version_always_come_from_the_same_bytes_of_a_changing_file(files: Files) -> None:
    target = files.put("busy", "0" * 300_000)
    done = threading.Event()

    def rewrite() -> None:
        number = 0
        with target.open("r+b", buffering=0) as out:
            while not done.is_set():
                number += 1
                out.seek(0)
                out.write(str(number % 10).encode() * (300_000 - number % 7))
                out.truncate()

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(100):
            got = files.read("busy")
            data = got.content.encode()
            assert (got.version, got.size) == (sha(data), len(data))
    finally:
        done.set()
        writer.join(10)


class GrowingOnce:
    """Appends to a file when the first pass over it ends, as a command that runs meanwhile would."""

    def __init__(self, path: Path, times: int) -> None:
        self.path, self.left, self.passes = path, times, 0

    def fstat(self, fd: int) -> os.stat_result:
        self.passes += 1
        if self.passes % 2 == 0 and self.left:
            self.left -= 1
            with self.path.open("ab") as out:
                out.write(b"more\n")
        return real_fstat(fd)


real_fstat = os.fstat


@pytest.mark.covers("FS-3")
@pytest.mark.parametrize(("times", "lines"), [(1, 2), (2, 3), (50, 3)])
def test_a_file_that_grew_is_read_again_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, lines: int
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"more\n")
    growing = GrowingOnce(path, times)
    # The moment between two system calls cannot be met from outside.
    monkeypatch.setattr("adapters.filesystem.reading.os.fstat", growing.fstat)
    fd = os.open(path, os.O_RDONLY)
    try:
        got = read_content(fd, ReadFile(workspace=WorkspaceRef(workspace_id="w", root="/"), path="log"), "log")
    finally:
        os.close(fd)
    assert got.content == "more\n" * lines
    assert got.version == sha(b"more\n" * lines)
    assert got.size == 5 * lines


# --- roots ------------------------------------------------------------------------------------------------------------
@pytest.mark.covers("FS-1")
def test_a_root_that_was_replaced_is_an_error_and_not_read(files: Files) -> None:
    files.put("a.txt", "old")
    assert files.read("a.txt").content == "old"
    files.root.rename(files.root.with_name("moved"))
    files.put("a.txt", "new")
    error = refusal(files, "a.txt")
    assert error.code is ErrorCode.FILE_OPERATION_FAILED
    assert "another directory" in error.message


@pytest.mark.covers("FS-1")
def test_a_root_that_is_missing_or_reached_through_a_link_is_an_error(files: Files) -> None:
    files.root.rmdir()
    assert "does not exist" in refusal(files, "a.txt").message
    files.root.symlink_to(files.outside)
    error = refusal(files, "secret.txt")
    assert error.code is ErrorCode.FILE_OPERATION_FAILED
    assert "link" in error.message
    files.root.unlink()
    files.root.write_text("a file")
    assert "not a directory" in refusal(files, "a.txt").message


def test_a_closed_adapter_refuses_and_closing_again_is_harmless(files: Files) -> None:
    files.adapter.close()
    files.adapter.close()
    assert refusal(files, "a.txt").code is ErrorCode.RUNNER_UNAVAILABLE


def test_reads_that_run_when_the_adapter_closes_end_well_or_say_that_it_is_closed(files: Files) -> None:
    files.put("a.txt", "a")
    seen: set[object] = set()
    started = threading.Barrier(5)

    def read_on() -> None:
        started.wait(10)
        while ErrorCode.RUNNER_UNAVAILABLE not in seen:
            try:
                seen.add(files.read("a.txt").content)
            except RunnerError as error:
                seen.add(error.code)

    readers = [threading.Thread(target=read_on) for _ in range(4)]
    for reader in readers:
        reader.start()
    started.wait(10)
    files.adapter.close()
    for reader in readers:
        reader.join(10)
    assert seen <= {"a", ErrorCode.RUNNER_UNAVAILABLE}
    assert ErrorCode.RUNNER_UNAVAILABLE in seen


def test_no_descriptor_is_left_open_by_reads_and_refusals(files: Files) -> None:
    files.put("sub/a.txt", "a")
    (files.root / "link").symlink_to("sub")
    os.mkfifo(files.root / "fifo")
    files.read("sub/a.txt")
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        files.read("sub/a.txt")
        files.find("**")
        for path in ("link/a.txt", "fifo", "nope", "sub", "sub/a.txt/x"):
            refusal(files, path)
    assert sorted(os.listdir("/proc/self/fd")) == before


# --- ways to open -----------------------------------------------------------------------------------------------------
@pytest.mark.covers("FS-1")
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_where_openat2_is_missing_or_filtered_the_walk_stands_in(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refused(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(beneath, "_openat2", refused)
    assert isinstance(choose_opener(), Walk)


@pytest.mark.covers("FS-1")
def test_where_openat2_works_it_is_used() -> None:
    top = os.open("/", os.O_PATH)
    try:
        os.close(OpenAt2().open_name(top, ()))
    except OSError as error:
        pytest.skip(f"openat2 is not to be had here: {error}")
    finally:
        os.close(top)
    assert isinstance(choose_opener(), OpenAt2)


def test_openat2_gives_up_after_a_bounded_number_of_races(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []

    def busy(*arguments: object) -> int:
        calls.append(arguments)
        ctypes.set_errno(errno.EAGAIN)
        return -1

    monkeypatch.setattr(beneath, "_syscall", busy)
    adapter = OpenatFileSystem(method="openat2")
    with pytest.raises(RunnerError) as caught:
        adapter.read_file(ReadFile(workspace=WorkspaceRef(workspace_id="w", root=str(tmp_path)), path="a"))
    assert caught.value.code is ErrorCode.FILE_OPERATION_FAILED
    assert 1 < len(calls) < 1000
