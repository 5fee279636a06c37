"""Policy and learner are compared on the same rows, and what differs is named."""

from __future__ import annotations

import asyncio
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tiny_model
import torch

from vtcli.algo.optim import Backend, Optim
from vtcli.algo.parity import Gaps, ParityBounds
from vtcli.engines import parity, probes
from vtcli.engines.hf import HfPolicy
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.errors import ConfigError, EngineError
from vtcli.protocols import Request
from vtcli.rollout.loop import derive_seed
from vtcli.rollout.threads import EventLoop
from vtcli.schema import Completion


def check_of(
    policy: HfPolicy | None = None, model: Any = None, temperature: float = 1.0, **more: Any
) -> parity.ParityCheck:
    family, view = tiny_model.family(), probes.probing(tiny_model.store().view)
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
    return parity.ParityCheck(policy, learner, family, view, temperature=temperature, **more)


def compared(*args: Any, **more: Any) -> list[parity.EngineAgreement]:
    with EventLoop() as loop:
        return check_of(*args, **more).run(loop)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_engines_agree_on_rows_of_every_kind(temperature: float) -> None:
    found = compared(temperature=temperature)
    assert [a.images for a in found] == [0, 1, 2, 2, 4]
    assert all(a.gaps and a.figures.largest <= 1e-4 and a.differs == () for a in found)
    parity.require(found, "float32")


def test_pixels_that_differ_are_named() -> None:
    def brighter(ref: Any) -> Any:
        return np.minimum(probes.probing(tiny_model.store().view)(ref), 200)

    found = compared(HfPolicy(tiny_model.model(), tiny_model.family(), brighter))
    assert [len(a.differs) for a in found] == [0, 1, 1, 1, 1]
    with pytest.raises(EngineError, match=r"of 5 rows(?s:.)*one image: .*\n +pixels: by up to .* in patch"):
        parity.require(found, "float32")


def test_positions_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flat(HfPolicy):
        """Counts images as text, as an engine without M-RoPE does."""

        def seen(self, request: Any) -> Any:
            found = super().seen(request)
            return replace(found, positions=np.tile(np.arange(len(request.token_ids)), (3, 1)))

    view = probes.probing(tiny_model.store().view)
    found = compared(Flat(tiny_model.model(), tiny_model.family(), view))
    assert [[line.split(":")[0] for line in a.differs] for a in found] == [[], *[["positions"]] * 4]


def test_other_weights_are_refused_although_all_inputs_are_equal() -> None:
    model = tiny_model.model()
    with torch.no_grad():
        model.lm_head.weight[5] *= 1.1
    with pytest.raises(EngineError, match="so the weights or the arithmetic differ"):
        parity.require(compared(model=model), "float32")


def agreement(*gaps: float, differs: tuple[str, ...] = ()) -> parity.EngineAgreement:
    return parity.EngineAgreement("one", 1, 40, gaps, differs)


def test_figures_by_hand() -> None:
    figures = Gaps.of([0.0] * 99 + [-0.1])
    assert (figures.tokens, figures.largest) == (100, 0.1)
    assert figures.mean == pytest.approx((math.exp(-0.1) - 1 + 0.1) / 100)
    assert figures.p99 == pytest.approx(0.001)  # between the 99th and the 100th of 100 values: 0 + 0.01 * 0.1


def test_the_limit_depends_on_the_dtype_and_nothing_passes_that_is_no_number() -> None:
    rounded = agreement(*[0.02, -0.02] * 299, 0.6, 0.6)  # two tokens of 600 that differ much, as bf16 rounds
    parity.require([rounded], "bfloat16")
    for found, dtype, name in (
        (rounded, "float32", "largest"),
        (agreement(*[0.02] * 500, *[0.7] * 10), "bfloat16", "p99"),
        (agreement(*[0.2, -0.2] * 300), "bfloat16", "mean"),
        (agreement(0.0, float("nan")), "float32", "largest"),
        (agreement(0.0, float("nan")), "bfloat16", "mean"),
    ):
        with pytest.raises(EngineError, match=rf"policy and learner disagree (.|\n)*rl\.parity\.{name}\)"):
            parity.require([found], dtype)


def test_a_short_row_alone_does_not_fail_a_bf16_run() -> None:
    noisy, others = agreement(*[0.25] * 12), agreement(*[0.01] * 588)
    assert noisy.figures.mean > 5e-3
    parity.require([noisy, others], "bfloat16")


def test_bounds_are_what_the_configuration_says() -> None:
    wide = ParityBounds(mean=0.05, p99=1.0)
    found = [agreement(*[0.2, -0.2] * 300)]
    assert parity.disagreement(found, "bfloat16", wide) is None
    said = parity.disagreement(found, "bfloat16", replace(wide, mean=0.01)) or ""
    assert "600 sampled tokens of 1 rows" in said
    assert "mean KL (k3): 0.0201 nats, and at most 0.01 is accepted (rl.parity.mean)" in said
    assert "rl.parity.refuse=false" in said
    with pytest.raises(ConfigError, match="p99: must be above 0"):
        ParityBounds(p99=0.0)


def test_rows_are_drawn_until_there_are_tokens_enough() -> None:
    few, many = (
        compared(dtype="bfloat16", bounds=ParityBounds(tokens=tokens, largest=1e-4, mean=1, p99=1))
        for tokens in (1, 300)
    )
    assert len(few) == 5
    assert len(many) > 5
    assert 300 <= parity.pooled(many).tokens < 300 + parity.pooled(few).tokens + 100
    assert many[0].gaps != many[5].gaps  # another round has other rows


def test_rows_of_thousands_of_tokens_have_images_of_training_size() -> None:
    """Drawn by a policy that says one word: a miniature would take minutes for images of this size."""
    chat = tiny_model.chat()

    class Terse:
        async def complete(self, request: Request) -> Completion:
            chat.check_images(request.token_ids, request.images)
            return Completion((7,), (0.0,), "length")

    drawn = asyncio.run(probes.rows(cast(Any, Terse()), tiny_model.family(), probes.Probes(room=8192)))
    several = drawn[-1]
    sizes = [(ref.view_width, ref.view_height) for ref in several.images]
    assert sizes[:2] == [(1008, 756), (756, 1008)]
    assert [row.token_ids.count(chat.image_pad) for row in drawn] == [0, 972, 980, 20, 1964]
    assert 3500 < len(several.token_ids) <= 4096
    assert sum(several.mask) == 4
    small = asyncio.run(probes.rows(cast(Any, Terse()), tiny_model.family(), probes.Probes(room=512)))
    assert max(len(row.token_ids) for row in small) < 300


def test_a_picture_of_another_size_has_another_name() -> None:
    """A server that keeps images by name would take the one for the other."""
    family, view = tiny_model.family(), probes.probing(tiny_model.store().view)
    small, large = (probes.probe(7, family, size) for size in ((56, 56), (112, 84)))
    assert small.view != large.view
    assert [view(ref).shape for ref in (small, large)] == [(56, 56, 3), (84, 112, 3)]


def test_every_start_of_a_run_compares_other_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, model = tmp_path / "parity.jsonl", tiny_model.model()
    with torch.no_grad():
        model.lm_head.weight[5] *= 1.1
    check = check_of(model=model)

    def start(bounds: ParityBounds) -> None:
        sampled = check.sample(loop, derive_seed(3, parity.starts(log)))
        parity.require_at_start(replace(check, bounds=bounds), sampled, log)

    with EventLoop() as loop:
        for _ in range(2):
            with pytest.raises(EngineError, match="policy and learner disagree"):
                start(ParityBounds())
        start(ParityBounds(refuse=False))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len({line["mean"] for line in lines}) == 3
    assert not any(line["agree"] for line in lines)
    assert "goes on in spite of it" in capsys.readouterr().err


def test_a_rank_with_one_wrong_token_is_found_behind_one_with_a_larger_mean() -> None:
    """Rank 0 has one token of 60 beyond 1e-4 nats; all of rank 1 are within. Mean KL: 7.5e-10 against 4.1e-9."""
    one, all_small = (
        [parity.EngineAgreement("row", 0, 60, gaps, ())] for gaps in ((3e-4, *[0.0] * 59), tuple([9e-5] * 60))
    )
    nth, said = parity.worst_rank([one, all_small], "float32", ParityBounds())
    assert nth == 0 and said is not None and "on rank 0" in said and "0.0003 nats" in said
    assert parity.worst_rank([all_small[:], all_small], "float32", ParityBounds())[1] is None


@pytest.mark.parametrize(("dtype", "rows"), [("float32", 5), ("bfloat16", 15)])
def test_the_doctor_compares_on_demand(capsys: pytest.CaptureFixture[str], dtype: str, rows: int) -> None:
    from vtcli.cli.doctor import doctor

    doctor(parity=str(tiny_model.folder()), dtype=dtype)
    out = capsys.readouterr().out
    assert out.count(" sampled, ") == rows  # in bfloat16 as many as have 512 sampled tokens
    assert f"policy (hf) and learner agree in {dtype} on" in out
    assert re.search(r"ids and the folder's chat template are equal on a prompt of \d\d+ tokens with 2 images", out)
    assert f"learner (packed rows) and transformers' forward (each alone) agree in {dtype} on" in out
    assert "(Qwen2.5-VL) will train with engine=hf" in out.splitlines()[-1]


def test_the_doctor_refuses_an_engine_that_is_none() -> None:
    from vtcli.cli.doctor import doctor

    with pytest.raises(ConfigError, match=r"--engine\.name: expected one of 'hf', 'vllm', 'vllm_server'"):
        doctor(parity=str(tiny_model.folder()), engine="vlm")
