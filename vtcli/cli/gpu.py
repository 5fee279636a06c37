"""``vtcli doctor --gpu`` and ``--cpu``: the trials of ``vtcli.engines.trials``, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtcli.config.machine import gpus, installed
from vtcli.engines.trials.outcome import TrialResult

TRIALS = "vtcli.engines.trials"
"""The module that makes one trial, by its name."""
MODEL_LIMIT_S = 300.0


@dataclass(frozen=True)
class MachineCheck:
    """One trial, by its name in ``vtcli.engines.trials``."""

    name: str
    what: str  # for a line that says why it was not made
    limit_s: float
    on_cpu: bool = True
    model: str = ""  # shared: of policy and learner; step: of the learner step
    package: str = ""  # that must be installed


CHECKS = (
    MachineCheck("driver", "driver and CUDA", 60, on_cpu=False),
    MachineCheck("collectives", "NCCL all-reduce", 240),
    MachineCheck("matmul", "matrix product", 120),
    MachineCheck("attention", "attention against its reference", 180, on_cpu=False),
    MachineCheck("step", "learner step with the layers of a 7B model", 420, model="step"),
    MachineCheck("hf", "engine hf beside the learner", 420, model="shared"),
    MachineCheck("vllm", "vLLM in process: start, sleep, weight update, parity", 900, model="shared", package="vllm"),
    MachineCheck("turns", "vLLM and learner in turns: sleep level 1", 900, model="shared", package="vllm"),
    MachineCheck("ahead", "vLLM async scheduling", 900, on_cpu=False, model="shared", package="vllm"),
    MachineCheck(
        "vllm_server", "vLLM servers: start, sleep, weight update, parity", 900, model="shared", package="vllm"
    ),
    MachineCheck("elsewhere", "vLLM server at engine.urls: weights by each way", 900, model="shared", package="vllm"),
)


def examine(cpu: bool, model: Path | None, starts: Callable[[str], None]) -> Iterator[TrialResult]:
    """Every outcome, as it becomes known. ``model``: in place of a random one that policy and learner share."""
    if not cpu and not gpus():
        for check in CHECKS:
            yield TrialResult(
                check.what, "absent", "no CUDA device", "`vtcli doctor --cpu` tries it with the miniature"
            )
        return
    with tempfile.TemporaryDirectory(prefix="vtcli-doctor-") as above:
        models = {"shared": model, "step": None} if model is not None else {}
        for check in CHECKS:
            if cpu and not check.on_cpu:
                continue
            if check.package and not installed(check.package):
                advice = f"pip install 'vtcli[{check.package}{'-cpu' if cpu else ''}]'"
                yield TrialResult(check.what, "absent", f"{check.package} is not installed", advice)
                continue
            starts(check.what)
            folder = models.get(check.model) or Path(above) / (check.model or "none")
            if check.model and not folder.exists():
                made = _run([f"{TRIALS}.model", str(folder), *_sizes(check.model, cpu)], MODEL_LIMIT_S, cpu)
                if made.problem:
                    yield TrialResult(check.what, "broken", f"its model cannot be made: {made.problem}", made.by_hand)
                    continue
            ran = _run([TRIALS, check.name, str(folder), "cpu" if cpu else "cuda"], check.limit_s, cpu)
            yield from ran.outcomes
            if ran.problem:
                yield TrialResult(check.what, "broken", ran.problem, ran.by_hand)


@dataclass(frozen=True)
class _Ran:
    outcomes: Sequence[TrialResult]
    problem: str  # empty: it ended as it should
    by_hand: str


def _run(module: Sequence[str], limit_s: float, cpu: bool) -> _Ran:
    """A module in a process group of its own, which is ended with all that it started."""
    environ = {**os.environ, **({"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"} if cpu else {})}
    by_hand = f"by hand: python -m {' '.join(module[:2])} … says more"
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *module],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environ,
            start_new_session=True,
        )
        problem = ""
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            problem = f"no end within {limit_s:.0f} s"
            _kill(process.pid)
            out, _ = process.communicate()
        finally:
            _kill(process.pid)
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if not problem and process.returncode:
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        problem = f"{how}: {said[-1][:300] if said else 'nothing was said'}"
    found = [outcome for line in (out or "").splitlines() if (outcome := TrialResult.read(line)) is not None]
    if not problem and not found and module[0] == TRIALS:
        problem = "ended without a result"
    return _Ran(found, problem, by_hand)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _sizes(model: str, cpu: bool) -> list[str]:
    """Family and sizes of a model, as ``vtcli.engines.trials.model`` takes them."""
    from vtcli.config import compose
    from vtcli.engines.trials.model import LIKE_7B, shared

    tiny: Mapping[str, Any] = compose.load("plan", ["scale=tiny"]).values["model"]
    family, own = str(tiny["family"]), dict[str, Any](tiny["architecture"])
    sizes = {**own, **LIKE_7B} if model == "step" and not cpu else shared(family, own, cpu=cpu)
    return [family, json.dumps(sizes)]
