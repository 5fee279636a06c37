"""The kernel, called by number through ctypes: every confinement layer stands on this, so it imports nothing heavy."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long

MACHINE = platform.machine()
SUPPORTED = os.uname().sysname == "Linux" and MACHINE == "x86_64"
"""The seccomp list is written in x86-64 system call numbers; elsewhere only tier ``none`` exists, and says so."""

SYS_SETRESUID, SYS_SETRESGID, SYS_CAPSET, SYS_CAPGET, SYS_PRCTL = 117, 119, 126, 125, 157
SYS_PIVOT_ROOT, SYS_MOUNT, SYS_UMOUNT2, SYS_UNSHARE, SYS_SETNS = 155, 165, 166, 272, 308
SYS_SECCOMP, SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT, SYS_CLOSE_RANGE = 317, 430, 431, 432, 436
SYS_OPEN_TREE, SYS_MOVE_MOUNT = 428, 429
SYS_MOUNT_SETATTR, SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 442, 444, 445, 446

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_CAPBSET_DROP = (
    1,
    2,
    4,
    8,
    22,
    24,
)
PR_SET_SECUREBITS, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 28, 36, 38, 47


class ConfinementError(Exception):
    """A layer of the sandbox could not be put on. ``layer``: which; ``reason``: what was tried and what came back."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"{layer}: {reason}")
        self.layer = layer
        self.reason = reason


def syscall(number: int, *arguments: Any) -> int:
    """One system call; integers are passed as 64 bit. OSError with its errno on failure."""
    passed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = LIBC.syscall(ctypes.c_long(number), *passed)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def prctl(option: int, *arguments: int) -> int:
    """``prctl(2)``, the arguments that are left out being 0, as the kernel demands."""
    return syscall(SYS_PRCTL, option, *(arguments + (0,) * (4 - len(arguments))))


def parent_death_signal() -> int:
    """The signal that this process gets when its parent dies; 0: none."""
    number = ctypes.c_int()
    syscall(SYS_PRCTL, PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    return number.value


def close_all(keep: int | None = None) -> None:
    """Close every descriptor of the process but one."""
    last = 0xFFFFFFFF
    spans = [(0, last)] if keep is None else [(0, keep - 1), (keep + 1, last)]
    for first, end in spans:
        if first <= end:
            syscall(SYS_CLOSE_RANGE, first, end, 0)
