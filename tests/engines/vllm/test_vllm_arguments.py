"""What vLLM makes of our arguments, read back from its own configuration; where vLLM is not installed, nothing."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest
from wide_model import LIMITS, family

from vtcli.engines.policies import Engine, Placement
from vtcli.engines.vllm.start import arguments, load
from vtcli.errors import ConfigError
from vtcli.store.images import ImageLimits

with_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vllm is not installed here; `make test-vllm` installs it and runs this",
)
PAPERS = 2_000_000
"""Pixels; about what a recipe of the papers shows."""


def configured(engine: Engine, max_pixels: int) -> Any:
    """vLLM's configuration of an engine, without the engine."""
    load()
    given = arguments(engine, family(), LIMITS, Placement(images=ImageLimits(3136, max_pixels)))
    return importlib.import_module("vllm.engine.arg_utils").EngineArgs(**given).create_engine_config()


def encoder_cache(config: Any) -> int:
    """Embeddings that vLLM keeps of images."""
    registry = importlib.import_module("vllm.multimodal").MULTIMODAL_REGISTRY
    budget = importlib.import_module("vllm.multimodal.encoder_budget").MultiModalBudget
    return budget(config, registry).encoder_cache_size


@with_vllm
def test_a_step_and_the_queue_are_as_the_engine_says() -> None:
    config = configured(Engine("vllm", max_batch=96, step_tokens=8192, image_cache_gib=1.5), PAPERS)
    scheduler = config.scheduler_config
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens, scheduler.policy) == (96, 8192, "priority")
    assert config.model_config.multimodal_config.mm_processor_cache_gb == 1.5


@with_vllm
def test_without_a_number_a_step_on_a_cpu_is_short() -> None:
    assert configured(Engine("vllm", cache_gib=1), PAPERS).scheduler_config.max_num_batched_tokens == 2048
    wide = Engine("vllm", cache_gib=1, max_batch=4096)
    assert configured(wide, PAPERS).scheduler_config.max_num_batched_tokens == 4096


@with_vllm
@pytest.mark.parametrize(
    ("max_pixels", "step_tokens", "expected"),
    [
        (PAPERS, 8192, 8192),  # 2551 for an image: a step's tokens are the larger
        (12_845_056, 8192, 16384),  # the processor's own limit: one image
        (12_600, 2048, 2048),  # scale tiny
    ],
)
def test_the_encoder_cache_holds_a_step_or_the_largest_view(max_pixels: int, step_tokens: int, expected: int) -> None:
    """With a processor that takes any image it was 2,739,137 embeddings: 18 GiB of a 7B model, outside of its share."""
    assert encoder_cache(configured(Engine("vllm", step_tokens=step_tokens), max_pixels)) == expected


def test_the_image_that_is_tried_fits_the_prompt_and_the_limit() -> None:
    def side(tokens: int, max_pixels: int) -> int:
        return family().vllm.arguments(4, tokens, max_pixels)["limit_mm_per_prompt"]["image"]["width"]

    assert side(400, 10**7) == 20 * 28
    assert side(28_672, 2_000_000) == 50 * 28  # 2,500 of its 2,551 tokens
    assert side(28_672, 1) == 36 * 28  # a small limit holds up to a square of 1,024


def test_a_step_that_is_smaller_than_the_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.step_tokens=64 is below engine\.max_batch=256"):
        Engine("vllm", step_tokens=64)
    with pytest.raises(ConfigError, match=r"image_cache_gib: must be above 0, got 0"):
        Engine("vllm", image_cache_gib=0)
