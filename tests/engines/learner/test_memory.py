"""Memory and attention calls of one learner step at the sizes of Qwen2.5-VL-7B, from shapes alone.

``pytest -s tests/engines/learner/test_memory.py`` prints each part (docs/benchmarks.md).
"""

from __future__ import annotations

import fake_step
import pytest
from fake_step import GIB

RANKS = 8
USABLE_GIB = 0.92 * 79.6  # of an H100 with 80 GB
ENGINE_ASLEEP_GIB = 4.0  # what a sleeping engine and two CUDA contexts leave behind; no GPU has measured it
BUCKET = 500_000_000  # DeepSpeed's reduce_bucket_size, elements; two of them where communication overlaps

TOKENS, IMAGES, SIDE = 28_672, 16, 1008


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        yield fake_step.forward_and_backward(fake_step.row(TOKENS, IMAGES, SIDE), fake_step.config(), patch)


def parts(found: fake_step.Pass) -> dict[str, float]:
    """GiB at the highest point, by part: ZeRO-2 in bf16, sums of gradients in fp32."""
    parameters = found.parameters / GIB
    peak = max(found.most.values())
    vision, text = found.kept["vision"], found.kept["text"] - found.kept["vision"]
    assert peak == found.most["text backward"]
    return {
        "weights (bf16)": 2 * parameters,
        "optimiser, a rank's share (fp32 weights, two moments)": 12 * parameters / RANKS,
        "gradients, a rank's share (fp32)": 4 * parameters / RANKS,
        "gradients on their way (two buckets, fp32)": 2 * 4 * BUCKET / GIB,
        "activations kept, vision tower": vision,
        "activations kept, text": text,
        "one layer computed again, with its gradients": peak - vision - text,
        "sleeping engine, CUDA (assumed)": ENGINE_ASLEEP_GIB,
    }


@pytest.mark.slow
def test_a_step_of_the_7b_model_fits_on_eight_gpus(found) -> None:
    table = parts(found)
    for name, size in [*table.items(), ("together", sum(table.values())), ("usable", USABLE_GIB)]:
        print(f"| {name} | {size:.1f} |")
    for phase, size in found.most.items():
        print(f"| most in the {phase} pass | {size:.1f} |")
    assert found.parameters == 8_292_166_656  # as the checkpoint has
    assert sum(table.values()) < USABLE_GIB
    logits = 4 * TOKENS * fake_step.TEXT_7B["vocab_size"] / GIB  # what whole logits in fp32 would take
    assert found.most["head backward"] - found.kept["head"] < 0.3 * logits


def test_every_block_attends_once_and_no_mask_is_made(found) -> None:
    blocks = fake_step.TEXT_7B["num_hidden_layers"] + fake_step.VISION_7B["depth"]
    assert found.operations["_varlen_attn"] == 2 * blocks  # forward, and again in the backward pass
    assert found.operations["_varlen_attn_backward"] == blocks
    assert not [name for name in found.operations if "scaled_dot_product" in name or name in ("_softmax", "softmax")]
    assert found.masks <= TOKENS  # which tokens are an image's
    assert not found.operations["_local_scalar_dense"]  # the host waits for nothing
