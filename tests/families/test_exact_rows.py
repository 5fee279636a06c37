"""Rows packed in one line, prompts shared, against plain transformers: each row alone, every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_family import SIZES, TinyFamily, tiny_family
from tiny_generic import ONE_OFTEN, miniature
from transformers import AutoModelForImageTextToText

from vtcli.algo.optim import Backend, Lora, Optim
from vtcli.engines.hf import HfPolicy, load_model
from vtcli.engines.learner.deepspeed import DeepSpeedLearner, export
from vtcli.engines.learner.packing import segments
from vtcli.protocols import Request, Sampling

DECAY = (".A_log", ".dt_bias", ".in_proj_a.weight")
"""Weights of linear attention whose gradients are small differences of large sums: transformers' own move by 4e-5 of
the largest when every weight moves by its last digit."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.fixture(scope="module", params=SIZES)
def tiny(request: Any) -> TinyFamily:
    return tiny_family(request.param)


def learner(tiny: TinyFamily, optim: Optim | None = None) -> DeepSpeedLearner:
    own, backend = optim or Optim(lr=1e-2), Backend(batch_tokens=4000)
    model = load_model(tiny.family)
    return DeepSpeedLearner(model, tiny.family, tiny.store.view, optim=own, backend=backend, total_steps=4)


def test_the_rows_are_of_every_kind(tiny: TinyFamily) -> None:
    parts = segments(tiny.rows(), tiny.family)
    assert sum(segment.shared for part in parts for segment in part) == 1
    assert {len(row.images) for row in tiny.rows()} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("one_call", [False, True])
def test_log_probabilities_and_gradients_are_those_of_each_row_alone(tiny: TinyFamily, one_call: bool) -> None:
    """Of every weight, the vision tower's included; with deepstack its mergers', too."""
    plain, ours, rows = tiny.reference(), learner(tiny), tiny.rows()
    factor = {row.id: 0.5 + nth for nth, row in enumerate(rows)}
    alone = {row.id: tiny.expected(plain, row) for row in rows}
    torch.stack([factor[name] * values.sum() for name, values in alone.items()]).sum().backward()
    for part in [rows] if tiny.family.packs else [[row] for row in rows]:
        batch = tiny.packed(part, one_call)
        logprobs, *_ = ours.module(batch)
        torch.testing.assert_close(logprobs, torch.cat([alone[row.id] for row in batch.rows]), atol=1e-5, rtol=1e-5)
        weight = torch.cat([torch.full((sum(row.mask),), factor[row.id]) for row in batch.rows])
        (weight * logprobs).sum().backward()
    expected, found = dict(plain.named_parameters()), dict(ours.module.model.named_parameters())
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        largest = float(parameter.grad.abs().max())
        within = 1e-4 * max(largest, 0.1) if name.endswith(DECAY) else 1e-5 * max(largest, 1e-3)
        torch.testing.assert_close(found[name].grad, parameter.grad, atol=within, rtol=1e-4)


@torch.no_grad()
def test_what_was_learnt_is_sampled_with_and_opens_in_plain_transformers(tiny: TinyFamily, tmp_path: Path) -> None:
    """A policy that takes the learner's weights, and a folder that was exported, say what the learner says."""
    ours, rows = learner(tiny), tiny.rows()
    before = ours.logprobs(rows)
    with torch.enable_grad():
        ours.step(rows)
    known = ours.logprobs(rows)
    assert max(abs(a - b) for one, two in zip(before, known, strict=True) for a, b in zip(one, two, strict=True)) > 0.1
    ours.export(tiny.family.folder, tmp_path / "out")
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "out").eval()
    for row, values in zip(rows, known, strict=True):
        assert tiny.expected(plain, row).tolist() == pytest.approx(values, abs=1e-5)
    policy = HfPolicy(load_model(tiny.family), tiny.family, tiny.store.view)
    policy.update(ours.weights(), 1)
    asked = [
        Request(row.token_ids[: row.mask.index(1)], row.images[: len(row.images) - later], 8, Sampling(), nth)
        for nth, (row, later) in enumerate(zip(rows, (0, 0, 0, 0, 0, 3, 0, 1, 2), strict=True))
    ]
    for request, done in zip(asked, policy.generate(asked), strict=True):
        ids = (*request.token_ids, *done.token_ids)
        mask = (0,) * len(request.token_ids) + (1,) * len(done.token_ids)
        row = type(rows[0])("sampled", ids, mask, request.images)
        assert tiny.expected(plain, row).tolist() == pytest.approx(done.logprobs, abs=1e-4)
    policy.close()


def test_a_frozen_tower_stays_as_it_is_and_its_features_are_kept(tiny: TinyFamily) -> None:
    ours, free = learner(tiny, Optim(lr=1e-2, freeze_vision=True)), learner(tiny)
    before = {name: p.detach().clone() for name, p in ours.module.model.named_parameters()}
    ours.step(tiny.rows())
    moved = {name for name, p in ours.module.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved and not [name for name in moved if ".visual." in name]
    assert [name for name in before if ".visual." in name and name not in moved]
    kept = ours.module.features
    assert kept is not None
    with kept.kept():
        first = ours.logprobs(tiny.rows())
        assert kept.knows(tiny.packed(tiny.rows(), False))
        assert ours.logprobs(tiny.rows()) == first
    assert free.module.features is None


@pytest.mark.parametrize("name", [*SIZES, *ONE_OFTEN])
def test_adapters_go_into_the_language_model_alone(name: str) -> None:
    tiny = miniature(name)
    experts = hasattr(tiny.family.Architecture, "experts")  # fused weights take no adapters
    lora = Lora(4, targets=ATTENTION) if experts else Lora(4)
    ours = learner(tiny, Optim(lr=1e-2, lora=lora))
    trained = {name for name, p in ours.module.model.named_parameters() if p.requires_grad}
    layers = dict(tiny.family.decoder(ours.module.model).get_decoder().layers.named_modules())
    fitting = [name for name in layers if name.rpartition(".")[2] in lora.targets]
    assert len(trained) == 2 * len(fitting) >= 2 * len(lora.targets)
    assert all(f".{tiny.family.language_model}." in name for name in trained)
    ours.step(tiny.rows())
    weights = ours.weights()
    plain = tiny.reference()
    plain.load_state_dict(dict(weights))
    with torch.no_grad():
        for row, values in zip(tiny.rows(), ours.logprobs(tiny.rows()), strict=True):
            assert tiny.expected(plain, row).tolist() == pytest.approx(values, abs=1e-4)


def test_an_export_has_the_processor_and_tokenizer_of_its_source(tiny: TinyFamily, tmp_path: Path) -> None:
    export(load_model(tiny.family), tiny.family.folder, tmp_path / "out")
    before = {path.name for path in tiny.family.folder.iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == before
