"""Landlock: which files a process may open, by path, without root or namespaces (Linux 5.13 and later).

Source: the kernel's ``Documentation/userspace-api/landlock.rst``. Rights that the running kernel does not know yet are
left out; what that costs is found by the probes, not read from the version.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from vtcli.sandbox.confinement.kernel import (
    ConfinementError,
    syscall,
)

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = 1, 2, 4, 8, 16, 32
MAKE_DIR, MAKE_REG = 1 << 7, 1 << 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""ABI -> all file rights that it knows; later ABIs know those of 5."""
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # the rights that a rule on a file may hold
TO_READ = READ_FILE | READ_DIR
TO_WORK = TO_READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
"""Rights in the workspace. Links, devices, sockets and named pipes are excluded, so that collectors of files never
meet one."""
NET_TCP, SCOPE_ABSTRACT_SOCKET_AND_SIGNAL = 3, 3
RULE_PATH_BENEATH, CREATE_VERSION = 1, 1


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi() -> int:
    """The Landlock ABI of the running kernel; 0 when it has none or hides it."""
    try:
        return syscall("landlock_create_ruleset", 0, 0, CREATE_VERSION)
    except OSError:
        return 0


def restrict(readable: Iterable[str], devices: Iterable[str], writable: Iterable[str], version: int) -> None:
    """Restricts the calling thread and its descendants to these paths and the paths below them: to read, to read and
    write, to work in. TCP, other domains' abstract sockets and signals are blocked too if ``version`` (ABI) supports
    it. no_new_privs must be set. Paths that do not exist are skipped."""
    if version < 1:
        raise ConfinementError("landlock", "this kernel has no Landlock, or a container's filter refuses it")
    handled = ALL_RIGHTS[min(version, 5)]
    # An older kernel refuses a longer structure unless the rest is zero, so each gets what it knows.
    sizes = {1: 8, 2: 8, 3: 8, 4: 16, 5: 16}
    attributes = _Ruleset(handled, NET_TCP, SCOPE_ABSTRACT_SOCKET_AND_SIGNAL)
    ruleset = syscall("landlock_create_ruleset", ctypes.byref(attributes), sizes.get(version, 24), 0)
    try:
        rights = ((readable, TO_READ), (devices, READ_FILE | WRITE_FILE), (writable, TO_WORK))
        for paths, wanted in rights:
            for path in paths:
                _allow(ruleset, path, wanted & handled)
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        # O_PATH: the rule needs the place, not a right to read it.
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            # The kernel refuses a rule on a file that names rights of folders.
            rights &= OF_FILES
        rule = _PathBeneath(rights, fd)
        syscall("landlock_add_rule", ruleset, RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(fd)
