"""Every family on vLLM, for real: parity with the learner, before and after a weight update; the processor's ids."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny_family import SIZES, TinyFamily, tiny_family
from tiny_generic import BUILD, miniature

from vtcli.algo.optim import Backend, Optim
from vtcli.engines import parity, probes
from vtcli.engines.hf import load_model
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.engines.policies import ROOM, Engine, Placement, TrainedPolicy, open_policy
from vtcli.errors import EngineError
from vtcli.rollout.loop import Limits
from vtcli.rollout.threads import EventLoop

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vllm is not installed here; `make test-vllm` installs it and runs this",
    ),
]


REFUSED = {"gemma3"}
"""vLLM's attention for CPUs shows a token of an image none of those behind it."""


@pytest.fixture(scope="module", params=[*SIZES, *sorted({*BUILD} - REFUSED)])
def tiny(request: Any) -> TinyFamily:
    return miniature(request.param)


def room(tiny: TinyFamily) -> int:
    """Tokens of a row, as ``vtcli doctor --parity`` compares them."""
    return max(ROOM, min(probes.LONG, tiny.family.max_tokens))


@pytest.fixture(scope="module")
def view(tiny: TinyFamily) -> Any:
    return probes.probing(tiny.store.view)


@pytest.fixture(scope="module", params=["vllm", "vllm_server"])
def policy(request: Any, tiny: TinyFamily, view: Any) -> Iterator[TrainedPolicy]:
    limits = Limits(max_tokens=room(tiny), max_images=4)
    opened = open_policy(Engine(request.param, cache_gib=0.25), tiny.family, view, limits, Placement())
    yield opened
    opened.close()


def test_vllm_agrees_with_the_learner_before_and_after_an_update(
    tiny: TinyFamily, view: Any, policy: TrainedPolicy
) -> None:
    """On rows with no, one, two and adjacent images and of several turns: ids, pixels, positions, log-probabilities.
    Miniatures that take rows of 4096 tokens have such a row, and images of 1008 pixels."""
    learner = DeepSpeedLearner(
        load_model(tiny.family), tiny.family, view, optim=Optim(lr=1e-2), backend=Backend(), total_steps=2
    )
    check = parity.ParityCheck(policy, learner, tiny.family, view, room=room(tiny))
    with EventLoop() as loop:
        before = check.run(loop)
        assert [a.images for a in before] == [0, 1, 2, 2, 4]
        assert [a.differs for a in before] == [()] * 5
        parity.require(before, "float32")
        learner.step(tiny.rows())
        if hasattr(tiny.family.Architecture, "experts") and not torch.cuda.is_available():
            with pytest.raises(EngineError, match="packs experts at its start only"):
                policy.update(learner.weights(), 1)
            return
        assert parity.disagreement(check.run(loop, 1), "float32", check.bounds) is not None
        policy.update(learner.weights(), 1)
        after = check.run(loop, 2)
    assert [a.differs for a in after] == [()] * 5
    parity.require(after, "float32")


@pytest.mark.parametrize("kind", SIZES)
def test_the_processor_of_transformers_gives_our_ids_pixels_and_sizes(kind: str) -> None:
    """It needs torchvision, which is in vLLM's environment."""
    from transformers import AutoProcessor

    tiny = tiny_family(kind)
    processor = AutoProcessor.from_pretrained(tiny.family.folder)
    pictures = [tiny.image(nth) for nth in (4, 1)]
    talk: list[Any] = [
        {"role": "system", "content": [{"type": "text", "text": "You are kind."}]},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where?"}, {"type": "image"}]},
    ]
    text = processor.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    views = [tiny.store.view(ref) for ref in pictures]
    found = processor(text=[text], images=views, do_resize=False, return_tensors="pt")
    ids = tiny.family.chat.prompt("You are kind.", "<image>Where?<image>", pictures)
    assert found["input_ids"][0].tolist() == list(ids)
    own = torch.cat([torch.from_numpy(tiny.family.pixels(view)) for view in views])
    torch.testing.assert_close(found["pixel_values"], own, atol=1e-5, rtol=0)
    assert found["image_grid_thw"].tolist() == [list(tiny.family.patches.grid(ref)) for ref in pictures]
