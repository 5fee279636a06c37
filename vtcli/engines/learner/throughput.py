"""Speed and memory of a step: tokens per second, model FLOPs utilisation, and the device's peak memory by phase."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from vtcli.algo.losses import LossConfig
from vtcli.plan.hardware import of_device
from vtcli.schema import TrainRow

if TYPE_CHECKING:
    from vtcli.engines.learner.deepspeed import DeepSpeedLearner

FLOPS_PER_WEIGHT = 6
"""Of a token: a multiplication and an addition forward, and twice as many backward (PaLM, arXiv 2204.02311, app. B)."""


def active_weights(model: Any) -> int:
    """Number of weights that compute a token, of all shards: all but those of experts that are not chosen."""
    text = model.config.get_text_config()
    names = ("num_experts", "num_local_experts", "n_routed_experts")  # as types name it
    experts = next((int(count) for name in names if (count := getattr(text, name, None))), 0)
    sizes = {name: int(getattr(p, "ds_numel", p.numel())) for name, p in model.named_parameters()}
    idle = max(0, experts - int(getattr(text, "num_experts_per_tok", experts)))
    every = sum(size for name, size in sizes.items() if ".experts." in name)
    return sum(sizes.values()) - (every * idle // experts if experts else 0)


def throughput(row_tokens: float, seconds: float, weights: int, devices: int, peak: float | None) -> dict[str, float]:
    """Tokens of the trained rows per second, and the model FLOPs utilisation where the device's ``peak`` is known.

    ``mfu`` counts 6 FLOPs a weight (``active_weights``) and token, as the field does. Attention, the vision tower's own
    tokens and layers that are computed twice are left out. A prompt that rows share counts for each. ``peak`` is in
    FLOP/s.

    Example: 1000 tokens in 2 s on 1e9 weights and one device of 1e13 FLOP/s are 500 tokens/s and an ``mfu`` of 0.3.
    """
    if seconds <= 0 or row_tokens <= 0:
        return {}
    out = {"time/learn_tokens_per_s": row_tokens / seconds}
    if peak is not None:
        out["time/mfu"] = FLOPS_PER_WEIGHT * weights * row_tokens / (seconds * devices * peak)
    return out


def peak_flops(name: str, dtype: str) -> float | None:
    """The dense peak of a device by torch's name of it, in FLOP/s; None for one without known figures.

    Example: "NVIDIA H100 80GB HBM3" in bfloat16 has 989e12.
    """
    found = of_device(name)
    if found is None:
        return None
    return (found.bf16 if dtype == "bfloat16" else found.fp32) * 1e12


def device_peak(dtype: str) -> float | None:
    """``peak_flops`` of this process's device; None without a GPU."""
    return peak_flops(torch.cuda.get_device_name(), dtype) if torch.cuda.is_available() else None


def peak_memory(phase: str) -> dict[str, float]:
    """The most memory in use on this rank's device since the last call, in GiB; empty without a GPU.

    Memory in use is the driver's count, as vLLM takes it. An engine that sleeps has unmapped pages that torch
    still counts as its own. Servers on the device count too. Added is what torch has held more since the last call.
    """
    if not torch.cuda.is_available():
        return {}
    free, total = torch.cuda.mem_get_info()
    more = torch.cuda.max_memory_reserved() - torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    return {f"memory/{phase}_gib": (total - free + more) / 2**30}


def timed_update(learner: DeepSpeedLearner, rows: Sequence[Sequence[TrainRow]], loss: LossConfig) -> dict[str, float]:
    """The learner's update, whose metrics it returns with its speed and the peak memory in it."""
    begin = time.perf_counter()
    metrics = learner.update(rows, loss)
    seconds, peak = time.perf_counter() - begin, device_peak(learner.backend.dtype)
    speed = throughput(metrics["row_tokens"], seconds, learner.weight_count, learner.world, peak)
    return metrics | speed | peak_memory("learn") | {"time/learn_s": seconds}
