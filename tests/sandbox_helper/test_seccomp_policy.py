"""The filter program asked call by call, on both architectures, through an interpreter of classic BPF."""

from __future__ import annotations

import errno
import itertools
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_helper import seccomp
from sandbox_helper.syscall_tables import syscall_numbers
from tests.sandbox_helper.bpf_interpreter import InvalidProgram, Program

pytestmark = pytest.mark.covers("BOX-1", "BOX-7")

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
AUDIT_ARCH_I386, AUDIT_ARCH_ARM = 0x40000003, 0x40000028
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT = (0x50000 | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))
HIGH_HALVES = (0, 1 << 32, 0xFFFFFFFF << 32, 0xDEADBEEF << 32)
X86_64_ONLY = {"modify_ldt", "iopl", "ioperm", "uselib", "sysfs"}

REFUSED_TABLE = """
# attack surface
EPERM: io_uring_setup io_uring_enter io_uring_register bpf userfaultfd perf_event_open keyctl add_key request_key kcmp
EPERM: process_madvise process_mrelease vmsplice modify_ldt iopl ioperm mbind set_mempolicy set_mempolicy_home_node
EPERM: migrate_pages move_pages fanotify_init
# obsolete
EPERM: uselib sysfs nfsservctl lookup_dcookie
# processes
EPERM: ptrace process_vm_readv process_vm_writev pidfd_getfd
# namespaces
EPERM: unshare setns
ENOSYS: clone3
# mount, and the new mount API
EPERM: mount umount2 pivot_root chroot
ENOSYS: fsopen fsconfig fsmount fspick open_tree open_tree_attr move_mount mount_setattr statmount listmount
# its mode is in memory
ENOSYS: openat2
# handles
EPERM: name_to_handle_at open_by_handle_at
# system
EPERM: quotactl quotactl_fd swapon swapoff acct reboot kexec_load kexec_file_load init_module finit_module
EPERM: delete_module syslog settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname vhangup
"""
REFUSED = {
    name: 0x50000 | getattr(errno, answer)
    for answer, names in re.findall(r"^(E\w+): (.*)$", REFUSED_TABLE, re.MULTILINE)
    for name in names.split()
}
MODE_ARGUMENT = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
FLAGS_ARGUMENT = {"open": 1, "openat": 2}
BY_ARGUMENT = {"clone", "ioctl", "personality", "fcntl", "socket", "socketpair", "seccomp"}
BY_ARGUMENT |= {*MODE_ARGUMENT, *FLAGS_ARGUMENT}
ORDINARY = """
    read write close openat fstat newfstatat statx lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask
    rt_sigreturn pread64 pwrite64 readv writev sched_yield mremap msync madvise shmget shmat shmctl dup dup3 nanosleep
    setitimer getpid sendfile connect accept accept4 sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname
    getpeername setsockopt getsockopt execve execveat exit exit_group wait4 waitid kill tkill tgkill uname semget semop
    semctl msgget msgsnd flock fsync fdatasync truncate ftruncate getdents64 getcwd chdir fchdir renameat renameat2
    mkdirat unlinkat linkat symlinkat readlinkat fchmod fchmodat fchmodat2 fchown fchownat umask getrlimit setrlimit
    prlimit64 getrusage sysinfo times getuid getgid geteuid getegid setpgid getppid setsid getpgid getsid setuid
    setgroups capget capset rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack statfs fstatfs getpriority
    setpriority sched_setaffinity sched_getaffinity sched_setscheduler mlock munlock prctl gettid setxattr getxattr
    listxattr futex futex_waitv epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 set_tid_address timer_create
    timer_settime clock_gettime clock_getres clock_nanosleep utimensat mq_open mq_timedsend inotify_init1
    inotify_add_watch inotify_rm_watch pselect6 ppoll set_robust_list splice tee sync_file_range signalfd4
    timerfd_create timerfd_settime eventfd2 fallocate pipe2 preadv pwritev preadv2 pwritev2 recvmmsg sendmmsg getcpu
    getrandom memfd_create membarrier mlock2 copy_file_range pkey_mprotect rseq pidfd_send_signal pidfd_open close_range
    faccessat faccessat2 landlock_create_ruleset landlock_add_rule landlock_restrict_self mknodat
    get_mempolicy sched_getattr ioprio_set syncfs restart_syscall
""".split()  # noqa: SIM905
ORDINARY_X86_64 = """
    open stat lstat poll access pipe select dup2 alarm pause fork vfork getdents rename mkdir rmdir creat link unlink
    symlink readlink chmod chown lchown utime mknod arch_prctl time epoll_create epoll_wait inotify_init eventfd
    signalfd getpgrp utimes futimesat
""".split()  # noqa: SIM905

PROGRAMS = {arch: Program(seccomp.build_filter(arch)) for arch in ARCHES}
NUMBERS = {arch: syscall_numbers(arch) for arch in ARCHES}


def verdict(arch: str, name: str, *arguments: int, program: Program | None = None) -> int:
    return (program or PROGRAMS[arch]).run(ARCHES[arch], NUMBERS[arch][name], *arguments)[0]


def rows() -> list[tuple[str, str, int]]:
    return [
        (arch, name, action)
        for arch in ARCHES
        for name, action in REFUSED.items()
        if arch == "x86_64" or name not in X86_64_ONLY
    ]


@pytest.mark.parametrize(("arch", "name", "action"), rows())
def test_a_refused_call_gets_its_answer_whatever_its_arguments(arch: str, name: str, action: int) -> None:
    assert verdict(arch, name) == action
    assert verdict(arch, name, *[2**64 - 1] * 6) == action


@pytest.mark.parametrize("arch", ARCHES)
def test_ordinary_calls_are_allowed(arch: str) -> None:
    names = ORDINARY + (ORDINARY_X86_64 if arch == "x86_64" else [])
    assert [name for name in names if verdict(arch, name, 3, 1, 2) != ALLOW] == []


@pytest.mark.parametrize("arch", ARCHES)
def test_every_listed_call_is_allowed_refused_or_judged_by_its_arguments(arch: str) -> None:
    for name in NUMBERS[arch]:
        if name not in BY_ARGUMENT:
            assert (verdict(arch, name) == ALLOW) == (name not in REFUSED), name


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", HIGH_HALVES)
def test_no_call_gives_a_file_a_set_id_bit(arch: str, high: int) -> None:
    modes = {0o4755: EPERM, 0o2755: EPERM, 0o6000: EPERM, 0o104755: EPERM, 0o755: ALLOW, 0o1777: ALLOW, 0o100644: ALLOW}
    for mode, expected in modes.items():
        for name, place in MODE_ARGUMENT.items():
            if name in NUMBERS[arch]:
                assert verdict(arch, name, *[0] * place, high | mode) == expected, name
        for name, place in FLAGS_ARGUMENT.items():
            if name in NUMBERS[arch]:
                before = [0] * place
                for creating in (os.O_CREAT, os.O_CREAT | os.O_EXCL | os.O_RDWR, os.O_TMPFILE | os.O_RDWR):
                    assert verdict(arch, name, *before, high | creating, high | mode) == expected, name
                # Without a creating flag the mode is whatever the register held.
                assert verdict(arch, name, *before, high | os.O_RDWR | os.O_DIRECTORY, high | mode) == ALLOW, name


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", HIGH_HALVES)
def test_clone_is_refused_with_any_namespace_flag_and_works_for_threads_and_fork(arch: str, high: int) -> None:
    namespaces = [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]
    thread = 0x003D0F00
    for flag in namespaces:
        assert verdict(arch, "clone", high | flag | 17) == EPERM
        assert verdict(arch, "clone", high | flag | thread) == EPERM
    for harmless in (17, thread, 0x4111, 0x01200011):
        assert verdict(arch, "clone", high | harmless) == ALLOW


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", HIGH_HALVES)
def test_terminal_injection_is_refused_in_both_halves_of_the_request(arch: str, high: int) -> None:
    for request in (0x5412, 0x541C):
        assert verdict(arch, "ioctl", 0, high | request) == EPERM
    for request in (0x5401, 0x5413, 0x5414, 0x540E, 0x541B, 0x5421, 0x8912, 0x54120000):
        assert verdict(arch, "ioctl", 0, high | request) == ALLOW
    assert verdict(arch, "ioctl", 0x5412, 0x5401, 0x5412) == ALLOW


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", HIGH_HALVES)
def test_only_harmless_personalities_are_allowed(arch: str, high: int) -> None:
    for persona in (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF):
        assert verdict(arch, "personality", high | persona) == ALLOW
    for persona in (0x0040000, 0x0400000, 0x0100000, 0x1, 0x20001, 0xFFFFFFFE):
        assert verdict(arch, "personality", high | persona) == EPERM


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", HIGH_HALVES)
def test_leases_and_directory_notifications_are_refused(arch: str, high: int) -> None:
    for command in (1024, 1026, 1040):
        assert verdict(arch, "fcntl", 3, high | command) == EPERM
    for command in (0, 1, 2, 3, 4, 5, 6, 7, 8, 37, 38, 1025, 1030, 1031, 1032, 1033, 1034):
        assert verdict(arch, "fcntl", 3, high | command) == ALLOW


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", HIGH_HALVES)
def test_only_the_listed_socket_families_exist(arch: str, high: int) -> None:
    allowed = {1, 2, 10}
    for family, flags in itertools.product(range(64), (0, 0x800, 0x80000, 0x80800)):
        for kind in (1, 2):
            expected = ALLOW if family in allowed | {16} else EAFNOSUPPORT
            assert verdict(arch, "socket", high | family, high | kind | flags, high) == expected, family
    for family in (0xFFFFFFFF, 0x80000002, 0x10001, 0x102):
        assert verdict(arch, "socket", high | family, 1) == EAFNOSUPPORT


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", HIGH_HALVES)
def test_raw_and_packet_sockets_are_refused_in_every_allowed_family(arch: str, high: int) -> None:
    for family, kind, flags in itertools.product((1, 2, 10), (3, 10), (0, 0x800, 0x80000, 0x7FFFFFF0)):
        assert verdict(arch, "socket", high | family, high | kind | flags) == EPERM
    assert verdict(arch, "socket", 17, 3) == EAFNOSUPPORT


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", HIGH_HALVES)
def test_netlink_speaks_route_only(arch: str, high: int) -> None:
    for kind in (2, 3, 0x80003):
        assert verdict(arch, "socket", high | 16, high | kind, high) == ALLOW
        for protocol in (1, 4, 6, 9, 12, 15, 16, 0xFFFFFFFF):
            assert verdict(arch, "socket", high | 16, high | kind, high | protocol) == EAFNOSUPPORT


@pytest.mark.parametrize("arch", ARCHES)
def test_unix_sockets_can_be_switched_off_while_unnamed_pairs_stay(arch: str) -> None:
    without = Program(seccomp.build_filter(arch, allow_unix_sockets=False))
    assert verdict(arch, "socket", 1, 1, program=without) == EAFNOSUPPORT
    for family in (2, 10, 16):
        assert verdict(arch, "socket", family, 2, program=without) == ALLOW
    assert verdict(arch, "socket", 2, 3, program=without) == EPERM
    for program in (without, PROGRAMS[arch]):
        assert verdict(arch, "socketpair", 1, 1, program=program) == ALLOW
        assert verdict(arch, "socketpair", (7 << 32) | 1, 1, program=program) == ALLOW
        for family in (0, 2, 10, 16, 30, 40):
            assert verdict(arch, "socketpair", family, 1, program=program) == EAFNOSUPPORT


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", HIGH_HALVES)
def test_a_filter_may_be_added_but_not_with_a_listener(arch: str, high: int) -> None:
    for flags in (0, 1, 2, 4, 16):
        assert verdict(arch, "seccomp", high | 1, high | flags) == ALLOW
    for flags in (8, 9, 0x18, 0x28):
        assert verdict(arch, "seccomp", high | 1, high | flags) == EPERM


@pytest.mark.parametrize("arch", ARCHES)
def test_the_developer_switch_lets_ptrace_through_and_nothing_else(arch: str) -> None:
    developer = Program(seccomp.build_filter(arch, developer_ptrace=True))
    assert verdict(arch, "ptrace", 0x4206, program=developer) == ALLOW
    for name, number in NUMBERS[arch].items():
        if name != "ptrace":
            assert developer.run(ARCHES[arch], number)[0] == PROGRAMS[arch].run(ARCHES[arch], number)[0], name


@pytest.mark.parametrize("arch", ARCHES)
def test_a_call_of_another_architecture_kills(arch: str) -> None:
    foreign = [AUDIT_ARCH_I386, AUDIT_ARCH_ARM, 0, 0xFFFFFFFF, *(a for other, a in ARCHES.items() if other != arch)]
    for audit_arch, number in itertools.product(foreign, (0, 20, NUMBERS[arch]["read"], 0x40000000, 0xFFFFFFFF)):
        assert PROGRAMS[arch].run(audit_arch, number)[0] == KILL_PROCESS


@pytest.mark.parametrize("arch", ARCHES)
def test_x32_numbers_do_not_exist(arch: str) -> None:
    for number in (*range(0x400), 0x3FFFFFFF, 0x7FFFFFFF, 0xBFFFFFFF):
        assert PROGRAMS[arch].run(ARCHES[arch], 0x40000000 | number)[0] == ENOSYS


@pytest.mark.parametrize("arch", ARCHES)
def test_numbers_outside_the_table_do_not_exist(arch: str) -> None:
    known = set(NUMBERS[arch].values())
    for number in (*range(2000), 0x3FFFFFFF, 0xFFFFFFFF, 0x80000000):
        if number not in known:
            assert PROGRAMS[arch].run(ARCHES[arch], number)[0] == ENOSYS, number
    assert {468, 469, 470} & known == set()


@given(
    arch=st.sampled_from(sorted(ARCHES)),
    audit_arch=st.one_of(st.sampled_from([*ARCHES.values(), AUDIT_ARCH_I386]), st.integers(0, 2**32 - 1)),
    number=st.one_of(st.integers(0, 512), st.integers(0, 2**32 - 1)),
    arguments=st.lists(st.one_of(st.integers(0, 64), st.integers(0, 2**64 - 1)), min_size=6, max_size=6),
    unix=st.booleans(),
    developer=st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=int(os.environ.get("CODESPACE_DEEP", "0")) or 300)
def test_any_call_ends_in_one_of_the_five_answers(
    arch: str, audit_arch: int, number: int, arguments: list[int], unix: bool, developer: bool
) -> None:
    program = Program(seccomp.build_filter(arch, allow_unix_sockets=unix, developer_ptrace=developer))
    assert len(program.instructions) < 4096
    action, _ = program.run(audit_arch, number, *arguments)
    if audit_arch != ARCHES[arch]:
        assert action == KILL_PROCESS
    else:
        assert action in {ALLOW, EPERM, ENOSYS, EAFNOSUPPORT}
    if action == ALLOW:
        assert number in NUMBERS[arch].values()


@pytest.mark.parametrize("arch", ARCHES)
def test_a_plain_call_costs_a_handful_of_instructions(arch: str) -> None:
    assert max(PROGRAMS[arch].run(ARCHES[arch], number)[1] for number in range(512)) <= 24


def test_equal_arguments_give_equal_bytes_and_an_unknown_architecture_gives_none() -> None:
    assert seccomp.build_filter("x86_64") == seccomp.build_filter("x86_64")
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.build_filter("riscv64")


def test_the_interpreter_refuses_programs_that_the_kernel_would_refuse() -> None:
    for text in (b"", b"1234567", b"\x06\0\0\0\0\0\xff", bytes.fromhex("2000000001000000 0600000000000000")):
        with pytest.raises(InvalidProgram):
            Program(text)
    with pytest.raises(InvalidProgram, match="leaves"):
        Program(bytes.fromhex("1500050000000000 0600000000000000"))


HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}


@pytest.mark.parametrize("arch", ARCHES)
def test_the_numbers_agree_with_the_kernel_headers_installed_here(arch: str) -> None:
    if not os.path.exists(HEADERS[arch]):
        pytest.skip(f"no kernel headers at {HEADERS[arch]}: install linux-libc-dev")
    with open(HEADERS[arch], encoding="ascii") as file:
        defined = dict(re.findall(r"#define (__NR(?:3264)?_\w+) (\w+)", file.read()))
    # The generic header gives both names of calls that differ between 32 and 64 bit; the last define is the 32-bit one.
    checked = 0
    for name, number in NUMBERS[arch].items():
        value = defined.get(f"__NR_{name}")
        while value is not None and not value.isdigit():
            value = defined.get(value)
        if value is not None:
            assert int(value) == number, name
            checked += 1
    assert checked > 290
