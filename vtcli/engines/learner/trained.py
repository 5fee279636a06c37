"""Trained part of a model: all, all but the vision tower, or adapters (LoRA), which are merged when weights leave."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vtcli.algo.optim import Backend, Lora, Optim
from vtcli.errors import InputError
from vtcli.families.family import Family

ADAPTER = "adapter"
"""Folder of a trained model that has its adapters by themselves, as PEFT writes them."""


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
        # Reentrant checkpoints want an input with a gradient, which frozen embeddings do not give.
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def _adapt(model: Any, family: Family, lora: Lora) -> None:
    """Adapters beside the language model's ``targets``, and everything else frozen. All ranks start with the same."""
    from peft import inject_adapter_in_model

    there = {name.rpartition(".")[2] for name, _ in model.named_modules() if f".{family.language_model}." in name}
    if lacking := [target for target in lora.targets if target not in there]:
        fitting = [target for target in Lora().targets if target in there]
        raise InputError(
            f"optim.lora.targets={list(lora.targets)}: {family.name} has no layers named {', '.join(lacking)}, so "
            f"these adapters would train nothing. Set optim.lora.targets=[{','.join(fitting)}]."
        )
    here = _peft_config(family, lora)
    # The same seed on every rank, and the caller's random state untouched: PEFT draws A from the global generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            inject_adapter_in_model(here, model)
        except ValueError as error:
            raise InputError(f"optim.lora.targets={list(lora.targets)}: {error}") from error


def _peft_config(family: Family, lora: Lora) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]  # a factor
        target_modules=rf".*\.{family.language_model}\..*\.({'|'.join(lora.targets)})",
    )


def save_adapter(weights: Mapping[str, Tensor], family: Family, lora: Lora, base: str, folder: Path) -> None:
    """Writes the adapters among ``weights`` as PEFT does: ``adapter_config.json``, which names the ``base`` model, and
    ``adapter_model.safetensors``."""
    from peft import TaskType
    from safetensors.torch import save_file

    config = _peft_config(family, lora)
    config.base_model_name_or_path, config.task_type, config.inference_mode = base, TaskType.CAUSAL_LM, True
    config.save_pretrained(str(folder))
    tensors = {
        f"base_model.model.{name.replace('.default.', '.')}": value.cpu().contiguous()
        for name, value in weights.items()
        if ".lora_" in name
    }
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})


def base_name(source: Path) -> str:
    """The hub name of a folder in the hub's cache, or else its path.

    >>> base_name(Path("/hub/models--Qwen--Qwen2.5-VL-3B-Instruct/snapshots/66285546d2b8"))
    'Qwen/Qwen2.5-VL-3B-Instruct'
    """
    cached = next((part for part in source.parts if part.startswith("models--")), None)
    return str(source.resolve()) if cached is None else cached.removeprefix("models--").replace("--", "/", 1)


class Merged(Mapping[str, Tensor]):
    """The weights with their adapters merged, by their names in the model without adapters. The sum is W + alpha /
    rank B A, in fp32 (LoRA, arXiv 2106.09685, section 4.1).

    A matrix is merged when it is read, so one sum exists at a time: beside an engine's weights a GPU has no room for
    all of them.
    """

    def __init__(self, weights: Mapping[str, Tensor], lora: Lora) -> None:
        self._weights, self._factor = weights, lora.alpha / lora.rank
        self._names = {name.replace(".base_layer.", "."): name for name in weights if ".lora_" not in name}

    def __getitem__(self, name: str) -> Tensor:
        found = self._names[name]
        layer, inside, leaf = found.partition(".base_layer.")
        value = self._weights[found]
        if not inside or leaf != "weight":
            return value
        down, up = (self._weights[f"{layer}.lora_{side}.default.weight"].float() for side in "AB")
        return (value.float() + self._factor * (up @ down)).to(value.dtype)

    def on_host(self) -> dict[str, Tensor]:
        """All of them at once, sums in host memory. The others stay where they are, so that tied ones stay tied."""
        adapted = {name for name, found in self._names.items() if found != name}
        return {name: self[name].cpu() if name in adapted else self[name] for name in self}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def without_adapters(model: Any) -> Generator[None]:
    """A block in which a model computes as it did before its adapters were trained: they add 0."""
    from peft.tuners.lora import LoraLayer

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        layer.set_scale("default", 0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale("default", 1)  # times alpha / rank
