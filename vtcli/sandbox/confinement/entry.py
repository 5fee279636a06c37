"""The way from the host's namespaces into new ones: user maps, the fork into new process ids, the private root.

Root first copies the mounts that the private root will show, because root can reach an interpreter below /root. Root is
given up on the way into the user namespace, in which user 0 does not exist. An ordinary user enters the user namespace
first, and has the capabilities for mounting there.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence

from vtcli.sandbox.confinement import namespaces, privileges, readable
from vtcli.sandbox.confinement.kernel import PR_SET_PDEATHSIG, ConfinementError, close_all, parent_death_signal, prctl

CAP_SYS_ADMIN = 21
HOST_NAME = "sandbox"
ALL = (
    namespaces.NEW_USER
    | namespaces.NEW_MOUNTS
    | namespaces.NEW_NET
    | namespaces.NEW_IPC
    | namespaces.NEW_UTS
    | namespaces.NEW_PIDS
)


def enter_namespaces(paths: Sequence[str]) -> int:
    """Puts the calling process, which must have one thread, into new namespaces of all kinds with a private root of
    ``paths``; what returns is its child (see ``fork_into_new_pids``). Returns /proc of the host, open: keep it from
    untrusted code. OSError or ConfinementError when a step is refused."""
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    required = readable.required()
    if os.geteuid() == 0 and privileges.capabilities() >> CAP_SYS_ADMIN & 1:
        trees = namespaces.detached(paths, required, readable.DEVICES)
        _unshare_as_root(proc)
    else:
        uid, gid = os.geteuid(), os.getegid()
        namespaces.unshare(ALL)
        namespaces.write_maps(proc, "self", uid, gid)
        trees = namespaces.detached(paths, required, readable.DEVICES)
    socket.sethostname(HOST_NAME)
    fork_into_new_pids()
    namespaces.private_root(trees, required)
    return proc


def _unshare_as_root(proc: int) -> None:
    os.setgroups([])
    began, begin = os.pipe()
    mapper = os.fork()
    if mapper == 0:
        _map_parent(proc, began, begin)
    os.close(began)
    try:
        namespaces.unshare(ALL)
    finally:
        os.close(begin)  # the mapper sees the end of the pipe, and whether there is something to map
        chosen = os.waitstatus_to_exitcode(os.waitpid(mapper, 0)[1])
    if not 0 <= chosen < len(privileges.CANDIDATES):
        raise ConfinementError("user namespace", "no user without rights could be mapped into it")
    privileges.become(privileges.CANDIDATES[chosen])


def _map_parent(proc: int, began: int, begin: int) -> None:
    """Writes the parent's maps, from a child that stayed in the old user namespace. It waits, writes, and exits with
    the index of the user that worked."""
    code = 255
    try:
        os.close(begin)
        os.read(began, 1)
        for index, uid in enumerate(privileges.CANDIDATES):
            try:
                namespaces.write_maps(proc, str(os.getppid()), uid, uid)
            except OSError:
                continue
            code = index
            break
    finally:
        os._exit(code)


def fork_into_new_pids() -> None:
    """Returns as the first process of the pid namespace that was unshared before. The process that called stays
    outside, holds nothing, and ends as this one ends; if it is killed, this one is killed."""
    inherited = parent_death_signal()
    alive, held = os.pipe()
    child = os.fork()
    if child:
        prctl(PR_SET_PDEATHSIG, inherited)
        _wait_outside(child, held)
    os.close(held)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.set_blocking(alive, False)
    try:
        if os.read(alive, 1) == b"":
            os._exit(1)  # the process outside died before the signal was armed
    except BlockingIOError:
        pass
    finally:
        os.close(alive)


def _wait_outside(child: int, held: int) -> None:
    try:
        close_all(keep=held)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
    except BaseException:
        os._exit(1)
    os._exit(code if code >= 0 else 1)
