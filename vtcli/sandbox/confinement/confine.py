"""Entry into confinement: one function each for template, guard and worker, in this order, irreversible.

    state = prepare_template(tier)          # once, in the template, after its imports, single-threaded.
    prepare_fork(state); os.fork()          # in the template, for each episode.
    guard = enter_guard(state, limits)      # in that child, which returns as pid 1 of a new namespace at tier full.
    lock_worker(guard, limits, True, deliver)  # in a child of the guard, right before untrusted code.

Tier ``full`` has namespaces, a private root, a workspace with a quota, Landlock if available, and seccomp. Tier
``landlock`` has no namespaces. Tier ``seccomp`` does not restrict the reading of files. Tier ``none`` has only resource
limits.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vtcli.sandbox.confinement import bpf, landlock, namespaces, privileges, readable, rlimits, workspace
from vtcli.sandbox.confinement import entry as descent
from vtcli.sandbox.confinement import scratch as folders
from vtcli.sandbox.confinement.kernel import (
    MACHINE,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    SUPPORTED,
    ConfinementError,
    parent_death_signal,
    prctl,
    syscall,
)
from vtcli.sandbox.confinement.syscalls import ONLY_FOR_THE_HARNESS
from vtcli.sandbox.types import RunLimits, Tier


@dataclass(frozen=True, slots=True)
class TemplateState:
    """The confined template, from ``prepare_template``; guards inherit it."""

    tier: Tier
    uid: int  # of everything below the template
    readable: tuple[str, ...]
    landlock_abi: int
    scratch: str  # the folder of the workspaces, except at tier full
    kept: int  # capabilities that could not be given up, as bits (see privileges.give_up_root)
    proc: int | None  # the host's /proc, at tier full
    own_pids: int | None  # the template's pid namespace, at tier full
    inside: TemplateState | None = None  # what guards keep of it, at tier full


@dataclass(frozen=True, slots=True)
class GuardState:
    """An episode's place. ``workspace``: the only folder in which its code may write; ``proc``: /proc with the
    episode's processes only, to open paths in, not to list (tier full, where the kernel grants one). Where it is
    None the usual /proc shows them, at tier full nothing does."""

    template: TemplateState
    workspace: str
    proc: int | None


def prepare_template(tier: Tier, scratch: str | None = None) -> TemplateState:
    """Confines the template as far as its children share it. Call it once, after all imports, with one thread.

    Root is given up. At tier ``full`` the process enters new namespaces with a private root and **forks**. The call
    returns in the first process of a new pid namespace. The original process waits, holds no descriptor, and ends with
    this one. When either is killed the kernel kills everything below.

    ``scratch`` is the folder of the workspaces at the other tiers. It must exist, and its creator removes it. Default:
    a new folder, removed by the next start. Raises ``ConfinementError``, which names the layer, when a layer of the
    tier cannot be applied.
    """
    if tier != "none" and not SUPPORTED:
        reason = f"confinement is written for Linux on x86-64 and aarch64, not for {MACHINE}: only tier none is left"
        raise ConfinementError("seccomp", reason)
    paths = () if tier == "none" else readable.paths()
    abi = 0 if tier in ("none", "seccomp") else landlock.abi()
    if tier == "landlock" and abi == 0:
        raise ConfinementError("landlock", "this kernel has no Landlock, or a container's filter refuses it")
    if tier == "full":
        try:
            proc = descent.enter_namespaces(paths)
            # Kept open, because each fork of a guard must return to it before it asks for another one.
            own_pids = os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        except OSError as e:
            raise ConfinementError("namespaces", f"{e.strerror} {e.filename or ''}".strip()) from e
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        _live_in(namespaces.WORKSPACE)
        inside = TemplateState(tier, os.geteuid(), paths, abi, namespaces.WORKSPACE, 0, None, None)
        return replace(inside, proc=proc, own_pids=own_pids, inside=inside)
    scratch = scratch or folders.make()[0]  # held by the descriptor that stays open here and in all guards
    kept = _leave_root(tier, scratch)
    return TemplateState(tier, os.geteuid(), paths, abi, scratch, kept, None, None)


def _leave_root(tier: Tier, scratch: str) -> int:
    """Gives up root at the tiers without namespaces; returns the remaining capabilities, as bits."""
    if not SUPPORTED:
        return 0
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if tier == "none":
        return 0
    inherited, kept = parent_death_signal(), 0
    if os.geteuid() == 0:
        kept = privileges.give_up_root(readable.required(), scratch)
    else:
        privileges.drop_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_PDEATHSIG, inherited)  # a change of user clears it
    return kept


def prepare_fork(state: TemplateState) -> None:
    """Right before each fork of a guard: the child is the first process of a new pid namespace."""
    if state.own_pids is not None:
        syscall("setns", state.own_pids, namespaces.NEW_PIDS)  # in which the next child is
        namespaces.unshare(namespaces.NEW_PIDS)


def enter_guard(state: TemplateState, limits: RunLimits) -> GuardState:
    """Enters the guard's confinement in a freshly forked child of the template. The child gets its own empty workspace,
    which becomes the working directory. At tier ``full`` it also gets its own mounts, process ids and user namespace,
    without capabilities. The guard dies with the template.

    At tier ``full`` the guard is process 1 and must reap the children that it inherits (``waitpid(-1)``). As it ends,
    the kernel kills the rest of the episode. At the other tiers the template must call ``remove_workspace``.
    """
    if state.tier == "full":
        guard = _full_guard(state, limits)
    else:
        folder = workspace_of(state, os.getpid())
        Path(folder).mkdir(mode=0o700)
        guard = GuardState(state, folder, None)
    os.chdir(guard.workspace)
    _live_in(guard.workspace)
    if SUPPORTED:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(PR_SET_DUMPABLE, 0)
    return guard


def _live_in(workspace: str) -> None:
    """Sets the folder of home and temporary files; the imports in the template may have settled on a folder that is out
    of reach. At tier full it is the same one for all, and the template knows it."""
    if tempfile.tempdir != workspace:
        os.environ.update(HOME=workspace, TMPDIR=workspace)
        tempfile.tempdir = workspace


def _full_guard(state: TemplateState, limits: RunLimits) -> GuardState:
    if state.proc is None or state.own_pids is None or state.inside is None:
        raise ConfinementError("namespaces", "the template did not enter them")
    namespaces.unshare(namespaces.NEW_MOUNTS)
    proc = namespaces.own_proc()
    namespaces.quota_workspace(limits.workspace_mb, limits.workspace_files)
    uid, gid = os.geteuid(), os.getegid()
    namespaces.unshare(namespaces.NEW_USER)
    # Only its own number: user 0 does not exist inside.
    namespaces.write_maps(state.proc, "self", uid, gid)
    os.close(state.proc)
    os.close(state.own_pids)
    privileges.drop_capabilities()
    return GuardState(state.inside, namespaces.WORKSPACE, proc)


def workspace_of(state: TemplateState, guard: int) -> str:
    """The folder of the guard with that process id, at the tiers without a private mount."""
    return f"{state.scratch}/{guard}"


def remove_workspace(state: TemplateState, guard: int) -> None:
    """Removes the files of an episode; the template calls it after it waited for a guard. At tier ``full`` the
    kernel has removed them."""
    if state.tier != "full":
        workspace.remove(workspace_of(state, guard))


def lock_worker(guard: GuardState, limits: RunLimits, gate: bool, deliver: Callable[[int | None], None]) -> None:
    """Confines a freshly forked child of the guard with one thread, right before untrusted code. It sets session,
    limits, privileges, Landlock and the seccomp filter, irreversibly. The working directory is the workspace.

    ``deliver`` sends the listener for a ``ForkGate`` to the guard and closes it here; it gets None when nothing has to
    be asked. With ``gate`` forks are put to it, else they are refused; where the kernel cannot count the threads of
    this episode alone (all tiers but ``full``), threads are put to it too. When it has returned, sending descriptors is
    given up as well. The guard's and the template's descriptors must be closed here already. A run's CPU time is the
    guard's to watch: the process lives for many.

    OSError or ConfinementError when a layer of the tier cannot be applied: the process must exit then."""
    state = guard.template
    if os.getsid(0) != os.getpid():
        # A session of its own has no terminal, into which code could push characters.
        os.setsid()
    os.chdir(guard.workspace)
    alone = _counted_alone(state)
    rlimits.restrict(limits, processes=alone)
    if state.tier == "none":
        deliver(None)
        return
    privileges.drop_capabilities(state.kept)
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if state.landlock_abi:
        # Before seccomp, which forbids Landlock's own calls.
        landlock.restrict(state.readable, readable.DEVICES, (guard.workspace,), state.landlock_abi)
    deliver(bpf.load(_filter(state, gate)))
    # After ``deliver``, which needs to send a descriptor once; code must not be able to.
    bpf.load(bpf.denying(ONLY_FOR_THE_HARNESS))


def _counted_alone(state: TemplateState) -> bool:
    """The kernel's limit on processes counts those of this episode only; for user 0 it is not kept at all."""
    return state.tier == "full" and state.uid != 0


def _filter(state: TemplateState, gate: bool) -> bpf.FilterProgram:
    return bpf.program(forks=gate, count_threads=not _counted_alone(state), times=state.tier == "full")
