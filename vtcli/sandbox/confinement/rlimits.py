"""The limits that every kernel keeps by itself: address space, file size, open files, CPU, processes."""

from __future__ import annotations

import resource

from vtcli.sandbox.types import RunLimits

TRUSTED_PROCESSES = 4
"""Trusted processes of an episode, counted with its threads: guard, head, its copy, and a process that is being
reaped."""


RUNS = 100
"""Number of runs whose CPU time a process may use. A process serves many runs, and the guard watches the CPU time of
each. The limit ends a process whose guard and template were killed."""


def restrict(limits: RunLimits, processes: bool) -> None:
    """Soft and hard limits of the calling process and all that it forks; they cannot be raised again without privilege.

    ``processes``: limit processes and threads together; only where the episode has a user namespace to itself, for
    elsewhere the kernel counts all processes of the user, other episodes' included."""
    megabyte = 2**20
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: limits.memory_mb * megabyte,
        resource.RLIMIT_FSIZE: max(limits.file_mb * megabyte, limits.output_bytes),
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    if processes:
        wanted[resource.RLIMIT_NPROC] = limits.threads + TRUSTED_PROCESSES
    for which, most in wanted.items():
        _lower(which, most, most)
    seconds = max(1, round(limits.cpu_s * RUNS))
    _lower(resource.RLIMIT_CPU, seconds, seconds + 1)  # SIGXCPU, then SIGKILL


def _lower(which: int, soft: int, hard: int) -> None:
    """Sets both, but never above the hard limit in force."""
    now = resource.getrlimit(which)[1]
    if now != resource.RLIM_INFINITY:
        soft, hard = min(soft, now), min(hard, now)
    resource.setrlimit(which, (soft, hard))
