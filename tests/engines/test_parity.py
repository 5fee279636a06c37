"""Policy and learner are compared on the same rows, and what differs is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_model
import torch

from vtcli.algo.optim import Backend, Optim
from vtcli.engines import parity
from vtcli.engines.hf import HfPolicy
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.errors import ConfigError, EngineError
from vtcli.rollout.threads import EventLoop


def compared(
    policy: HfPolicy | None = None, model: Any = None, temperature: float = 1.0
) -> list[parity.EngineAgreement]:
    family, view = tiny_model.family(), parity.probing(tiny_model.store().view)
    learner = DeepSpeedLearner(
        model or tiny_model.model(),
        family,
        view,
        optim=Optim(),
        backend=Backend(),
        total_steps=1,
        temperature=temperature,
    )
    policy = policy or HfPolicy(tiny_model.model(), family, view)
    with EventLoop() as loop:
        return parity.agreements(parity.samples(loop, policy, family, temperature), learner, family, view)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_engines_agree_on_rows_of_every_kind(temperature: float) -> None:
    found = compared(temperature=temperature)
    assert [a.images for a in found] == [0, 1, 2, 2, 4]
    assert all(a.tokens > 0 and a.gap <= 1e-4 and a.differs == () for a in found)
    parity.require(found, "float32")


def test_pixels_that_differ_are_named() -> None:
    def brighter(ref: Any) -> Any:
        return np.minimum(parity.probing(tiny_model.store().view)(ref), 200)

    found = compared(HfPolicy(tiny_model.model(), tiny_model.family(), brighter))
    assert [len(a.differs) for a in found] == [0, 1, 1, 1, 1]
    with pytest.raises(EngineError, match=r"4 of 5 rows .*(?s:.)*one image: .*\n +pixels: by up to .* in patch"):
        parity.require(found, "float32")


def test_positions_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flat(HfPolicy):
        """Counts images as text, as an engine without M-RoPE does."""

        def seen(self, request: Any) -> Any:
            found = super().seen(request)
            return replace(found, positions=np.tile(np.arange(len(request.token_ids)), (3, 1)))

    view = parity.probing(tiny_model.store().view)
    found = compared(Flat(tiny_model.model(), tiny_model.family(), view))
    assert [[line.split(":")[0] for line in a.differs] for a in found] == [[], *[["positions"]] * 4]


def test_other_weights_are_refused_although_all_inputs_are_equal() -> None:
    model = tiny_model.model()
    with torch.no_grad():
        model.lm_head.weight[5] *= 1.1
    with pytest.raises(EngineError, match="so the weights or the arithmetic differ"):
        parity.require(compared(model=model), "float32")


def test_the_limit_depends_on_the_dtype_and_nothing_passes_that_is_no_number() -> None:
    rounded = parity.EngineAgreement("one", 1, 8, gap=0.05, kl=1e-3, differs=())
    parity.require([rounded], "bfloat16")
    for found, dtype in (
        (rounded, "float32"),
        (replace(rounded, kl=6e-3), "bfloat16"),
        (replace(rounded, gap=float("nan")), "float32"),
        (replace(rounded, kl=float("nan")), "bfloat16"),
    ):
        with pytest.raises(EngineError, match="policy and learner disagree on 1 of 1 rows"):
            parity.require([found], dtype)


def test_the_doctor_compares_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    from vtcli.cli.doctor import doctor

    doctor(parity=str(tiny_model.folder()))
    out = capsys.readouterr().out
    assert out.count("ok  ") == 5
    assert "policy (hf) and learner agree on 5 rows in float32" in out
    with pytest.raises(ConfigError, match=r"--engine\.name: expected one of 'hf', 'vllm', 'vllm_server'"):
        doctor(parity=str(tiny_model.folder()), engine="vlm")
