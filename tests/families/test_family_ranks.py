"""Two ranks with sharded gradients and weights learn what one rank learns; every family."""

from __future__ import annotations

from pathlib import Path

import forked
import pytest
import torch
from tiny_family import SIZES
from tiny_generic import BUILD, miniature
from transformers import AutoModelForImageTextToText

from vtcli.algo.optim import Backend, Optim
from vtcli.engines.hf import load_model
from vtcli.engines.learner.deepspeed import DeepSpeedLearner

OPTIM = "Optim(lr=1e-3, grad_clip=0.5)"
RANKS = """
import os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[3], sys.argv[4]]
import torch
from tiny_generic import miniature
from vtcli.algo.optim import Backend, Optim
from vtcli.engines.hf import load_model
from vtcli.engines.learner import zero
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
zero.PERSISTENT_ELEMENTS = 0  # else stage 3 would keep every parameter of so small a model whole
tiny, folder, here, rank = miniature(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[5]), int(os.environ["RANK"])
tiny = type(tiny)(type(tiny.family).open(folder), tiny.store)
rows, out = tiny.rows(), {}
share = [rows[:1], rows[1:]][rank]  # the first rank has a row without images only
for stage in (2, 3):
    backend = Backend(zero_stage=stage, batch_tokens=400)
    learner = DeepSpeedLearner(
        load_model(tiny.family), tiny.family, tiny.store.view, optim=OPTIM, backend=backend, total_steps=2
    )
    for group in learner.engine.optimizer.param_groups:
        group["eps"] = 1e-3
    loss = learner.step(share)["loss"]
    out[stage] = loss, {name: value.detach().clone() for name, value in learner.weights().items()}
    learner.export(folder, here / f"exported-{stage}")
torch.save(out, here / f"rank{rank}")
""".replace("OPTIM", OPTIM)


EVERY = [pytest.param(name, marks=pytest.mark.wide) for name in (*SIZES, *BUILD) if name != "qwen2_5_vl"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_5_vl", *EVERY])
def test_two_ranks_are_one_and_what_they_save_opens_in_plain_transformers(tmp_path: Path, name: str) -> None:
    tiny = miniature(name)
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    here = Path(__file__).parents[1]
    words = [name, str(tiny.family.folder), str(here / "support"), str(here.parent), str(tmp_path)]
    ended = forked.two_ranks(script, words, tmp_path, limit_s=600)
    assert [code for code, _ in ended] == [0, 0], [output[-4000:] for _, output in ended]
    first, second = (torch.load(tmp_path / f"rank{rank}") for rank in (0, 1))
    backend = Backend(batch_tokens=4000)
    alone = DeepSpeedLearner(
        load_model(tiny.family),
        tiny.family,
        tiny.store.view,
        optim=Optim(lr=1e-3, grad_clip=0.5),
        backend=backend,
        total_steps=2,
    )
    for group in alone.engine.optimizer.param_groups:
        group["eps"] = 1e-3  # the default would turn rounding of tiny gradients into steps
    loss = alone.step(tiny.rows())["loss"]
    before, expected = load_model(tiny.family).state_dict(), alone.weights()
    for stage in (2, 3):
        assert first[stage][0] == pytest.approx(loss, abs=1e-5)
        for key, value in expected.items():
            torch.testing.assert_close(first[stage][1][key], value, atol=1e-5, rtol=0)
            assert torch.equal(first[stage][1][key], second[stage][1][key])
        assert any(not torch.equal(value, before[key]) for key, value in expected.items())
        plain = AutoModelForImageTextToText.from_pretrained(tmp_path / f"exported-{stage}").state_dict()
        assert all(torch.equal(plain[key], value) for key, value in first[stage][1].items())
