"""Reads the place of an ``srun`` task in its job into the variables that torch reads, and the job's restarts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping

from vtcli.errors import ConfigError

FIRST_PORT, PORTS = 20_000, 12_000
"""Ports of rendezvous, below the range that kernels assign from (from 32768)."""

REQUEUED_WAIT_S = 120.0
"""Seconds that a requeued job waits for its own lock. On network file systems a dead node holds it until its lease
ends, about 90 s later."""


def adopt_ranks(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in a task of an ``srun`` step of
    several tasks. LOCAL_RANK names a device. VTCLI_NODE_RANK differs between a node's tasks, even if each sees one GPU.

    Leaves the variables of a launcher alone (torchrun, deepspeed, also one in each task), and a MASTER_ADDR or
    MASTER_PORT of the user. A batch script's environment names no step, so one process in a job of many tasks is alone.

    Raises:
        ConfigError: the step lacks a variable.
    """
    if "RANK" in environ or int(environ.get("SLURM_STEP_NUM_TASKS") or 1) < 2:
        return
    wanted = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_STEP_ID")
    wanted += ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
    if missing := [name for name in wanted if not environ.get(name)]:
        raise ConfigError(
            f"this is one of {environ['SLURM_STEP_NUM_TASKS']} tasks of a Slurm step (SLURM_STEP_NUM_TASKS), but "
            f"{', '.join(missing)} is not set. Start it with srun, without --export=NONE, or with torchrun."
        )
    given = {name: environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if environ.get(name)}
    found = {
        "RANK": environ["SLURM_PROCID"],
        "LOCAL_RANK": _device(environ),
        "LOCAL_WORLD_SIZE": str(tasks_of_nodes(environ["SLURM_STEP_TASKS_PER_NODE"])[int(environ["SLURM_NODEID"])]),
        "VTCLI_NODE_RANK": environ["SLURM_LOCALID"],
        "WORLD_SIZE": environ["SLURM_STEP_NUM_TASKS"],
        "MASTER_ADDR": _address(environ),
        "MASTER_PORT": str(_port(int(environ["SLURM_JOB_ID"]), int(environ["SLURM_STEP_ID"]))),
    }
    environ.update({**found, **given})


def require_one_process(stage: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raises ``ConfigError`` if several processes were started, which would all make the same artifact."""
    world = int(environ.get("WORLD_SIZE") or 1)
    if world > 1:
        raise ConfigError(
            f"vtcli {stage} is one process, and {world} were started (WORLD_SIZE). Start one, as with "
            f"`srun --ntasks=1`; sft and rl run in several, synth and eval in shards (eval.shard=1/4)."
        )


def was_requeued(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns True in a later attempt of the same job."""
    return int(environ.get("SLURM_RESTART_COUNT") or 0) > 0


def first_host(nodes: str) -> str:
    """Returns the first host of a list as Slurm writes it; the first task runs there.

    >>> first_host("gpu[03-05,9],login1"), first_host("rack1-[2-3]n[01-04]")
    ('gpu03', 'rack1-2n01')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[(\d++)[^\]]*+\]", r"\1", first.group() if first else nodes)


def tasks_of_nodes(listed: str) -> list[int]:
    """Returns the number of tasks of each node of a step, as Slurm writes them.

    >>> tasks_of_nodes("8(x3),4")
    [8, 8, 8, 4]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", listed)
    return [int(tasks) for tasks, times in found for _ in range(int(times or 1))]


def _device(environ: Mapping[str, str]) -> str:
    """Returns the task's place on its node, or 0 if it sees only one GPU (--gpus-per-task=1)."""
    shown = environ.get("CUDA_VISIBLE_DEVICES", "")
    return "0" if shown and "," not in shown else environ["SLURM_LOCALID"]


def _address(environ: Mapping[str, str]) -> str:
    """Returns the rendezvous host. A step on one node needs no name that resolves."""
    one = environ.get("SLURM_STEP_NUM_NODES") == "1"
    return "127.0.0.1" if one else first_host(environ["SLURM_STEP_NODELIST"])


def _port(job: int, step: int) -> int:
    """Returns one port for all tasks of a step; other steps and most other jobs on the node get another."""
    return FIRST_PORT + (31 * job + step) % PORTS
