"""The copy of itself that a process leaves before a run. Most are killed without having been needed, so a copy does
nothing until it is: what it touches would be copied for it, and the first thing that Python touches is half of Python.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Callable
from functools import partial

from vtcli.sandbox.confinement.kernel import LIBC, SUPPORTED
from vtcli.sandbox.processes import memory, unchanged
from vtcli.sandbox.protocol import frames as wire

WORD = wire.pack({"copy": True})
"""What a copy says first, in a message that tells the guard its process id."""
PEEK, NO_SIGNAL = int(socket.MSG_PEEK), int(socket.MSG_NOSIGNAL)

FORK = bytes.fromhex(
    "53 55 41 54 89 fb 48 89 f5 49 89 d4 ff d1"  # push rbx, rbp, r12; rbx = channel, rbp = word, r12 = length; fork()
    "85 c0 75 3c"  # in the parent, or if it failed, go to the end
    "89 df 48 89 ee 4c 89 e2 41 ba 00 40 00 00 45 31 c0 45 31 c9 b8 2c 00 00 00 0f 05"
    # sendto(channel, word, length, MSG_NOSIGNAL, 0, 0)
    "89 df 48 8d 74 24 f8 ba 01 00 00 00 41 ba 02 00 00 00 45 31 c0 45 31 c9 b8 2d 00 00 00 0f 05"
    # recvfrom(channel, rsp - 8, 1, MSG_PEEK, 0, 0)
    "31 c0 41 5c 5d 5b c3"  # return 0; end: pop r12, rbp, rbx; return
)
"""``int forked(channel, word, length, fork)`` for x86-64, to be called with Python's lock held."""
_CALL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)


class Place:
    """Where ``prepare`` has put it."""

    forked: Callable[[int, bytes, int, int | None], int] | None = None
    fork: int | None = None


def prepare() -> None:
    """In the template. Nothing on machines for which ``FORK`` is not. Raises ``OSError``."""
    if not SUPPORTED:
        return
    Place.forked, Place.fork = _CALL(unchanged.loaded(FORK)), ctypes.cast(LIBC.fork, ctypes.c_void_p).value


def fork(channel: int) -> int:
    """As ``memory.fork``. The child has said ``WORD`` over ``channel``, and returns when the other end has something
    for it, or is closed. Raises ``OSError``."""
    if Place.forked is not None and memory.alone():
        return memory.fork(partial(_forked, channel))
    pid = memory.fork()
    if pid == 0:
        LIBC.send(channel, WORD, ctypes.c_size_t(len(WORD)), NO_SIGNAL)
        LIBC.recv(channel, ctypes.byref(ctypes.c_char()), ctypes.c_size_t(1), PEEK)
    return pid


def _forked(channel: int) -> int:
    assert Place.forked is not None
    pid = Place.forked(channel, WORD, len(WORD), Place.fork)
    if pid < 0:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return pid
