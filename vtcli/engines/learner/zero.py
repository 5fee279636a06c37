"""ZeRO: DeepSpeed's settings, and whole weights out of shards.

Under stage 3 a rank holds a part of every parameter, and what reads one must run on all ranks in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as State
from torch import Tensor, nn

from vtcli.algo.optim import Backend, Optim

PERSISTENT_ELEMENTS = 100_000
"""Parameters of at most so many elements are kept whole on every rank under stage 3 (DeepSpeed's default)."""

BUCKET_ELEMENTS = 2**27
"""Number of elements that are gathered at a time, at least one parameter: 0.5 GB in fp32."""


REDUCED_ELEMENTS = 500_000_000
"""Gradients that travel at a time (DeepSpeed's default), in a buffer of fp32, or two where they overlap."""


def settings(optim: Optim, backend: Backend, elements: int) -> dict[str, Any]:
    """DeepSpeed's configuration for a model of so many ``elements``."""
    host = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    zero: dict[str, Any] = {"stage": backend.zero_stage}
    if backend.zero_stage >= 1:  # a buffer of that size is made, however small the model is
        zero["reduce_bucket_size"] = min(REDUCED_ELEMENTS, elements)
    if backend.zero_stage >= 2:
        zero["overlap_comm"] = True  # gradients travel while earlier layers are still in their backward pass
    if backend.offload != "none":
        zero["offload_optimizer"] = host
    if backend.offload == "weights":
        zero["offload_param"] = host
    if backend.zero_stage == 3:
        zero["stage3_param_persistence_threshold"] = PERSISTENT_ELEMENTS
    return {
        # DeepSpeed counts no rows: a step's number of micro-batches varies, so ``DeepSpeedLearner.step`` sets its
        # boundary.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": optim.grad_clip,
        "bf16": {"enabled": backend.dtype == "bfloat16"},
        "zero_optimization": zero,
        # A sum over dozens of micro-batches, and over ranks, loses its last bits in bfloat16: 8 of 24 bits are left.
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        # torch's AdamW, offloaded or not, because DeepSpeed's optimisers are compiled on the user's machine.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,  # never: a step's metrics have all of it
        "wall_clock_breakdown": False,
    }


def adamw(module: nn.Module, optim: Optim) -> torch.optim.AdamW:
    """AdamW for all trained parameters; matrices decay, vectors do not."""
    trained = [p for p in module.parameters() if p.requires_grad]
    decayed, rest = [p for p in trained if p.ndim >= 2], [p for p in trained if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": optim.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    betas = (optim.beta1, optim.beta2)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=optim.lr, betas=betas, fused=True)


def forget_gradients(engine: Any, stage: int) -> None:
    """Drops what earlier micro-batches of a step have left, so that a step which fails leaves nothing to a later one.

    DeepSpeed keeps sums outside ``grad`` and clears them in ``step`` only.
    """
    engine.zero_grad()
    optimizer = engine.optimizer
    optimizer.zero_grad()
    if stage in (1, 2):
        optimizer.micro_step_id = -1  # as ``step`` leaves it: the next micro-batch is the first
        for sums in (optimizer.all_grad_tensors, optimizer.averaged_gradients):
            for group in sums:
                sums[group] = None


def whole(model: nn.Module, *, keep: bool = True) -> dict[str, Tensor]:
    """The state dict of a model whose parameters are sharded, in host memory; tied weights stay one tensor.

    All ranks call this together; those with ``keep`` false take part and get an empty dict.
    """
    names = [(name, p) for name, p in model.named_parameters(remove_duplicate=False)]
    found: dict[int, Tensor] = {}
    for bucket in _buckets(list(model.parameters())):
        with deepspeed.zero.GatheredParameters(bucket, modifier_rank=None):  # None: only read
            if keep:
                # By identity, because a tied weight has two names and must stay one tensor.
                found |= {id(p): p.detach().to("cpu", copy=True) for p in bucket}
    if not keep:
        return {}
    tensors = {name: found[id(p)] for name, p in names}
    rest = {name: value for name, value in model.state_dict().items() if name not in tensors}  # buffers are whole
    return tensors | {name: value.to("cpu", copy=True) for name, value in rest.items()}


def _buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        elements = int(getattr(parameter, "ds_numel", parameter.numel()))
        if bucket and size + elements > BUCKET_ELEMENTS:
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += elements
    if bucket:
        yield bucket


class HostedStates:
    """Moves the states of one DeepSpeed engine and of its reference model to host memory while a generation engine uses
    the device, and back. ``away``: the parts in host memory.

    At ZeRO stages 1 and 2 DeepSpeed 0.19.8 moves the states that it owns; this class moves the rest, namely parameters
    without a gradient and the reference model. ``Backend`` refuses stage 3, because there DeepSpeed moves optimiser
    states of its FusedAdam only, which must be compiled, and misplaces the weights as soon as some are frozen.
    """

    def __init__(self, engine: Any, reference: nn.Module | None) -> None:
        self.engine, self.reference = engine, reference
        self.away: frozenset[str] = frozenset()

    def leave(self, *, weights: bool) -> None:
        """Moves optimiser states, master weights, gradients and the reference model, and with ``weights`` the rest.
        Parts that are away stay so."""
        if "states" not in self.away:
            if self.reference is not None:
                self.reference.to("cpu")
            # "hp" are the fp32 master weights, "lp" what the forward pass reads.
            self.engine.offload_states(include=[State.hp_params, State.optim_states, State.lp_grads])
            self.away |= {"states"}
        if weights and "weights" not in self.away:
            self._move_frozen("cpu")
            self.engine.offload_states(include=[State.lp_params])  # and gives freed memory back to the device
            self.away |= {"weights"}

    def come_back(self) -> None:
        """Moves everything back to the device."""
        if not self.away:
            return
        self.engine.reload_states()
        self._move_frozen(self.engine.device)
        if self.reference is not None:
            self.reference.to(self.engine.device)
        self.away = frozenset()

    def _move_frozen(self, device: Any) -> None:
        for parameter in self.engine.module.parameters():
            if not parameter.requires_grad:
                # Only the data moves: DeepSpeed and the optimiser keep referring to the same parameter.
                parameter.data = parameter.data.to(device)
