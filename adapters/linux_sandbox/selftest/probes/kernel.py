"""Attacks on the kernel's surface: namespaces, mounts, and calls that only the filter keeps away.

Calls are made with arguments that no kernel accepts, so that even an answer from behind the filter changes nothing.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket

from .base import Outcome, Place, call, can_write, found_any, own_user_namespace, probe, reached, tried

_NAMESPACE_FLAGS = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
_NEWNS, _NEWNET = 0x20000, 0x40000000


@probe("kernel", "clone-with-namespaces")
def _clone(place: Place) -> Outcome:
    answers = {}
    for flag in _NAMESPACE_FLAGS:
        child, answer = call("clone", flag | signal.SIGCHLD, 0, 0, 0, 0)
        if child == 0:
            os._exit(0)
        if child > 0:
            os.waitpid(child, 0)
        answers[hex(flag)] = answer
    return reached(answers, {"EPERM"})


@probe("kernel", "enter-a-namespace")
def _enter(place: Place) -> Outcome:
    return reached({"setns": call("setns", -1, 0)[1], "unshare": call("unshare", 0)[1]}, {"EPERM"})


@probe("kernel", "mount-a-file-system")
def _mount(place: Place) -> Outcome:
    if place.control:
        own_user_namespace(_NEWNS)
    words = [ctypes.c_char_p(text) for text in (b"none", b"/tmp", b"tmpfs")]
    result, answer = call("mount", *words, 0, 0)
    return Outcome("open") if result >= 0 else Outcome("refused", answer)


@probe("kernel", "new-mount-api")
def _new_mount(place: Place) -> Outcome:
    names = ("open_tree", "move_mount", "fsconfig", "fsmount", "fspick", "mount_setattr", "statmount")
    answers = {name: call(name, -1, 0, -1, 0, -1)[1] for name in names}
    if place.control:  # older kernels lack some
        answers = {name: answer for name, answer in answers.items() if answer != "ENOSYS"}
    return reached(answers, {"ENOSYS"})


@probe("kernel", "write-a-sysctl")
def _sysctl(place: Place) -> Outcome:
    if place.control:
        own_user_namespace(_NEWNET)
    found = []
    for folder, _, names in os.walk("/proc/sys"):
        found += [f"{folder}/{name}" for name in names if can_write(f"{folder}/{name}")]
    return found_any(found, "EROFS")


@probe("kernel", "write-to-the-machine-through-proc")
def _proc(place: Place) -> Outcome:
    if place.control and os.geteuid() != 0:
        return Outcome("untried", None, "the control needs root")
    paths = ["/proc/sysrq-trigger", "/proc/mtrr", "/proc/timer_stats", "/proc/irq/default_smp_affinity"]
    return found_any([path for path in paths if os.path.exists(path) and can_write(path)], "EROFS")


@probe("kernel", "packet-socket-by-its-old-name")
def _packet(place: Place) -> Outcome:
    if place.control:
        own_user_namespace(_NEWNET)
    return tried(lambda: socket.socket(socket.AF_INET, 10, socket.htons(3)).close())


@probe("kernel", "terminal-injection-with-high-bits")
def _inject(place: Place) -> Outcome:
    pipe = os.pipe()[0]
    return reached({"ioctl": call("ioctl", pipe, 0x5412 | 1 << 32, 0)[1]}, {"EPERM"})


@probe("kernel", "directory-notification")
def _notify(place: Place) -> Outcome:
    descriptor = os.open(place.workspace, os.O_RDONLY)
    return tried(lambda: fcntl.fcntl(descriptor, fcntl.F_NOTIFY, 0))


@probe("kernel", "io-uring-and-keys")
def _rings_and_keys(place: Place) -> Outcome:
    answers = {
        "io_uring_enter": call("io_uring_enter", -1, 0, 0, 0, 0, 0)[1],
        "io_uring_register": call("io_uring_register", -1, 0, 0, 0)[1],
        "add_key": call("add_key", 0, 0, 0, 0, 0)[1],
        "request_key": call("request_key", 0, 0, 0, 0)[1],
    }
    return reached(answers, {"EPERM"})


@probe("kernel", "set-the-clock")
def _clock(place: Place) -> Outcome:
    return reached({"clock_settime": call("clock_settime", 9999, 0)[1]}, {"EPERM"})
