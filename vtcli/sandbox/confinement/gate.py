"""The gate: the guard decides, one by one, which forks and threads of the worker are made.

A fork cannot simply be forbidden, for a transaction needs one. The filter puts it to this listener
(seccomp_unotify(2)), and only the harness's own, which the guard expects, is let through. Flags arrive by value, so
nothing can be changed between the look and the call.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct

from vtcli.sandbox.confinement.kernel import proc_text
from vtcli.sandbox.confinement.syscalls import THREAD_FLAGS

RECEIVE, SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND
NOTIFICATION, RESPONSE = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
CONTINUE = 1
ANSWERS = 64  # at a time, so that threads which ask without end do not keep the guard from its clock


class ForkGate:
    """The guard's end of the listener that ``confine.lock_worker`` returned. The guard polls ``fileno()`` with its
    other descriptors and calls ``answer()`` when it is readable: until then the caller waits.

    ``refused``: how many forks and threads were refused so far. ``forks``: how many forks were let through.
    """

    def __init__(self, listener: int, proc: int | None, threads: int) -> None:
        """``proc``: a folder /proc that shows the worker (``GuardState.proc``), None for the usual one. ``threads``:
        the most that one process may have."""
        self._listener = listener
        self._proc = proc
        self._threads = threads
        self._expected: tuple[int, int] = (0, 0)
        self.refused = 0
        self.forks = 0

    def fileno(self) -> int:
        return self._listener

    def allow(self, process: int, forks: int = 1) -> None:
        """Lets the main thread of ``process`` (an id in the guard's namespace) fork so often. Replaces what was allowed
        before; ``forks`` 0 allows none."""
        self._expected = (process, forks)

    def answer(self) -> None:
        """Answers the calls that wait, at most ``ANSWERS``. Never blocks."""
        # Readiness is asked again each time: the ioctl would block once a waiting caller was killed.
        for _ in range(ANSWERS):
            if not self._ready():
                return
            buffer = bytearray(NOTIFICATION.size)
            try:
                fcntl.ioctl(self._listener, RECEIVE, buffer, True)
            except OSError as e:
                if e.errno in (errno.ENOENT, errno.EINTR):  # the caller was killed meanwhile
                    continue
                raise
            identity, caller, *_, flags = NOTIFICATION.unpack(buffer)[:7]
            self._decide(identity, caller, flags & 0xFFFFFFFF)

    def close(self) -> None:
        """Every further call fails with ENOSYS."""
        os.close(self._listener)

    def _ready(self) -> bool:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        return any(event & select.POLLIN for _, event in poll.poll(0))

    def _decide(self, identity: int, caller: int, flags: int) -> None:
        if flags in THREAD_FLAGS:
            fits = self._count(caller) < self._threads
            self._reply(identity, 0 if fits else errno.EAGAIN)
            self.refused += not fits
            return
        process, left = self._expected
        if caller == process and left > 0:
            if self._reply(identity, 0):  # a call that a signal interrupted comes again: only answers that arrive count
                self._expected = (process, left - 1)
                self.forks += 1
            return
        self._reply(identity, errno.EPERM)
        self.refused += 1

    def _reply(self, identity: int, code: int) -> bool:
        try:
            fcntl.ioctl(self._listener, SEND, RESPONSE.pack(identity, 0, -code, 0 if code else CONTINUE))
        except OSError as e:
            if e.errno == errno.ENOENT:
                return False
            raise
        return True

    def _count(self, thread: int) -> int:
        """Number of threads that the caller's process has; more than any limit when that cannot be seen."""
        found = proc_text(self._proc, f"{thread}/status").partition("\nThreads:")[2].split(maxsplit=1)
        return int(found[0]) if found else 1 << 30
