"""The kernel's system calls through ctypes, by name: every confinement layer stands on this, so it imports nothing
heavy."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import Any

X86_64: dict[str, int] = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "ioctl": 16, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "select": 23,
    "sched_yield": 24, "mremap": 25, "msync": 26, "madvise": 28, "shmget": 29, "dup": 32, "dup2": 33, "pause": 34,
    "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39, "sendfile": 40, "socket": 41,
    "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "shutdown": 48, "getsockname": 51, "getpeername": 52,
    "socketpair": 53, "getsockopt": 55, "clone": 56, "exit": 60, "wait4": 61, "uname": 63, "semget": 64, "msgget": 68,
    "fcntl": 72, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "getdents": 78, "getcwd": 79, "chdir": 80,
    "fchdir": 81, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "unlink": 87, "readlink": 89, "chmod": 90,
    "fchmod": 91, "umask": 95, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100,
    "ptrace": 101, "getuid": 102, "getgid": 104, "setuid": 105, "geteuid": 107, "getegid": 108, "getppid": 110,
    "getpgrp": 111, "getgroups": 115, "setgroups": 116, "setresuid": 117, "getresuid": 118, "setresgid": 119,
    "getresgid": 120, "getpgid": 121, "getsid": 124, "capget": 125, "capset": 126, "rt_sigpending": 127,
    "rt_sigtimedwait": 128, "rt_sigsuspend": 130, "sigaltstack": 131, "utime": 132, "personality": 135, "statfs": 137,
    "fstatfs": 138, "getpriority": 140, "sched_getparam": 143, "sched_getscheduler": 145,
    "sched_get_priority_max": 146, "sched_get_priority_min": 147, "pivot_root": 155, "prctl": 157, "arch_prctl": 158,
    "mount": 165, "umount2": 166, "swapon": 167, "iopl": 172, "init_module": 175, "quotactl": 179, "gettid": 186,
    "getxattr": 191, "lgetxattr": 192, "fgetxattr": 193, "listxattr": 194, "llistxattr": 195, "flistxattr": 196,
    "time": 201, "futex": 202, "sched_getaffinity": 204, "epoll_create": 213, "getdents64": 217,
    "set_tid_address": 218, "restart_syscall": 219, "fadvise64": 221, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232, "epoll_ctl": 233, "tgkill": 234, "utimes": 235,
    "mq_open": 240, "kexec_load": 246, "waitid": 247, "add_key": 248, "keyctl": 250, "inotify_init": 253,
    "openat": 257, "mkdirat": 258, "futimesat": 261, "newfstatat": 262, "unlinkat": 263, "renameat": 264,
    "readlinkat": 267, "fchmodat": 268, "faccessat": 269, "pselect6": 270, "ppoll": 271, "unshare": 272,
    "set_robust_list": 273, "get_robust_list": 274, "utimensat": 280, "epoll_pwait": 281, "timerfd_create": 283,
    "eventfd": 284, "fallocate": 285, "timerfd_settime": 286, "timerfd_gettime": 287, "eventfd2": 290,
    "epoll_create1": 291, "dup3": 292, "pipe2": 293, "inotify_init1": 294, "preadv": 295, "pwritev": 296,
    "perf_event_open": 298, "prlimit64": 302, "open_by_handle_at": 304, "setns": 308, "getcpu": 309,
    "process_vm_readv": 310, "kcmp": 312, "renameat2": 316, "seccomp": 317, "getrandom": 318, "bpf": 321,
    "execveat": 322, "userfaultfd": 323, "membarrier": 324, "copy_file_range": 326, "preadv2": 327, "pwritev2": 328,
    "statx": 332, "rseq": 334, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430,
    "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "close_range": 436, "openat2": 437,
    "faccessat2": 439, "process_madvise": 440, "epoll_pwait2": 441, "mount_setattr": 442,
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446, "futex_waitv": 449,
    "fchmodat2": 452,
}  # fmt: skip

AARCH64: dict[str, int] = {
    "getxattr": 8, "lgetxattr": 9, "fgetxattr": 10, "listxattr": 11, "llistxattr": 12, "flistxattr": 13, "getcwd": 17,
    "eventfd2": 19, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22, "dup": 23, "dup3": 24, "fcntl": 25,
    "inotify_init1": 26, "ioctl": 29, "mkdirat": 34, "unlinkat": 35, "renameat": 38, "umount2": 39, "mount": 40,
    "pivot_root": 41, "statfs": 43, "fstatfs": 44, "ftruncate": 46, "fallocate": 47, "faccessat": 48, "chdir": 49,
    "fchdir": 50, "fchmod": 52, "fchmodat": 53, "openat": 56, "close": 57, "pipe2": 59, "quotactl": 60,
    "getdents64": 61, "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pwrite64": 68,
    "preadv": 69, "pwritev": 70, "sendfile": 71, "pselect6": 72, "ppoll": 73, "readlinkat": 78, "newfstatat": 79,
    "fstat": 80, "fsync": 82, "fdatasync": 83, "timerfd_create": 85, "timerfd_settime": 86, "timerfd_gettime": 87,
    "utimensat": 88, "capget": 90, "capset": 91, "personality": 92, "exit": 93, "exit_group": 94, "waitid": 95,
    "set_tid_address": 96, "unshare": 97, "futex": 98, "set_robust_list": 99, "get_robust_list": 100,
    "nanosleep": 101, "getitimer": 102, "setitimer": 103, "kexec_load": 104, "init_module": 105, "clock_gettime": 113,
    "clock_getres": 114, "clock_nanosleep": 115, "ptrace": 117, "sched_getscheduler": 120, "sched_getparam": 121,
    "sched_getaffinity": 123, "sched_yield": 124, "sched_get_priority_max": 125, "sched_get_priority_min": 126,
    "restart_syscall": 128, "tgkill": 131, "sigaltstack": 132, "rt_sigsuspend": 133, "rt_sigaction": 134,
    "rt_sigprocmask": 135, "rt_sigpending": 136, "rt_sigtimedwait": 137, "rt_sigreturn": 139, "getpriority": 141,
    "setuid": 146, "setresuid": 147, "getresuid": 148, "setresgid": 149, "getresgid": 150, "times": 153,
    "getpgid": 155, "getsid": 156, "getgroups": 158, "setgroups": 159, "uname": 160, "getrlimit": 163,
    "getrusage": 165, "umask": 166, "prctl": 167, "getcpu": 168, "gettimeofday": 169, "getpid": 172, "getppid": 173,
    "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179, "mq_open": 180,
    "msgget": 186, "semget": 190, "shmget": 194, "socket": 198, "socketpair": 199, "getsockname": 204,
    "getpeername": 205, "sendto": 206, "recvfrom": 207, "getsockopt": 209, "shutdown": 210, "sendmsg": 211,
    "recvmsg": 212, "brk": 214, "munmap": 215, "mremap": 216, "add_key": 217, "keyctl": 219, "clone": 220,
    "mmap": 222, "fadvise64": 223, "swapon": 224, "mprotect": 226, "msync": 227, "madvise": 233,
    "perf_event_open": 241, "wait4": 260, "prlimit64": 261, "open_by_handle_at": 265, "setns": 268,
    "process_vm_readv": 270, "kcmp": 272, "renameat2": 276, "seccomp": 277, "getrandom": 278, "bpf": 280,
    "execveat": 281, "userfaultfd": 282, "membarrier": 283, "copy_file_range": 285, "preadv2": 286, "pwritev2": 287,
    "statx": 291, "rseq": 293, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430,
    "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "close_range": 436, "openat2": 437,
    "faccessat2": 439, "process_madvise": 440, "epoll_pwait2": 441, "mount_setattr": 442,
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446, "futex_waitv": 449,
    "fchmodat2": 452,
}  # fmt: skip


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long

MACHINE = platform.machine()
_TABLES = {"x86_64": X86_64, "aarch64": AARCH64}
SUPPORTED = os.uname().sysname == "Linux" and MACHINE in _TABLES and struct.calcsize("P") == 8
"""The filter is written in system-call numbers of these machines. Elsewhere only tier ``none`` exists."""
NUMBERS = _TABLES.get(MACHINE, X86_64)
"""System-call numbers of this machine by name."""

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_NAME = 1, 2, 4, 8, 15
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 28, 36, 38, 47


class ConfinementError(Exception):
    """A layer of the sandbox could not be applied. ``layer``: which; ``reason``: what was tried and what came back."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"{layer}: {reason}")


def syscall(name: str, *arguments: Any) -> int:
    """One system call by name; integers are passed as 64 bit. OSError with its errno on failure, ENOSYS where this
    machine has no such call."""
    if name not in NUMBERS:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    # ctypes passes a bare int as 32 bits, which would leave the upper half of a register undefined.
    passed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = LIBC.syscall(ctypes.c_long(NUMBERS[name]), *passed)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def prctl(option: int, *arguments: int) -> int:
    """``prctl(2)``, the arguments that are left out being 0, as the kernel demands."""
    return syscall("prctl", option, *(arguments + (0,) * (4 - len(arguments))))


def parent_death_signal() -> int:
    """The signal that this process gets when its parent dies; 0: none."""
    number = ctypes.c_int()
    syscall("prctl", PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    return number.value


def close_all(keep: int | None = None) -> None:
    """Closes every descriptor of the process but one."""
    last = 0xFFFFFFFF
    spans = [(0, last)] if keep is None else [(0, keep - 1), (keep + 1, last)]
    for first, end in spans:
        if first <= end:
            syscall("close_range", first, end, 0)


def proc_text(folder: int | None, path: str) -> str:
    """The first 8 KiB of a file of /proc; empty when it cannot be read, as that of a process which is gone. ``folder``:
    an open /proc of the caller's pid namespace (``GuardState.proc``); None: the usual one."""
    try:
        where = path if folder is not None else f"/proc/{path}"
        fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    try:
        return os.read(fd, 8192).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
