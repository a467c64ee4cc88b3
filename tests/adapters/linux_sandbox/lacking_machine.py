"""lacking_machine.py WHAT ROOT: a launcher on a machine that lacks something, made for it; prints what it says."""

import asyncio
import ctypes
import json
import os
import sys
import tempfile

from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.ports import LaunchFailed, SandboxUnavailable
from tests.adapters.linux_sandbox.support import shell, terms

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x10000000, 4096, 16384, 1 << 18


def checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def own_user_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    checked(libc.unshare(NEWUSER | NEWNS))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def lose(what: str) -> None:
    if what == "unmasked-proc":
        own_user_namespace()
        checked(libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None))
        checked(libc.mount(b"/dev/null", b"/proc/uptime", None, ctypes.c_ulong(MS_BIND), None))
    elif what == "full-tmp":
        if os.geteuid() == 0:
            checked(libc.unshare(NEWNS))
            checked(libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None))
        else:
            own_user_namespace()
        # Not over /tmp itself, where this program may lie. One inode, which the directory's root takes.
        tempfile.tempdir = sys.argv[2]
        checked(libc.mount(b"tmpfs", sys.argv[2].encode(), b"tmpfs", ctypes.c_ulong(0), b"nr_inodes=1,mode=1777"))
    elif what in ("id-maps", "id-maps-of-root"):
        checked(libc.unshare(NEWNS))
        checked(libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None))
        # A file system that takes no id map.
        checked(libc.mount(b"ramfs", sys.argv[2].encode(), b"ramfs", ctypes.c_ulong(0), None))
        if what == "id-maps":
            os.chown(sys.argv[2], 12345, 12345)
    elif what == "namespaces":
        own_user_namespace()
        with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
            file.write("0")
    elif what == "capabilities":
        with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
            last = int(file.read())
        for capability in range(last + 1):
            checked(libc.prctl(24, capability, 0, 0, 0))
        # Without the bounding set, exec leaves root with nothing.
        os.execve(sys.executable, [sys.executable, __file__, "nothing-more", *sys.argv[2:]], dict(os.environ))


async def main() -> None:
    root = sys.argv[2]
    launcher = LinuxSandboxLauncher()
    await launcher.start()
    report = await launcher.report(terms(root) if sys.argv[1].startswith("id-maps") else None)
    by_name = {p.name: p for p in report.protections}
    missing = next((p for p in report.protections if p.required and p.state == "off"), None)
    said: dict[str, object] = {"available": report.available}
    if missing is not None:
        said |= {"missing": [missing.name, missing.errno], "remedy": missing.remedy}
    if "own_proc" in by_name:
        said["own_proc"] = [by_name["own_proc"].state, by_name["own_proc"].errno]
        said["own_proc_remedy"] = by_name["own_proc"].remedy
    if "identity" in by_name:
        said["identity"] = by_name["identity"].state
    try:
        said["output"] = (
            await shell(launcher, terms(root), "echo ran > mark; cat mark; ls /proc | wc -l; id -u")
        ).output
    except (SandboxUnavailable, LaunchFailed) as error:
        said["launch"] = type(error).__name__
    await launcher.close()
    print(json.dumps(said))


if __name__ == "__main__":
    lose(sys.argv[1])
    asyncio.run(main())
