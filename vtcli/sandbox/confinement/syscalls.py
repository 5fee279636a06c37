"""Which system calls untrusted code may make: x86-64 numbers with the reason, grouped; all others fail with EPERM.

Chosen from what numpy, PIL, OpenCV, matplotlib, scipy, sympy, PyAV, threads and asyncio were seen to use. Left out on
purpose, though harmless alone: file locks and leases, keyrings, inotify and memfd_create (channels between episodes, or
memory that no limit counts; IOI isolate 2.4 closed the same), all of io_uring, splice, and every call that takes the id
of another process.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

CLONE = 56

_FILES = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8, "pread64": 17,
    "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "dup": 32, "dup2": 33, "sendfile": 40,
    "fsync": 74, "fdatasync": 75, "ftruncate": 77, "getdents": 78, "getcwd": 79, "chdir": 80,
    "fchdir": 81, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "unlink": 87, "readlink": 89, "umask": 95,
    "getdents64": 217, "fadvise64": 221, "mkdirat": 258,
    "newfstatat": 262, "unlinkat": 263, "renameat": 264, "readlinkat": 267, "faccessat": 269, "fallocate": 285,
    "dup3": 292, "pipe2": 293, "preadv": 295, "pwritev": 296, "copy_file_range": 326,
    "preadv2": 327, "pwritev2": 328, "statx": 332, "close_range": 436, "faccessat2": 439,
}  # fmt: skip
_MEMORY = {
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "mremap": 25, "msync": 26, "madvise": 28, "membarrier": 324,
}  # fmt: skip
_WAITING = {
    "poll": 7, "select": 23, "sched_yield": 24, "pause": 34, "nanosleep": 35, "epoll_create": 213, "futex": 202,
    "restart_syscall": 219, "epoll_wait": 232, "epoll_ctl": 233, "pselect6": 270, "ppoll": 271,
    "epoll_pwait": 281, "timerfd_create": 283, "eventfd": 284, "timerfd_settime": 286, "timerfd_gettime": 287,
    "eventfd2": 290, "epoll_create1": 291, "epoll_pwait2": 441, "futex_waitv": 449,
}  # fmt: skip
_PROCESS = {
    "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "getitimer": 36, "alarm": 37, "setitimer": 38,
    "getpid": 39, "exit": 60, "wait4": 61, "uname": 63, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108,
    "getppid": 110, "getpgrp": 111, "getgroups": 115, "getresuid": 118, "getresgid": 120,
    "rt_sigpending": 127, "rt_sigtimedwait": 128, "rt_sigsuspend": 130, "sigaltstack": 131,
    "sched_get_priority_max": 146, "sched_get_priority_min": 147, "arch_prctl": 158, "gettid": 186,
    "set_tid_address": 218, "exit_group": 231, "waitid": 247, "set_robust_list": 273, "rseq": 334,
}  # fmt: skip
_FACTS = {
    "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100, "time": 201,
    "getcpu": 309, "getrandom": 318,
}  # fmt: skip
_CHANNEL = {  # on sockets that exist already: the harness's own, and pairs made by asyncio
    "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "shutdown": 48, "getsockname": 51, "getpeername": 52,
    "getsockopt": 55,
}  # fmt: skip

ALLOWED = frozenset(n for group in (_FILES, _MEMORY, _WAITING, _PROCESS, _FACTS, _CHANNEL) for n in group.values())

_MODES = {"chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452}
TIMES = frozenset({132, 235, 261, 280})
"""utime, utimes, futimesat, utimensat: Landlock does not cover them, so they are allowed only where every file outside
the workspace is mounted read-only. Not answered as done: pathlib's touch would take a missing file for touched."""
_ATTRIBUTES = {
    "getxattr": 191,
    "lgetxattr": 192,
    "fgetxattr": 193,
    "listxattr": 194,
    "llistxattr": 195,
    "flistxattr": 196,
}

ANSWERED = (
    # Landlock does not cover modes, and a folder that its owner cannot enter would be in the guard's way; but
    # shutil.copy ends with a chmod, and a copy that worked must not look like a failure: answered as done, not done.
    dict.fromkeys(_MODES.values(), 0)
    | dict.fromkeys(_ATTRIBUTES.values(), errno.ENOTSUP)  # shutil.copy2 takes this for "none here"
    | {435: errno.ENOSYS, 437: errno.ENOSYS}  # clone3, openat2: flags behind a pointer; there are clone and openat
    | {137: errno.ENOSYS, 138: errno.ENOSYS}  # statfs, fstatfs: how full the host's disk is, which others fill too
)
"""System call number -> errno that it is answered with, without being made."""

SIGCHLD = 17
_CHILD_CLEARTID, _CHILD_SETTID, _PARENT_SETTID = 0x00200000, 0x01000000, 0x00100000
FORK_FLAGS = (SIGCHLD | _CHILD_CLEARTID | _CHILD_SETTID, SIGCHLD)
"""glibc's and musl's ``fork``: no memory, files or namespaces shared or made."""
THREAD_FLAGS = (0x003D0F00, 0x007D0F00)
"""glibc's and musl's ``pthread_create``: VM, FS, FILES, SYSVSEM, SIGHAND, THREAD, SETTLS, PARENT_SETTID,
CHILD_CLEARTID (and DETACHED)."""


@dataclass(frozen=True, slots=True)
class ByArgument:
    """One condition on one argument, masked: it is among ``values`` (or, if ``forbidden``, is not); or, if ``null``,
    all its 64 bits are zero. Where it does not hold, the call is answered with ``otherwise``."""

    argument: int
    values: tuple[int, ...] = (0,)
    mask: int = 0xFFFFFFFF
    null: bool = False
    forbidden: bool = False
    otherwise: int = errno.EPERM


_ACCESS_MODE, _O_TRUNC = 3, 0o1000
_ITSELF = (ByArgument(0, (0,)),)  # of processes by number only the caller, 0; another's number would tell of others
_CLOCK = (ByArgument(0, (0,), 1 << 31),)  # no negative clock: the CPU time of a process or thread by its number

CONDITIONS: dict[int, tuple[ByArgument, ...]] = {
    # open, openat: not O_RDONLY with O_TRUNC, which empties a file that Landlock before ABI 3 lets one read
    2: (ByArgument(1, (_O_TRUNC,), _ACCESS_MODE | _O_TRUNC, forbidden=True),),
    257: (ByArgument(2, (_O_TRUNC,), _ACCESS_MODE | _O_TRUNC, forbidden=True),),
    # ioctl: TCGETS, TIOCGWINSZ (isatty), FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    16: (ByArgument(1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451), otherwise=errno.ENOTTY),),
    # fcntl: F_DUPFD, GETFD, SETFD, GETFL, SETFL, DUPFD_CLOEXEC, GETPIPE_SZ, GET_SEALS; no locks, leases, signal owners
    72: (ByArgument(1, (0, 1, 2, 3, 4, 1030, 1032, 1034)),),
    # prctl: GET_DUMPABLE, SET_NAME, GET_NAME, CAPBSET_READ, GET_NO_NEW_PRIVS
    157: (ByArgument(0, (3, 15, 16, 23, 39)),),
    # sendto without an address, which is send
    44: (ByArgument(4, null=True),),
    # socketpair, AF_UNIX; SOCK_STREAM or SOCK_SEQPACKET: a datagram socket could send to any path
    53: (ByArgument(0, (1,)), ByArgument(1, (1, 5), 0xF)),
    # prlimit64: a hard limit cannot be raised without a capability
    302: _ITSELF,
    # getpgid, getsid, sched_getparam, sched_getscheduler, get_robust_list
    121: _ITSELF,
    124: _ITSELF,
    143: _ITSELF,
    145: _ITSELF,
    274: _ITSELF,
    # getpriority: of a process, by default of oneself
    140: (ByArgument(0, (0,)), ByArgument(1, (0,))),
    # sched_getaffinity: glibc asks for a thread by its number when it looks for its stack, and does without on ENOSYS
    204: (ByArgument(0, (0,), otherwise=errno.ENOSYS),),
    # renameat2: RENAME_NOREPLACE, RENAME_EXCHANGE; RENAME_WHITEOUT would make a device
    316: (ByArgument(4, (0,), 0xFFFFFFFC, otherwise=errno.EINVAL),),
    # clock_gettime, clock_getres, clock_nanosleep
    228: _CLOCK,
    229: _CLOCK,
    230: _CLOCK,
}
"""System call number -> all the conditions under which it is allowed. Only arguments that the kernel reads as 32 bit
stand here without ``null``: for them the high half has no meaning."""
