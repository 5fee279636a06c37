"""Starts the ranks of a stage on this machine, or submits it to Slurm, as the configuration's ``launch`` sets.

torch's elastic agent starts ranks in this process, without restarts: the same command resumes a failed run.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from vtcli.errors import ConfigError

ERRORS = "VTCLI_RANK_ERRORS"
"""Names the folder in which ranks leave their errors, so that this module shows only the first one."""


@dataclass(frozen=True)
class Launch:
    """The section ``launch``."""

    how: Literal["local", "none", "slurm"] = "local"
    ranks: int | None = None  # on each machine; None: one per GPU

    def __post_init__(self) -> None:
        if self.ranks is not None and self.ranks < 1:
            raise ConfigError(f"launch.ranks={self.ranks}: expected at least 1, or null for one a GPU")


@dataclass(frozen=True)
class RankFailure:
    """The first error of several ranks."""

    rank: int
    message: str
    code: int  # exit code of that rank: 2 for a user's mistake


def launched(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns True in a rank of torchrun, srun or this module, which must not start ranks itself."""
    return "RANK" in environ


def leave_error(message: str, code: int) -> bool:
    """Leaves a rank's error for the process that started it. Returns False if none waits for it."""
    folder = os.environ.get(ERRORS)
    if folder is None:
        return False
    text = json.dumps({"message": message, "code": code})
    Path(folder, f"{time.time_ns()}-{os.environ.get('RANK', '0')}").write_text(text)
    return True


def run(ranks: int, argv: Sequence[str]) -> RankFailure | None:
    """Runs ``vtcli ARGV`` in ``ranks`` processes of this machine until they end.

    Ctrl-C and SIGTERM reach every rank. Ranks end with this process, even if it is killed: they wait for the end of
    their standard input, and only this process holds its other end.

    Returns the first error if a rank failed.

    Raises:
        SystemExit: a signal ended this process and its ranks: 130 for Ctrl-C, else 143.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.ERROR)  # hides the agent's own report of a failure, which is longer than ours
    # Without it every rank would start a thread for each core. A user's value stays.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    # Standard input becomes a pipe that is never written to: it ends for the ranks when this process dies.
    reading, writing = os.pipe()
    before = os.dup(0)
    os.dup2(reading, 0)
    os.close(reading)
    with tempfile.TemporaryDirectory(prefix="vtcli-ranks-") as folder:
        os.environ[ERRORS] = folder
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=f"vtcli-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",  # any free port
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=str(Path(folder, "logs"))),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "vtcli.cli.child", *argv)
        except SignalException as end:
            raise SystemExit(130 if end.sigval == signal.SIGINT else 143) from None
        except ChildFailedError as failure:
            return _first_error(Path(folder), {rank: each.exitcode for rank, each in failure.failures.items()})
        finally:
            logging.disable(logging.NOTSET)
            os.environ.pop(ERRORS)
            os.dup2(before, 0)
            os.close(before)
            os.close(writing)
    return None


def _first_error(folder: Path, codes: Mapping[int, int]) -> RankFailure:
    """Returns the cause of a failure, from errors that ranks left in ``folder`` and the exit codes of failed ranks.

    A rank that a signal killed leaves no error, and the others then report only that it is gone. SIGTERM is no cause,
    because the agent itself ends ranks with it.
    """
    killed = {rank: signal.Signals(-code) for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM}
    found = sorted(path for path in folder.iterdir() if path.is_file())
    # File names begin with the time, so the first in order is the first error.
    if found and not killed:
        error = json.loads(found[0].read_text())
        return RankFailure(int(found[0].name.rpartition("-")[2]), str(error["message"]), int(error["code"]))
    if killed:
        rank, number = next(iter(killed.items()))
        memory = "; the machine's memory may have run out, which `dmesg` shows" if number == signal.SIGKILL else ""
        how = f"was ended by {number.name}{memory}"
    else:
        rank, code = next(iter(codes.items()))
        how = f"ended with exit code {code}"
    return RankFailure(rank, f"rank {rank} {how}. The same command continues from the last checkpoint.", 1)


def submit(stage: str, argv: Sequence[str]) -> str:
    """Submits ``vtcli STAGE ARGV`` as a Slurm job and returns its number.

    Raises:
        ConfigError: this machine has no sbatch, or sbatch refuses the job.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError("launch=slurm: there is no sbatch on this machine. Use a login node, or launch=local")
    script = files("stages") / "slurm" / f"{stage}.sbatch"
    done = subprocess.run(["sbatch", "--parsable", str(script), *argv], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigError(f"launch=slurm: sbatch refused the job: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]  # NUMBER;CLUSTER on a federation
