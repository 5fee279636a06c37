"""Users and capabilities: root is given up for a user that owns nothing, capabilities for good."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from vtcli.sandbox.confinement.kernel import (
    PR_CAP_AMBIENT,
    PR_CAPBSET_DROP,
    PR_SET_DUMPABLE,
    PR_SET_KEEPCAPS,
    PR_SET_SECUREBITS,
    prctl,
    syscall,
)

CAP_DAC_READ_SEARCH, CAP_SETPCAP, LAST_CAP = 2, 8, 40
SECURE = 0b11101111  # no root role, no set-uid fix-up, capabilities neither kept nor made ambient: each locked
VERSION_3 = 0x20080522
CANDIDATES = (64_901, 65_534)
"""Users that own nothing. The first one is outside the ranges that distributions give out. The second, the kernel's
overflow user, serves containers that do not map the first."""


def capabilities() -> int:
    """The effective capabilities of this thread, as bits."""
    return _capget()[0]


def keep_capabilities(bits: int) -> None:
    """Only ``bits`` stay permitted and effective; none is inheritable."""
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)  # effective, permitted, inheritable, twice
    syscall("capset", ctypes.byref(header), ctypes.byref(data))


def _capget() -> tuple[int, int]:
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    syscall("capget", ctypes.byref(header), ctypes.byref(data))
    return data[0] | data[3] << 32, data[1] | data[4] << 32


def drop_capabilities(keep: int = 0) -> None:
    """None left but ``keep``, none to be had again: bounding set, ambient set, and the special role of user 0 are
    gone."""
    if capabilities() >> CAP_SETPCAP & 1:
        for capability in range(LAST_CAP + 1):
            try:
                prctl(PR_CAPBSET_DROP, capability)
            except OSError:
                break  # the kernel knows fewer
        prctl(PR_SET_SECUREBITS, SECURE)
    prctl(PR_CAP_AMBIENT, 4)  # clear all
    keep_capabilities(keep)


def become(uid: int) -> None:
    """User and group ``uid``, no other groups; capabilities stay as they are in a user namespace without user 0, and go
    otherwise. OSError when the user cannot be taken."""
    syscall("setresgid", uid, uid, uid)
    syscall("setresuid", uid, uid, uid)
    prctl(PR_SET_DUMPABLE, 1)  # the change took it away; without it /proc/self would be root's


def give_up_root(needed: Iterable[str], owned: str) -> int:
    """Changes from root to the first user of ``CANDIDATES`` that is available, which gets the folder ``owned``.

    Returns the remaining capabilities, as bits. They are empty if that user can reach all paths of ``needed``.
    Otherwise, as for a Python below /root, CAP_DAC_READ_SEARCH remains, and Landlock alone restricts reading. If no
    other user is available (no CAP_SETUID), the process stays user 0, without capabilities.
    """
    keep = 0 if all(_reachable_by_all(p) for p in needed) else 1 << CAP_DAC_READ_SEARCH
    prctl(PR_SET_KEEPCAPS, 1)
    for candidate in CANDIDATES:
        try:
            os.setgroups([])
            os.chown(owned, candidate, candidate)
            become(candidate)
        except OSError:
            continue
        keep &= capabilities_permitted()
        drop_capabilities(keep)
        return keep
    os.chown(owned, os.geteuid(), os.getegid())
    drop_capabilities()
    return 0


def capabilities_permitted() -> int:
    return _capget()[1]


def _reachable_by_all(path: str) -> bool:
    real = Path(path).resolve()
    return all(p.stat().st_mode & 0o001 for p in (real, *real.parents)) and bool(real.stat().st_mode & 0o004)
