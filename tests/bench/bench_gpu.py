"""The learner's step on this GPU: seconds, MFU and peak memory, each beside what ``vtcli plan`` computes.

python -m vtcli.engines.trials.model start qwen2_5_vl like_3b
python tests/bench/bench_gpu.py start           # a table; one to four minutes a line on an H100

Weights are random and so are the pictures; neither changes what a step costs. Each line is a process of its own, so
that its peak is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from vtcli.algo.optim import Backend, Optim
from vtcli.engines.hf import load_model
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.engines.learner.throughput import peak_memory
from vtcli.engines.probes import nothing, probing
from vtcli.engines.trials.device import data_sheet
from vtcli.engines.trials.learner import row
from vtcli.families.table import in_environment, open_family
from vtcli.plan import memory, steptime
from vtcli.plan.architecture import Architecture, from_folder
from vtcli.plan.constants import Constants
from vtcli.plan.hardware import Cluster
from vtcli.plan.job import Layout, Lengths, Workload, shape

STEPS = 3
IMAGE = (1008, 756)


@dataclass(frozen=True)
class Case:
    """Rows of one step, and the settings that decide its memory. All rows are equal."""

    rows: int
    tokens: int  # of a row
    images: int
    trained: int  # tokens of a row that the policy wrote
    micro: int  # tokens of a micro-batch
    offload: Literal["none", "optimizer"] = "optimizer"
    checkpointing: bool = True
    freeze_vision: bool = False


CASES = (
    Case(28, 4096, 1, 1024, 4096, offload="none", freeze_vision=True),
    Case(28, 4096, 1, 1024, 16384, offload="none", freeze_vision=True),
    Case(28, 4096, 1, 1024, 28672),
    Case(28, 4096, 1, 1024, 4096, checkpointing=False),
    Case(4, 28672, 16, 10240, 28672),  # the longest rows of scale=gpu, and its settings
)
SMALL = (Case(2, 2048, 1, 64, 4096, offload="none"),)
"""Without a GPU: that the program runs, no more."""


def main(folder: str) -> None:
    cuda = torch.cuda.is_available()
    sys.stdout.write(f"{torch.cuda.get_device_name() if cuda else 'CPU'}, torch {torch.__version__}, {folder}\n\n")
    head = "rows × tokens, images | micro-batch | offload | checkpointing | vision | s a step | plan's | tokens/s"
    sys.stdout.write(f"| {head} | MFU | peak GiB | plan's |\n|---|--:|---|---|---|--:|--:|--:|--:|--:|--:|\n")
    sys.stdout.flush()
    for case in CASES if cuda else SMALL:
        argv = [sys.executable, "-W", "ignore", __file__, folder, "--case", json.dumps(asdict(case))]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
        sys.stdout.write((lines or [f"| {case} | exit code {done.returncode} |"])[0] + "\n")
        sys.stdout.flush()


def measure(folder: Path, case: Case) -> None:
    """One line of the table."""
    cuda = torch.cuda.is_available()
    family = open_family(folder, in_environment())
    backend = Backend(
        zero_stage=2 if cuda else 0,
        dtype="bfloat16" if cuda else "float32",
        batch_tokens=case.micro,
        offload=case.offload,
        activation_checkpointing=case.checkpointing,
    )
    optim = Optim(freeze_vision=case.freeze_vision)
    start = time.perf_counter()
    model, view = load_model(family, backend.dtype), probing(nothing)
    _say(f"model loaded in {time.perf_counter() - start:.1f} s")
    learner = DeepSpeedLearner(model, family, view, optim=optim, backend=backend, total_steps=10)
    _say(f"learner ready after {time.perf_counter() - start:.1f} s")
    rows = [row(family, nth, (case.tokens, case.trained), IMAGE, case.images) for nth in range(case.rows)]
    times: list[float] = []
    if cuda:
        torch.cuda.empty_cache()  # what the start has left is not the step's
    peak_memory("start")
    for _ in range(STEPS):
        begin = time.perf_counter()
        found = learner.step(rows)
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        _say(f"a step in {times[-1]:.2f} s")
        if not found["updated"]:
            raise SystemExit("no update was made: the gradients were not finite")
    peak = peak_memory("learn").get("memory/learn_gib", float("nan"))
    _print(from_folder(folder), case, backend, min(times), peak)


def _say(what: str) -> None:
    sys.stderr.write(f"{what}\n")


def _print(arch: Architecture, case: Case, backend: Backend, seconds: float, peak: float) -> None:
    patches = arch.patches(*IMAGE, 1, 2**31)
    pixels = patches * arch.vision.patch**2
    lengths = Lengths(
        text_tokens=case.tokens - case.trained - case.images * arch.tokens(patches),
        image=IMAGE,
        images=case.images,
        turns=0,
        turn_tokens=case.trained,
    )
    work = Workload(
        prompts=case.rows,
        learnt=case.rows,
        group_size=1,
        steps=1,
        max_tokens=case.tokens,
        max_turn_tokens=case.trained,
        max_images=case.images,
        max_pixels=pixels,
        freeze_vision=case.freeze_vision,
        lengths=lengths,
    )
    layout = Layout(
        zero_stage=backend.zero_stage,
        dtype=backend.dtype,
        batch_tokens=case.micro,
        activation_checkpointing=case.checkpointing,
        offload=backend.offload,
        elsewhere=1,  # no engine beside it
    )
    cells: list[Any] = [f"{case.rows} × {case.tokens}, {case.images}", case.micro, case.offload]
    cells += ["on" if case.checkpointing else "off", "frozen" if case.freeze_vision else "trained", f"{seconds:.2f}"]
    rate = case.rows * case.tokens / seconds
    gpu = data_sheet() if torch.cuda.is_available() else None
    if gpu is None:
        cells += ["", f"{rate:,.0f}", "", "", ""]
    else:
        cluster, constants = Cluster(1, 1, gpu), Constants()
        mean = shape(arch, work)
        inputs = steptime.StepInputs(arch, work, layout, cluster, mean, constants)
        flops = 3 * steptime.forward_flops(inputs) * case.rows  # without what is computed twice
        planned = memory.memory(arch, work, layout, cluster, mean, constants)
        cells += [f"{steptime.learner(inputs):.2f}", f"{rate:,.0f}", f"{flops / seconds / gpu.bf16 / 1e12:.0%}"]
        cells += [f"{peak:.1f}", f"{planned.learning / memory.GIB:.1f}"]
    sys.stdout.write("| " + " | ".join(map(str, cells)) + " |\n")


if __name__ == "__main__":
    if sys.argv[2:3] == ["--case"]:
        measure(Path(sys.argv[1]), Case(**json.loads(sys.argv[3])))
    else:
        main(sys.argv[1])
