"""The filter in the kernel: installed in a forked child, with the same calls shown to work without it."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
import signal
import socket
import threading
from collections.abc import Callable

import pytest

from sandbox_helper.seccomp import build_filter, install_filter
from sandbox_helper.syscall_tables import syscall_numbers

pytestmark = [pytest.mark.covers("BOX-1"), pytest.mark.kernel("seccomp")]

NUMBERS = syscall_numbers(platform.machine())
PR_SET_NO_NEW_PRIVS = 38
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def call(name: str, *arguments: int) -> str:
    """What a call by number answers: `ok` or the name of its errno."""
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *[ctypes.c_long(a) for a in arguments])
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def in_child(work: Callable[[], object], *, filtered: bool, no_new_privs: bool = True) -> tuple[object, int]:
    """(JSON value that `work` returned or None, wait status) of a forked child, under the filter if asked."""
    program = build_filter(platform.machine())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if no_new_privs:
                libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            if filtered:
                install_filter(program)
            os.write(write, json.dumps(work()).encode())
            status = 0
        except OSError as error:
            os.write(write, json.dumps(errno.errorcode[error.errno or 0]).encode())
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        text = answer.read()
    _, wait_status = os.waitpid(child, 0)
    return (json.loads(text) if text else None), wait_status


def refusals() -> dict[str, str]:
    """Harmless misuses whose answer tells whether the kernel looked at them."""
    return {
        "mount": call("mount", 0, 0, 0, 0, 0),
        "unshare": call("unshare", 0),
        "kcmp": call("kcmp", os.getpid(), os.getpid(), 99, 0, 0),
        "clone3": call("clone3", 0, 0),
        "vmsplice": call("vmsplice", -1, 0, 0, 0),
        "personality": call("personality", 0x0040000),
        "seccomp": call("seccomp", 1, 8, 0),
        "ioctl": call("ioctl", -1, 0x5412 | (1 << 32), 0),
        "fcntl": call("fcntl", -1, 1024, 0),
        "socket": call("socket", 17, 15, 0),
        "socketpair": call("socketpair", 2, 1, 0, 0),
    }


def test_the_kernel_takes_the_program_and_answers_as_the_table_says() -> None:
    filtered, status = in_child(refusals, filtered=True)
    assert status == 0
    assert filtered == {
        "mount": "EPERM",
        "unshare": "EPERM",
        "kcmp": "EPERM",
        "clone3": "ENOSYS",
        "vmsplice": "EPERM",
        "personality": "EPERM",
        "seccomp": "EPERM",
        "ioctl": "EPERM",
        "fcntl": "EPERM",
        "socket": "EAFNOSUPPORT",
        "socketpair": "EAFNOSUPPORT",
    }
    plain, status = in_child(refusals, filtered=False)
    assert status == 0
    assert isinstance(plain, dict)
    # The positive control: without the filter the kernel itself answers each of them, differently.
    assert plain["unshare"] == "ok"
    assert plain["personality"] == "ok"
    assert plain["clone3"] == "EINVAL"
    assert {plain[name] for name in ("vmsplice", "ioctl", "fcntl")} == {"EBADF"}
    assert plain["seccomp"] == "EFAULT"
    assert plain["socketpair"] == "EFAULT"
    assert plain["kcmp"] in {"EINVAL", "ENOSYS"}


def ordinary_work() -> dict[str, object]:
    done: list[int] = []
    thread = threading.Thread(target=done.append, args=(1,))
    thread.start()
    thread.join()
    child = os.posix_spawn("/bin/true", ["true"], {})
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass
    left, right = socket.socketpair()
    left.close()
    right.close()
    return {"threads": done, "spawned": os.waitpid(child, 0)[1], "interfaces": bool(socket.if_nameindex())}


def test_threads_processes_and_sockets_work_under_the_filter() -> None:
    value, status = in_child(ordinary_work, filtered=True)
    assert status == 0
    assert value == {"threads": [1], "spawned": 0, "interfaces": True}


def test_without_no_new_privs_the_kernel_refuses_and_the_errno_is_kept() -> None:
    def as_nobody() -> str:
        if os.geteuid() == 0:  # root may do without
            os.setresuid(12345, 12345, 12345)
        install_filter(build_filter(platform.machine()))
        return "installed"

    assert in_child(as_nobody, filtered=False, no_new_privs=False)[0] == "EACCES"
    assert in_child(as_nobody, filtered=False, no_new_privs=True)[0] == "installed"


def test_what_is_no_program_is_refused_before_the_kernel_sees_it() -> None:
    for text in (b"", b"1234567", bytes(8 * 5000)):
        with pytest.raises(OSError, match="sock_filter") as refusal:
            install_filter(text)
        assert refusal.value.errno == errno.EINVAL


def test_a_program_that_the_kernel_refuses_raises_its_errno() -> None:
    def install_garbage() -> object:
        install_filter(bytes(8))
        return "installed"

    assert in_child(install_garbage, filtered=False)[0] == "EINVAL"


def int80_getpid() -> int:
    """getpid of i386, by int 0x80: mov eax, 20; int 0x80; ret."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex("b814000000cd80c3"))
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="i386 calls exist on x86-64 only")
def test_an_i386_call_kills_the_process() -> None:
    control, status = in_child(int80_getpid, filtered=False)
    if os.WIFSIGNALED(status) or not isinstance(control, int) or control <= 0:
        pytest.skip("this kernel has no i386 calls")
    value, status = in_child(int80_getpid, filtered=True)
    assert value is None
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSYS
