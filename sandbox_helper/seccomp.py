"""The system call filter of a command: which calls exist for it, as a classic BPF program.

A deny list for attack surface, checks on the arguments of a few calls, and ENOSYS for every number that the tables do
not know. Calls are found by binary search, so that any of them costs about eight comparisons; the kernel caches the
verdict of calls whose arguments do not matter. Pure apart from `install_filter`. It refuses to know plans, paths and
policy: `sandbox_helper` builds one program at its start and installs it in PID 1 and in the command, last before exec.

Sources: seccomp(2), `linux/filter.h`, `linux/seccomp.h`, `linux/audit.h`. All argument checks look at the low 32 bits
alone, since the kernel declares those arguments as int and drops the rest: comparing all 64 bits would let a set high
bit pass the filter (CVE-2019-7303).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from sandbox_helper.syscall_tables import syscall_numbers

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

RET_KILL_PROCESS = 0x80000000
RET_ERRNO = 0x00050000
RET_ALLOW = 0x7FFF0000
_EPERM = RET_ERRNO | errno.EPERM
_ENOSYS = RET_ERRNO | errno.ENOSYS
_EAFNOSUPPORT = RET_ERRNO | errno.EAFNOSUPPORT

X32_SYSCALL_BIT = 0x40000000
MAX_INSTRUCTIONS = 4096
"""BPF_MAXINSNS: the kernel refuses longer programs."""

_NOT_PERMITTED = (
    # Kernel attack surface that developer programs do without, or keys and memory policy shared beyond the sandbox.
    "io_uring_setup io_uring_enter io_uring_register bpf userfaultfd perf_event_open keyctl add_key request_key kcmp "
    "process_madvise process_mrelease vmsplice modify_ldt iopl ioperm mbind set_mempolicy set_mempolicy_home_node "
    "migrate_pages move_pages fanotify_init "
    # Obsolete.
    "uselib sysfs nfsservctl lookup_dcookie "
    # Other processes: PID 1 of the sandbox above all.
    "process_vm_readv process_vm_writev pidfd_getfd "
    "unshare setns mount umount2 pivot_root chroot name_to_handle_at open_by_handle_at "
    # The machine.
    "quotactl quotactl_fd swapon swapoff acct reboot kexec_load kexec_file_load init_module finit_module delete_module "
    "syslog settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname vhangup"
)

_NOT_IMPLEMENTED = (
    # Flags of clone3 are in memory, where no filter sees them; a libc falls back to clone.
    "clone3 "
    # The new mount API: programs fall back to mount, which is refused.
    "fsopen fsconfig fsmount fspick open_tree open_tree_attr move_mount mount_setattr statmount listmount "
    # Its mode is in memory (see _SET_ID_BITS); programs fall back to openat.
    "openat2"
)

_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. CLONE_NEWTIME is none of clone's flags: there its bit
# belongs to the exit signal.
_CLONE_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
_F_SETLEASE, _F_NOTIFY, _F_SETDELEG = 1024, 1026, 1040
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
# AF_INET with SOCK_PACKET is the old name of an AF_PACKET socket; the kernel still takes it.
_SOCK_RAW, _SOCK_PACKET, _SOCK_TYPE_MASK = 3, 10, 0xF
_SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
# A set-id file in the workspace would be one on the host too, where no nosuid stands in its way: owned by the
# workspace's owner, run by whoever can reach it. The filter cannot tell a directory, so those are refused set-gid too.
_SET_ID_BITS = 0o6000
_O_CREAT, _O_TMPFILE = 0o100, 0o20000000
_MODE_ARGUMENT = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
_FLAGS_ARGUMENT = {"open": 1, "openat": 2}
"""The mode follows the flags, and means something only where these create a file."""

# linux/bpf_common.h: class | size | mode, class | operation | source.
_LOAD_WORD = 0x20
_AND = 0x54
_JUMP_ALWAYS = 0x05
_JUMP_EQUAL = 0x15
_JUMP_GREATER_EQUAL = 0x35
_JUMP_SET = 0x45
_RETURN = 0x06

# struct seccomp_data: nr, arch, instruction_pointer, args[6], little-endian on both architectures.
_DATA_NR, _DATA_ARCH, _DATA_ARGS = 0, 4, 16

_Instruction = tuple[int, int, int, int]
_Code = list[_Instruction]


def _return(action: int) -> _Code:
    return [(_RETURN, 0, 0, action)]


def _argument(index: int) -> _Code:
    """Loads the low half of an argument."""
    return [(_LOAD_WORD, 0, 0, _DATA_ARGS + 8 * index)]


def _if(jump: int, value: int, action: int) -> _Code:
    """Ends with `action` where the accumulator compares true, else goes on."""
    return [(jump, 0, 1, value), (_RETURN, 0, 0, action)]


def _any_equal(values: tuple[int, ...], action: int) -> _Code:
    return [step for value in values for step in _if(_JUMP_EQUAL, value, action)]


def _argument_checks(allow_unix_sockets: bool) -> dict[str, _Code]:
    """Calls whose verdict depends on their arguments, with the code that gives it."""
    plain_type = [
        *_argument(1),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        *_any_equal((_SOCK_RAW, _SOCK_PACKET), _EPERM),
        *_return(RET_ALLOW),
    ]
    netlink = [*_argument(2), *_if(_JUMP_EQUAL, _NETLINK_ROUTE, RET_ALLOW), *_return(_EAFNOSUPPORT)]
    families = (_AF_INET, _AF_INET6, *((_AF_UNIX,) if allow_unix_sockets else ()))
    to_plain = [
        (_JUMP_EQUAL, len(families) - 1 - place + 2 + len(netlink), 0, family) for place, family in enumerate(families)
    ]
    no_set_id = [*_if(_JUMP_SET, _SET_ID_BITS, _EPERM), *_return(RET_ALLOW)]
    modes = {name: [*_argument(index), *no_set_id] for name, index in _MODE_ARGUMENT.items()}
    creating = {
        name: [
            *_argument(index),
            (_JUMP_SET, 1, 0, _O_CREAT | _O_TMPFILE),
            *_return(RET_ALLOW),
            *_argument(index + 1),
            *no_set_id,
        ]
        for name, index in _FLAGS_ARGUMENT.items()
    }
    socket = [
        *_argument(0),
        *to_plain,
        (_JUMP_EQUAL, 1, 0, _AF_NETLINK),
        *_return(_EAFNOSUPPORT),
        *netlink,
        *plain_type,
    ]
    return {
        **modes,
        **creating,
        "clone": [*_argument(0), *_if(_JUMP_SET, _CLONE_NEW, _EPERM), *_return(RET_ALLOW)],
        "ioctl": [*_argument(1), *_any_equal((_TIOCSTI, _TIOCLINUX), _EPERM), *_return(RET_ALLOW)],
        "fcntl": [*_argument(1), *_any_equal((_F_SETLEASE, _F_NOTIFY, _F_SETDELEG), _EPERM), *_return(RET_ALLOW)],
        "personality": [*_argument(0), *_any_equal(_PERSONALITIES, RET_ALLOW), *_return(_EPERM)],
        "socket": socket,
        "socketpair": [*_argument(0), *_if(_JUMP_EQUAL, _AF_UNIX, RET_ALLOW), *_return(_EAFNOSUPPORT)],
        "seccomp": [*_argument(1), *_if(_JUMP_SET, _SECCOMP_FILTER_FLAG_NEW_LISTENER, _EPERM), *_return(RET_ALLOW)],
    }


def _verdicts(arch: str, allow_unix_sockets: bool, developer_ptrace: bool) -> list[tuple[int, _Code]]:
    """(first number, code): each verdict holds up to the next first number. Starts at 0, ends with ENOSYS for ever."""
    numbers = syscall_numbers(arch)
    code = {number: _return(RET_ALLOW) for number in numbers.values()}
    refused = dict.fromkeys(_NOT_PERMITTED.split(), _EPERM) | dict.fromkeys(_NOT_IMPLEMENTED.split(), _ENOSYS)
    if not developer_ptrace:
        refused["ptrace"] = _EPERM
    for name, action in refused.items():
        if name in numbers:  # some exist on one architecture only
            code[numbers[name]] = _return(action)
    for name, check in _argument_checks(allow_unix_sockets).items():
        if name in numbers:
            code[numbers[name]] = check

    spans: list[tuple[int, _Code]] = []
    for number in range(max(code) + 2):
        verdict = code.get(number, _return(_ENOSYS))
        if not spans or spans[-1][1] != verdict:
            spans.append((number, verdict))
    return spans


def _search(spans: list[tuple[int, _Code]]) -> _Code:
    """A binary search over the spans; the accumulator holds the number."""
    if len(spans) == 1:
        return spans[0][1]
    middle = len(spans) // 2
    lower, upper = _search(spans[:middle]), _search(spans[middle:])
    first = spans[middle][0]
    if len(lower) <= 255:
        return [(_JUMP_GREATER_EQUAL, len(lower), 0, first), *lower, *upper]
    # Conditional jumps reach 255 instructions, the unconditional one any distance.
    return [(_JUMP_GREATER_EQUAL, 0, 1, first), (_JUMP_ALWAYS, 0, 0, len(lower)), *lower, *upper]


def build_filter(arch: str, *, allow_unix_sockets: bool = True, developer_ptrace: bool = False) -> bytes:
    """The filter program, as an array of struct sock_filter (8 bytes an instruction). Equal arguments, equal bytes.

    `arch`: `x86_64` or `aarch64`, as `uname -m` says it. `allow_unix_sockets`: whether `socket` makes AF_UNIX ones
    (unnamed pairs are always allowed). `developer_ptrace`: lets `ptrace` through, for workspaces with a debugger.

    A foreign architecture kills the process; x32 numbers and unknown ones are ENOSYS. Raises ValueError for an
    architecture without a table. Source: ours, from the kernel's headers.
    """
    numbered = [
        (_LOAD_WORD, 0, 0, _DATA_NR),
        # Said apart from the tail, because on x86-64 these numbers are another ABI and not only unknown calls.
        *_if(_JUMP_GREATER_EQUAL, X32_SYSCALL_BIT, _ENOSYS),
        *_search(_verdicts(arch, allow_unix_sockets, developer_ptrace)),
    ]
    native = [(_LOAD_WORD, 0, 0, _DATA_ARCH), (_JUMP_EQUAL, 1, 0, AUDIT_ARCH[arch]), *_return(RET_KILL_PROCESS)]
    program = [*native, *numbered]
    if len(program) > MAX_INSTRUCTIONS:
        raise ValueError(f"filter for {arch}: {len(program)} instructions, the kernel takes {MAX_INSTRUCTIONS}")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


_MACHINE = os.uname().machine
_NR_SECCOMP = {"x86_64": 317, "aarch64": 277}.get(_MACHINE)
_SECCOMP_SET_MODE_FILTER = 1

# PyDLL keeps the interpreter's lock: the caller is a forked child that has no other thread to hand it to.
_libc = ctypes.PyDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p)


def install_filter(program: bytes) -> None:
    """Puts the calling thread, and all it starts from now on, under the program. It cannot be taken off again.

    Needs no_new_privs. Raises OSError: EACCES without no_new_privs, EINVAL for a program that the kernel refuses or
    where it has no filters, ENOMEM when the filters of a thread grow too long. Source: seccomp(2).
    """
    length, rest = divmod(len(program), 8)
    if rest or not 0 < length <= MAX_INSTRUCTIONS:
        raise OSError(errno.EINVAL, f"seccomp filter of {len(program)} bytes: no array of struct sock_filter")
    fprog = _SockFprog(length, program)
    if _NR_SECCOMP is None:
        raise OSError(errno.ENOSYS, f"seccomp: no call number for {_MACHINE}")
    if _syscall(_NR_SECCOMP, _SECCOMP_SET_MODE_FILTER, 0, ctypes.addressof(fprog)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp(SECCOMP_SET_MODE_FILTER): {os.strerror(code)}")
