"""Which number is which system call, for the two architectures of the sandbox.

A call that is not listed does not exist for a sandboxed command: the filter answers ENOSYS, so that a libc or a
program falls back to an older call. That covers calls newer than these tables, numbers that the kernel itself does not
implement (such as `vserver`), and calls that only the kernel makes (`uretprobe`).

Source: Linux 6.1 `asm/unistd_64.h` (x86-64) and `asm-generic/unistd.h` with what arm64 selects (aarch64), and for
numbers from 451 on, which are common to both, `scripts/syscall.tbl` of Linux 6.17. Read by `sandbox_helper.seccomp`;
it knows nothing of what is allowed.
"""

_X86_64 = """
0: read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
16: ioctl pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise shmget shmat
31: shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid sendfile socket connect accept sendto recvfrom
46: sendmsg recvmsg shutdown bind listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork
59: execve exit wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock fsync fdatasync
76: truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink readlink chmod fchmod
92: chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog getgid setuid setgid
107: geteuid getegid setpgid getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid
119: setresgid getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo
130: rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs getpriority setpriority
142: sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min
148: sched_rr_get_interval mlock munlock mlockall munlockall vhangup modify_ldt pivot_root
157: prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2 swapon swapoff reboot sethostname
171: setdomainname iopl ioperm
175: init_module delete_module
179: quotactl nfsservctl
186: gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
197: removexattr lremovexattr fremovexattr tkill time futex sched_setaffinity sched_getaffinity
206: io_setup io_destroy io_getevents io_submit io_cancel
212: lookup_dcookie epoll_create
216: remap_file_pages getdents64 set_tid_address restart_syscall semtimedop fadvise64 timer_create timer_settime
224: timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres clock_nanosleep exit_group
232: epoll_wait epoll_ctl tgkill utimes
237: mbind set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
246: kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get inotify_init inotify_add_watch
255: inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat linkat
266: symlinkat readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list get_robust_list splice tee
277: sync_file_range vmsplice move_pages utimensat epoll_pwait signalfd timerfd_create eventfd fallocate
286: timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev
297: rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark prlimit64 name_to_handle_at
304: open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu process_vm_readv process_vm_writev kcmp finit_module
314: sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create kexec_file_load bpf execveat userfaultfd
324: membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq
424: pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount
433: fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr
443: quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret process_mrelease
449: futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue
457: statmount listmount
462: mseal setxattrat getxattrat listxattrat removexattrat open_tree_attr
"""

_AARCH64 = """
0: io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr
11: listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie eventfd2 epoll_create1
21: epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch inotify_rm_watch ioctl ioprio_set ioprio_get
32: flock mknodat mkdirat unlinkat symlinkat linkat renameat umount2 mount pivot_root nfsservctl statfs fstatfs
45: truncate ftruncate fallocate faccessat chdir fchdir chroot fchmod fchmodat fchownat fchown openat close vhangup
59: pipe2 quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv pwritev sendfile pselect6 ppoll
74: signalfd4 vmsplice splice tee readlinkat newfstatat fstat sync fsync fdatasync sync_file_range timerfd_create
86: timerfd_settime timerfd_gettime utimensat acct capget capset personality exit exit_group waitid set_tid_address
97: unshare futex set_robust_list get_robust_list nanosleep getitimer setitimer kexec_load init_module delete_module
107: timer_create timer_gettime timer_getoverrun timer_settime timer_delete clock_settime clock_gettime clock_getres
115: clock_nanosleep syslog ptrace sched_setparam sched_setscheduler sched_getscheduler sched_getparam
122: sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max sched_get_priority_min
127: sched_rr_get_interval restart_syscall kill tkill tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask
136: rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigreturn setpriority getpriority reboot setregid setgid
145: setreuid setuid setresuid getresuid setresgid getresgid setfsuid setfsgid times setpgid getpgid getsid setsid
158: getgroups setgroups uname sethostname setdomainname getrlimit setrlimit getrusage umask prctl getcpu gettimeofday
170: settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid sysinfo mq_open mq_unlink mq_timedsend
183: mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd semget semctl semtimedop semop shmget shmctl
196: shmat shmdt socket socketpair bind listen accept connect getsockname getpeername sendto recvfrom setsockopt
209: getsockopt shutdown sendmsg recvmsg readahead brk munmap mremap add_key request_key keyctl clone execve mmap
223: fadvise64 swapon swapoff mprotect msync mlock munlock mlockall munlockall mincore madvise remap_file_pages mbind
236: get_mempolicy set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo perf_event_open accept4 recvmmsg
260: wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at clock_adjtime syncfs setns
269: sendmmsg process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp
278: getrandom memfd_create bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect
289: pkey_alloc pkey_free statx io_pgetevents rseq kexec_file_load
424: pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount
433: fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr
443: quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret process_mrelease
449: futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue
457: statmount listmount
462: mseal setxattrat getxattrat listxattrat removexattrat open_tree_attr
"""

_TABLES = {"x86_64": _X86_64, "aarch64": _AARCH64}


def syscall_numbers(arch: str) -> dict[str, int]:
    """Call name to number. `arch`: as `uname -m` says it: `x86_64` or `aarch64`.

    Raises ValueError for another architecture: without a table there is no filter, so nothing may run.
    """
    table = _TABLES.get(arch)
    if table is None:
        raise ValueError(f"no system call table for {arch!r}: the sandbox runs on {' and '.join(_TABLES)}")
    numbers = {}
    for line in table.split("\n"):
        first, _, names = line.partition(": ")
        if names:
            numbers.update({name: number for number, name in enumerate(names.split(" "), int(first))})
    return numbers
