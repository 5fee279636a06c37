"""Features of a frozen vision tower are computed once in an update, and nothing that is learnt differs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny_model
import torch
from tiny_learner import OPTIM, copy, learner, rl_rows, same, two_ranks

from vtcli.algo.losses import LossConfig
from vtcli.engines.inputs import collate_packed
from vtcli.engines.learner.feed import FrozenFeatures
from vtcli.engines.learner.packing import segments

FROZEN = replace(OPTIM, freeze_vision=True)
KL = LossConfig(kl_coef=0.1)


def reference():
    model = tiny_model.model()
    with torch.no_grad():
        model.model.language_model.layers[0].mlp.down_proj.weight.mul_(1.5)  # its own opinion, the same tower
    return model


def counted(made):
    """Images that pass the tower of the trained model, and of the reference, at each pass."""
    passes = []
    for module in (made.module, made.reference):
        if module is not None:
            visual = module.model.model.visual
            visual.register_forward_pre_hook(lambda _, args, kwargs: passes.append(len(args[1])), with_kwargs=True)
    return passes


def images(rows):
    return len({ref.view for row in rows for ref in row.images})


def test_an_update_computes_them_once_and_learns_the_same() -> None:
    rows = rl_rows()
    halves = [rows[:2], rows[2:]]
    plain, known = (learner(FROZEN, reference=reference(), batch_tokens=4000) for _ in range(2))
    plain.module.features = plain.reference.features = None
    many, few = counted(plain), counted(known)
    expected, found = plain.update(halves, KL), known.update(halves, KL)
    assert sum(few) == images(rows) and len(few) == 1  # in the pass for the old log-probabilities
    assert len(many) == 5  # that, and two mini-batches, each under two models
    assert found == pytest.approx(expected, abs=1e-6)
    same(copy(known.weights()), copy(plain.weights()), 1e-6)
    assert not known.module.features._kept  # nothing outlives the update


def test_kept_features_are_the_towers_own_bits() -> None:
    model, family = tiny_model.model(), tiny_model.family()
    batch = collate_packed(segments(tiny_model.rows(), family), family, "cpu")
    features = FrozenFeatures(family, tiny_model.store().view)
    with features.kept(), torch.no_grad():
        first, again = features(model, batch), features(model, batch)
        expected = family.features(model, batch, tiny_model.store().view)
    assert len(first) == len(batch.unique) > 1
    for one, two, own in zip(first, again, expected, strict=True):
        assert torch.equal(one, own) and torch.equal(two, own)


def test_the_oldest_go_where_there_is_no_room() -> None:
    model, family = tiny_model.model(), tiny_model.family()
    one, other = (
        collate_packed(segments([tiny_model.row(name, "Where?", ["x"], (nth,))], family), family, "cpu")
        for nth, name in enumerate(("a", "b"))
    )
    room = tiny_model.chat().image_tokens(one.unique[0]) * tiny_model.SIZES.hidden_size * 4
    features = FrozenFeatures(family, tiny_model.store().view, limit=room)
    with features.kept():
        features(model, one)
        assert features.knows(one)
        features(model, other)
        assert not features.knows(one)
    features(model, other)
    assert not features.knows(other)  # outside of an update nothing is kept


def test_a_tower_that_is_trained_is_always_asked() -> None:
    assert learner().module.features is None
    assert learner(FROZEN).module.features is not None


def test_a_reference_with_another_tower_computes_its_own() -> None:
    model = reference()
    with torch.no_grad():
        model.model.visual.merger.mlp[0].weight.mul_(1.1)
    made = learner(FROZEN, reference=model)
    assert made.reference.features is None


@pytest.mark.slow
def test_sharded_ranks_keep_step_where_one_knows_its_images(tmp_path) -> None:
    """ZeRO-3: the second mini-batch shows rank 0 an image that it knows, and rank 1 has no image at all."""
    body = """
from dataclasses import replace
made = t.learner(replace(t.OPTIM, freeze_vision=True), zero_stage=3, batch_tokens=150)
rows = t.rl_rows()
mine = [rows[:1], rows[:1]] if rank == 0 else [rows[1:2], rows[1:2]]
out["loss"] = [made.update(mine, t.LossConfig())["loss"] for _ in range(2)]
"""
    found = two_ranks(tmp_path, "from vtcli.algo.losses import LossConfig\nt.LossConfig = LossConfig\n" + body)
    assert found[0]["loss"] == pytest.approx(found[1]["loss"])
