"""No command leaves a set-id file behind: on the host it would be one of the workspace's owner, outside any nosuid."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from tests.adapters.linux_sandbox.support import run, terms

# Every way to give a file mode bits, each on a name of its own; prints what each answered.
ATTEMPTS = """
import ctypes, errno, json, os, stat
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (90, 91, 268, 452, 85, 133, 259, 437), "aarch64": (None, 52, 53, 452, None, None, 33, 437)}
chmod, fchmod, fchmodat, fchmodat2, creat, mknod, mknodat, openat2 = numbers[os.uname().machine]
CWD = -100
answers = {}

def attempt(name, number, *arguments):
    if number is None:
        return
    result = libc.syscall(number, *[a if isinstance(a, bytes) or a is None else ctypes.c_long(a) for a in arguments])
    answers[name] = "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]

def fresh(name):
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o755))
    return name.encode()

for bits in (0o4000, 0o2000):
    tag = oct(bits)[2:]
    mode = bits | 0o755
    attempt("chmod" + tag, chmod, fresh("chmod" + tag), mode)
    fd = os.open(fresh("fchmod" + tag), os.O_RDONLY)
    attempt("fchmod" + tag, fchmod, fd, mode)
    attempt("fchmodat" + tag, fchmodat, CWD, fresh("fchmodat" + tag), mode)
    attempt("fchmodat2" + tag, fchmodat2, CWD, fresh("fchmodat2" + tag), mode, 0)
    attempt("creat" + tag, creat, b"creat" + tag.encode(), mode)
    attempt("mknod" + tag, mknod, b"mknod" + tag.encode(), stat.S_IFREG | mode, 0)
    attempt("mknodat" + tag, mknodat, CWD, b"mknodat" + tag.encode(), stat.S_IFREG | mode, 0)
    how = b"".join(value.to_bytes(8, "little") for value in (os.O_CREAT | os.O_WRONLY, mode, 0))
    attempt("openat2" + tag, openat2, CWD, b"openat2" + tag.encode(), how, 24)
    for name, flags in (("open", os.O_CREAT | os.O_WRONLY), ("tmpfile", os.O_TMPFILE | os.O_WRONLY)):
        try:
            fd = os.open("." if name == "tmpfile" else name + tag, flags, mode)
            if name == "tmpfile":
                os.link(f"/proc/self/fd/{fd}", "tmpfile" + tag)
            answers[name + tag] = "done"
        except OSError as error:
            answers[name + tag] = errno.errorcode[error.errno]
print(json.dumps(answers))
"""


def set_id_files(root: str) -> set[str]:
    return {entry.name for entry in os.scandir(root) if entry.stat(follow_symlinks=False).st_mode & 0o6000}


@pytest.mark.covers("BOX-6")
async def test_no_call_of_a_command_makes_a_set_id_file(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    ended = await run(launcher, terms(workspace), "/usr/bin/python3", "-c", ATTEMPTS)
    answers = json.loads(ended.output)
    assert len(answers) >= 16
    assert {name: answer for name, answer in answers.items() if answer not in ("EPERM", "ENOSYS")} == {}
    assert set_id_files(workspace) == set()


@pytest.mark.covers("BOX-6")
def test_outside_a_sandbox_the_same_attempts_succeed(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/usr/bin/python3", "-c", ATTEMPTS], cwd=tmp_path, capture_output=True, check=True, timeout=15
    )
    answers = json.loads(done.stdout)
    made = set_id_files(str(tmp_path))
    assert {name for name, answer in answers.items() if answer == "done"} >= made
    assert {"fchmod4000", "fchmod2000", "mknodat4000", "open4000", "openat24000"} <= made


@pytest.mark.covers("BOX-6")
async def test_ordinary_modes_and_the_sticky_bit_can_be_set(launcher: LinuxSandboxLauncher, workspace: str) -> None:
    script = "umask 0; mkdir d; chmod 1777 d; touch f; chmod 751 f; cp /bin/true t"
    assert (await run(launcher, terms(workspace), "/bin/sh", "-c", script)).exit.command_code == 0
    modes = {name: stat.S_IMODE(os.stat(f"{workspace}/{name}").st_mode) for name in ("d", "f")}
    assert modes == {"d": 0o1777, "f": 0o751}
