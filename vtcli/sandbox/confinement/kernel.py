"""The kernel's system calls through ctypes, by name: every confinement layer stands on this, so it imports nothing
heavy."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import Any

from vtcli.sandbox.confinement.numbers import AARCH64, X86_64

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
    """Close every descriptor of the process but one."""
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
