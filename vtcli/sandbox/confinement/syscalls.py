"""System calls that untrusted code may make, by name; all others fail with EPERM.

The list holds the calls that numpy, PIL, OpenCV, matplotlib, scipy, sympy, PyAV, threads and asyncio were seen to use.
Some calls are left out on purpose, though harmless alone:

- File locks and leases, keyrings, inotify and memfd_create. They are channels between episodes, or memory that no limit
  counts (IOI isolate 2.4 closed the same).
- sendmsg. The kernel counts descriptors in transit per user, so one episode could use up the share of all others.
- All of io_uring, splice, and every call that takes the id of another process.

A name that a machine does not have is skipped: aarch64 has ``openat`` and no ``open``.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass

from vtcli.sandbox.confinement.kernel import NUMBERS

_FILES = """
    read write close stat fstat lstat lseek pread64 pwrite64 readv writev access pipe dup dup2 sendfile fsync fdatasync
    ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat unlink readlink umask getdents64 mkdirat
    newfstatat unlinkat renameat readlinkat faccessat fallocate dup3 pipe2 preadv pwritev copy_file_range
    statx close_range faccessat2
"""
_MEMORY = "mmap mprotect munmap brk mremap msync madvise membarrier"
_WAITING = """
    poll select sched_yield pause nanosleep epoll_create futex restart_syscall epoll_wait epoll_ctl pselect6 ppoll
    epoll_pwait timerfd_create eventfd timerfd_settime timerfd_gettime eventfd2 epoll_create1 epoll_pwait2 futex_waitv
"""
_PROCESS = """
    rt_sigaction rt_sigprocmask rt_sigreturn getitimer alarm setitimer getpid exit wait4 uname getuid getgid geteuid
    getegid getppid getpgrp getgroups getresuid getresgid rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack
    sched_get_priority_max sched_get_priority_min arch_prctl gettid set_tid_address exit_group waitid set_robust_list
    rseq
"""
_FACTS = "gettimeofday getrlimit getrusage times time getcpu getrandom"
_CHANNEL = "recvfrom recvmsg shutdown getsockname getpeername getsockopt"
"""System calls on sockets that exist already: the harness's own, and pairs made by asyncio."""


def numbers(names: str) -> frozenset[int]:
    """The numbers of those of the names that this machine has."""
    return frozenset(NUMBERS[name] for name in names.split() if name in NUMBERS)


ALLOWED = numbers(" ".join((_FILES, _MEMORY, _WAITING, _PROCESS, _FACTS, _CHANNEL)))
TIMES = numbers("utime utimes futimesat utimensat")
"""Landlock does not cover them, so they are allowed only where every file outside the workspace is mounted read-only.
Not answered as done: pathlib's touch would take a missing file for touched."""

_ANSWERS = {
    # Landlock does not cover modes, and a folder that its owner cannot enter would be in the guard's way; but
    # shutil.copy ends with a chmod, and a copy that worked must not look like a failure: answered as done, not done.
    "chmod fchmod fchmodat fchmodat2": 0,
    # Advice that takes a file out of the cache, or brings it in, is a message to another episode: answered as done.
    "fadvise64": 0,
    # shutil.copy2 takes this for "none here"
    "getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr": errno.ENOTSUP,
    "clone3 openat2": errno.ENOSYS,  # flags behind a pointer; there are clone and openat
    "statfs fstatfs": errno.ENOSYS,  # how full the host's disk is, which others fill too
    "sysinfo": errno.ENOSYS,  # the machine's load, memory and number of processes, which others change
}
ANSWERED: Mapping[int, int] = {n: code for names, code in _ANSWERS.items() for n in numbers(names)}
"""System call number -> errno that it is answered with, without being made."""

SIGCHLD = 17
_CHILD_CLEARTID, _CHILD_SETTID = 0x00200000, 0x01000000
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

_CONDITIONS: dict[str, tuple[ByArgument, ...]] = {
    # not O_RDONLY with O_TRUNC, which empties a file that Landlock before ABI 3 lets one read
    "open": (ByArgument(1, (_O_TRUNC,), _ACCESS_MODE | _O_TRUNC, forbidden=True),),
    "openat": (ByArgument(2, (_O_TRUNC,), _ACCESS_MODE | _O_TRUNC, forbidden=True),),
    # TCGETS, TIOCGWINSZ (isatty), FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    "ioctl": (ByArgument(1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451), otherwise=errno.ENOTTY),),
    # F_DUPFD, GETFD, SETFD, GETFL, SETFL, DUPFD_CLOEXEC, GETPIPE_SZ, GET_SEALS; no locks, leases, signal owners
    "fcntl": (ByArgument(1, (0, 1, 2, 3, 4, 1030, 1032, 1034)),),
    # GET_DUMPABLE, SET_NAME, GET_NAME, CAPBSET_READ, GET_NO_NEW_PRIVS
    "prctl": (ByArgument(0, (3, 15, 16, 23, 39)),),
    # without an address, which is send
    "sendto": (ByArgument(4, null=True),),
    # AF_UNIX; SOCK_STREAM or SOCK_SEQPACKET: a datagram socket could send to any path
    "socketpair": (ByArgument(0, (1,)), ByArgument(1, (1, 5), 0xF)),
    # no flags: RWF_NOWAIT tells which parts of a file are in the cache, so what another episode has read
    **dict.fromkeys(("preadv2", "pwritev2"), (ByArgument(5, (0,), otherwise=errno.EOPNOTSUPP),)),
    "prlimit64": _ITSELF,  # a hard limit cannot be raised without a capability
    **dict.fromkeys(("getpgid", "getsid", "sched_getparam", "sched_getscheduler", "get_robust_list"), _ITSELF),
    "getpriority": (ByArgument(0, (0,)), ByArgument(1, (0,))),  # of a process, by default of oneself
    # glibc asks for a thread by its number when it looks for its stack, and does without on ENOSYS
    "sched_getaffinity": (ByArgument(0, (0,), otherwise=errno.ENOSYS),),
    # RENAME_NOREPLACE, RENAME_EXCHANGE; RENAME_WHITEOUT would make a device
    "renameat2": (ByArgument(4, (0,), 0xFFFFFFFC, otherwise=errno.EINVAL),),
    **dict.fromkeys(("clock_gettime", "clock_getres", "clock_nanosleep"), _CLOCK),
}
CONDITIONS = {NUMBERS[name]: rules for name, rules in _CONDITIONS.items() if name in NUMBERS}
"""System call number -> all the conditions under which it is allowed. Only arguments that the kernel reads as 32 bit
stand here without ``null``: for them the high half has no meaning."""

ONLY_FOR_THE_HARNESS = tuple(sorted(numbers("sendmsg seccomp")))
"""System calls that a worker needs until it has handed over the gate's listener. It then gives them up for good."""
