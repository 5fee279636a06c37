"""A process that must not outlive another: it ends when that other one is gone, and its process group with it.

The kernel tells, through a file descriptor of the other process, so that nothing is asked again and again and no reused
process id deceives.
"""

from __future__ import annotations

import os
import select
import signal
import threading

OWNER = "VTCLI_OWNER"
"""The environment variable with the process id of the owner that must live."""
GROUP = "VTCLI_OWN_GROUP"
"""The process group that is ended as a whole; a process in another one ends alone."""


def watch() -> None:
    """Ends as soon as ``$VTCLI_OWNER`` has ended; without the variable, nothing."""
    if not (owner := os.environ.get(OWNER)):
        return
    try:
        handle = os.pidfd_open(int(owner))
    except ProcessLookupError:
        _end()
        return
    threading.Thread(target=_wait, args=(handle,), name="owner", daemon=True).start()


def own() -> None:
    """Marks this process as the owner of the processes that it starts, and of its group if it leads one."""
    os.environ[OWNER] = str(os.getpid())
    if os.getpgid(0) == os.getpid():
        os.environ[GROUP] = str(os.getpid())


def _wait(handle: int) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()
    _end()


def _end() -> None:
    group = os.getpgid(0)
    if os.environ.get(GROUP) == str(group):
        os.killpg(group, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
