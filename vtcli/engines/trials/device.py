"""Driver, collectives and matrix products: what the GPU libraries need of the machine."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.cuda import nccl
from torch.multiprocessing.spawn import spawn

from vtcli.config import machine
from vtcli.engines.trials.outcome import Trial, TrialResult
from vtcli.plan.hardware import Gpu, of_device

RANKS_ON_CPU = 2
LIMIT = timedelta(seconds=60)


def data_sheet() -> Gpu | None:
    """The entry of this machine's GPU in the planner's table."""
    return of_device(torch.cuda.get_device_name())


def driver(trial: Trial) -> Iterator[TrialResult]:
    """The driver is there and new enough for torch's CUDA."""
    program = shutil.which("nvidia-smi")
    if program is None:
        yield TrialResult("driver", "absent", "no nvidia-smi", "install NVIDIA's driver, 580 or newer")
        return
    query = [program, "--query-gpu=driver_version,name", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    lines = [line.split(", ") for line in done.stdout.splitlines() if ", " in line]
    if done.returncode or not lines:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing"]
        yield TrialResult(
            "driver", "broken", f"nvidia-smi says: {said[0][:150]}", "load the driver, or restart the machine"
        )
        return
    version, name = lines[0][0], lines[0][1]
    cuda = torch.version.cuda
    if cuda is None:
        advice = "this torch is built for CPUs: pip install 'vtcli[vllm]' in a new environment"
        yield TrialResult("driver", "broken", f"driver {version}, torch {torch.__version__} without CUDA", advice)
        return
    advice = machine.older_driver(version, cuda)
    figure = f"driver {version}, torch's CUDA {cuda}, {len(lines)} × {name}"
    if advice is not None:
        yield TrialResult("driver", "broken", figure, advice)
    elif not torch.cuda.is_available():
        yield TrialResult(
            "driver", "broken", figure, "torch sees no device: look at CUDA_VISIBLE_DEVICES and the container"
        )
    else:
        yield TrialResult("driver", "ok", figure)


def collectives(trial: Trial) -> Iterator[TrialResult]:
    """An all-reduce by one rank and by all GPUs of this machine; on a CPU by two ranks over gloo."""
    most = RANKS_ON_CPU if trial.cpu else torch.cuda.device_count()
    backend = "gloo" if trial.cpu else "nccl"
    for world in sorted({1, most}):
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder) / "seconds"
            spawn(_all_reduce, (world, backend, folder), nprocs=world)
            seconds, size = map(float, found.read_text().split())
        rate = 2 * (world - 1) / world * size / seconds / 1e9
        version = "" if trial.cpu else " " + ".".join(map(str, nccl.version()))
        moved = f", {rate:.1f} GB/s a rank" if world > 1 else ""
        figure = f"{backend}{version}, {size / 2**20:.0f} MiB in {seconds * 1000:.1f} ms{moved}"
        yield TrialResult(f"all-reduce, {world} rank{'s' if world > 1 else ''}", "ok", figure)


def _all_reduce(rank: int, world: int, backend: str, folder: str) -> None:
    """One rank; the first one writes seconds and bytes."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    meeting = f"file://{folder}/ranks-{world}"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world, timeout=LIMIT)
    value = torch.ones(2**28 if device.type == "cuda" else 2**20, device=device)  # 1 GiB, 4 MiB
    times: list[float] = []
    for _ in range(5):
        value.fill_(1)
        begin = time.perf_counter()
        dist.all_reduce(value)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        if float(value[0]) != world or float(value[-1]) != world:
            raise RuntimeError(f"rank {rank}: the sum of {world} ones is {float(value[0])}")
    if rank == 0:
        (Path(folder) / "seconds").write_text(f"{min(times)} {value.nbytes}")
    dist.destroy_process_group()


def matmul(trial: Trial) -> Iterator[TrialResult]:
    """TFLOP/s of a large product of bf16 matrices, against the data sheet; on a CPU a small one in fp32."""
    side = 1024 if trial.cpu else 8192
    dtype = torch.float32 if trial.cpu else torch.bfloat16
    a, b = (torch.randn(side, side, device=trial.device, dtype=dtype) for _ in range(2))
    times: list[float] = []
    product = a @ b
    for _ in range(10):
        begin = time.perf_counter()
        torch.mm(a, b, out=product)
        if not trial.cpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    exact = a[:4].double() @ b.double()
    error = float((product[:4].double() - exact).abs().max() / exact.abs().max())
    tflops = 2 * side**3 / min(times) / 1e12
    known = None if trial.cpu else data_sheet()
    share = "" if known is None else f", {tflops / known.bf16:.0%} of {known.kind}'s {known.bf16:g}"
    figure = f"{tflops:.1f} TFLOP/s in {str(dtype).removeprefix('torch.')}{share}, error {error:.1e}"
    if not error < 1e-2:
        yield TrialResult("matrix product", "broken", figure, "the result is wrong: this GPU or its memory is faulty")
    elif known is not None and tflops < 0.5 * known.bf16:
        yield TrialResult(
            "matrix product", "slow", figure, "others use this GPU, or its clock is throttled: nvidia-smi -q"
        )
    else:
        yield TrialResult("matrix product", "ok", figure)
