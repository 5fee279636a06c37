"""Trained part of a model: all, all but the vision tower, or adapters (LoRA), which are merged when weights leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vtcli.algo.optim import Backend, Lora, Optim
from vtcli.errors import InputError
from vtcli.families.family import Family


def prepare(model: Any, family: Family, optim: Optim, backend: Backend) -> Any:
    """The model in training mode, with its frozen parts and adapters.

    Raises:
        InputError: adapters for layers that the model does not have.
    """
    if optim.freeze_vision:
        for module in family.vision(model):
            module.requires_grad_(False)
    if optim.lora.rank:
        _adapt(model, family, optim.lora)
    if backend.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def _adapt(model: Any, family: Family, lora: Lora) -> None:
    """Adapters beside the language model's ``targets``, and everything else frozen. All ranks start with the same."""
    from peft import LoraConfig, inject_adapter_in_model

    there = {name.rpartition(".")[2] for name, _ in model.named_modules() if f".{family.language_model}." in name}
    if lacking := [target for target in lora.targets if target not in there]:
        fitting = [target for target in Lora().targets if target in there]
        raise InputError(
            f"optim.lora.targets={list(lora.targets)}: {family.name} has no layers named {', '.join(lacking)}, so "
            f"these adapters would train nothing. Set optim.lora.targets=[{','.join(fitting)}]."
        )
    here = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]  # a factor
        target_modules=rf".*\.{family.language_model}\..*\.({'|'.join(lora.targets)})",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            inject_adapter_in_model(here, model)
        except ValueError as error:
            raise InputError(f"optim.lora.targets={list(lora.targets)}: {error}") from error


def merged(weights: Mapping[str, Tensor], lora: Lora) -> dict[str, Tensor]:
    """The weights with their adapters merged, by their names in the model without adapters. The sum is W + alpha /
    rank B A, in fp32 (LoRA, arXiv 2106.09685, section 4.1)."""
    out: dict[str, Tensor] = {}
    for name, value in weights.items():
        layer, inside, leaf = name.partition(".base_layer.")
        if inside and leaf == "weight":
            down, up = (weights[f"{layer}.lora_{side}.default.weight"].float() for side in "AB")
            out[f"{layer}.{leaf}"] = (value.float() + lora.alpha / lora.rank * (up @ down)).to(value.dtype)
        elif ".lora_" not in name:
            out[f"{layer}.{leaf}" if inside else name] = value
    return out
