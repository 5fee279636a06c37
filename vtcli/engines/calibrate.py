"""Measures what ``vtcli plan`` otherwise assumes, on this machine, with the real engines, tools and sandbox.

On a CPU the model is that of conf/model/tiny.yaml in fp32, on a GPU a larger random one in bf16. Less than a minute.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vtcli.engines.hf import HfPolicy, load_model
from vtcli.engines.inputs import collate_packed
from vtcli.engines.learner.deepspeed import TokenLogprobs
from vtcli.engines.learner.packing import Segment
from vtcli.engines.trials.model import build
from vtcli.errors import ConfigError, EngineError
from vtcli.families.family import Family
from vtcli.families.table import find_family, open_family
from vtcli.plan.architecture import Architecture, from_folder
from vtcli.plan.hardware import GPUS, Gpu, of_device
from vtcli.plan.steptime import head_flops, text_flops
from vtcli.protocols import Request, Sampling
from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.sandbox.types import Picture, Setup
from vtcli.schema import ImageRef, TrainRow
from vtcli.store.images import ImageLimits, ImageStore, resize
from vtcli.tools.zoom import ZoomIn

REPEATS = 3
SEEN, SAID = 64, 64  # tokens of a row's text and of its answer


@dataclass(frozen=True)
class _Bench:
    """A random model and one picture."""

    model: Any
    arch: Architecture
    family: Family
    store: ImageStore
    picture: ImageRef
    device: str

    @property
    def prompt(self) -> list[int]:
        return [*self.family.chat.prompt("You are kind.", "Where?", [self.picture])]


def write(path: Path, family: str, sizes: Mapping[str, Any]) -> None:
    """Measures everything and write it to ``path``; ``sizes`` are those of the family's tiny model.

    Raises:
        EngineError: a value makes no sense, as other programs took the machine meanwhile. Nothing is written.
    """
    found = measure(family, sizes)
    wrong = [f"{name}={value:.3g}" for name, value in found["constants"].items() if not value > 0]
    if wrong:
        raise EngineError(
            f"measured {', '.join(wrong)}, and every constant is above 0: other programs took the machine meanwhile. "
            f"Nothing was written to {path}. Measure again when it is idle."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(found, indent=2) + "\n")
    draft.rename(path)


def measure(family: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """``kind`` of device, ``constants`` by name, and for a CPU its ``gpu`` entry of the table."""
    cuda = torch.cuda.is_available()
    known = of_device(torch.cuda.get_device_name()) if cuda else None
    if cuda and known is None:
        raise EngineError(f"{torch.cuda.get_device_name()} is not in vtcli/plan/hardware.py: add its data sheet first.")
    with tempfile.TemporaryDirectory() as folder:
        large = find_family(family).large if cuda else {}
        bench = _bench(Path(folder), family, {**sizes, **large}, "cuda" if cuda else "cpu")
        gpu = None if cuda else _this_cpu()
        peak = (known or gpu or GPUS["H100"]).bf16 * 1e12
        constants = _learner(bench, peak)
        constants["decode_overhead_s"] = _decoding(bench)
        constants |= _host(bench)
        latency = asyncio.run(_code(bench.store.full(bench.picture)))
        constants |= {} if latency is None else {"code_latency_s": latency}
        constants["host_cores"] = float(len(os.sched_getaffinity(0)))
    return {"kind": known.kind if known else "CPU", "constants": constants, "gpu": None if gpu is None else asdict(gpu)}


def _bench(folder: Path, name: str, sizes: Mapping[str, Any], device: str) -> _Bench:
    build(folder / "model", name, sizes)
    family = open_family(folder / "model")
    store = ImageStore(folder / "images", family.sizing(ImageLimits(3136, 1_000_000)))
    side = 112 if device == "cpu" else 672
    picture = store.add(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))
    model = load_model(family, "float32" if device == "cpu" else "bfloat16", device)
    return _Bench(model, from_folder(folder / "model"), family, store, picture, device)


def _seconds(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The fastest of some runs after a warm-up: other work on this machine only adds."""
    times: list[float] = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _this_cpu() -> Gpu:
    """Peak as a large product of matrices reaches it, bandwidth as a large copy does; with torch's own threads."""
    a = torch.randn(1024, 1024)
    tflops = 2 * 1024**3 / _seconds(lambda: a @ a) / 1e12
    block = torch.ones(2**25)  # 128 MiB, read and written
    bandwidth = 2 * block.numel() * 4 / _seconds(block.clone) / 1e9
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    links = (bandwidth, bandwidth, bandwidth)
    return Gpu("CPU", memory, tflops, tflops, bandwidth, *links, f"measured, {torch.get_num_threads()} threads")


def _learner(bench: _Bench, peak: float) -> dict[str, float]:
    """Forward and backward at two sizes of micro-batch: the slope is the efficiency, the rest the overhead."""
    module = TokenLogprobs(bench.model.train(), bench.family, bench.store.view, 1.0)
    ids = (*bench.prompt, *([5] * (SEEN + SAID)))
    mask = (0,) * (len(ids) - SAID) + (1,) * SAID
    small, large = (1, 17) if bench.device == "cpu" else (2, 16)

    def step(count: int) -> None:
        rows = [TrainRow(str(i), ids, mask, (bench.picture,)) for i in range(count)]
        parts = [[Segment(row, 0, len(ids), row.images) for row in rows]]  # nothing is shared
        logprobs, *_ = module(collate_packed(parts, bench.family, bench.device))
        logprobs.sum().backward()
        bench.model.zero_grad()

    few, many = _seconds(lambda: step(small)), _seconds(lambda: step(large))
    # All rows share one picture, which passes the vision tower once; it counts as overhead.
    rows = text_flops(bench.arch, len(ids)) + head_flops(bench.arch, SAID)  # of a row's forward pass
    slope = (many - few) / (large - small)  # seconds of a row
    overhead = max(few - small * slope, 1e-6)
    layers = bench.arch.text.layers + bench.arch.vision.depth
    return {"matmul_efficiency": 3 * rows / slope / peak, "layer_overhead_s": overhead / layers * 4 / 3}


def _decoding(bench: _Bench, rows: int = 32, tokens: int = 32) -> float:
    """Seconds per decoding step of the policy in this process, reading the weights included."""
    policy = HfPolicy(bench.model.eval(), bench.family, bench.store.view)

    def sample(count: int) -> float:
        ids = tuple(bench.prompt)
        wanted = [Request(ids, (bench.picture,), max_tokens=count, sampling=Sampling(), seed=i) for i in range(rows)]
        return _seconds(lambda: policy.generate(wanted), 3)

    return max((sample(tokens) - sample(2)) / (tokens - 2), 1e-6)


def _host(bench: _Bench) -> dict[str, float]:
    """One native call with its stored result; resizing and cutting into patches."""
    store, zoom = bench.store, ZoomIn()
    coarse = np.random.default_rng(1).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    pixels = resize(coarse, 1224, 1632)  # smooth, as photographs are: noise would be slow to compress
    ref = store.add(pixels)

    def call(box: Sequence[int]) -> None:
        store.add(zoom(pixels, ref, {"bbox_2d": [*box], "label": "x"}).pixels)

    boxes = iter([[n, n, n + 560, n + 560] for n in range(0, 400, 7)])  # another picture every time
    tool = _seconds(lambda: call(next(boxes)), 8)
    height, width = bench.family.sizing(ImageLimits())(1200, 1620)
    prepare = _seconds(lambda: bench.family.pixels(resize(pixels, height, width)), 3)
    return {"tool_latency_s": tool, "image_mpixels_per_s": height * width / 1e6 / prepare}


async def _code(pixels: Any, runs: int = 12) -> float | None:
    """Median seconds of a run of code, in an episode that is there; None where no sandbox holds."""
    try:
        pool = await Pool.start(PoolConfig())
    except (ConfigError, EngineError):
        return None
    async with pool:
        episode = await pool.open(Setup((Picture(pixels),), {"image": 0}, capture=("result",)))
        times: list[float] = []
        for n in range(runs):
            start = time.perf_counter()
            await episode.run(f"result = image.crop(({n}, 0, 56 + {n}, 56)).resize((112, 112))")
            times.append(time.perf_counter() - start)
        await episode.close()
    return statistics.median(times[2:])
