"""The learner against plain torch, against itself under any split, and over two ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny_model
import torch
from cases import each_case
from tiny_learner import EPSILON, OPTIM, broken, copy, forward, learner, rl_rows, same, save, two_ranks

from vtcli.algo.losses import LossConfig, policy_loss, row_weights
from vtcli.algo.optim import Optim, learning_rate
from vtcli.engines.learner.deepspeed import _anchored, _joined
from vtcli.errors import EngineError, InputError
from vtcli.store.checkpoints import Checkpoints


def plain_step(rows, loss):
    """One AdamW step on the whole batch at once, written without DeepSpeed."""
    fresh = learner()  # for its forward only
    module = fresh.module
    weights = row_weights(rows, loss.aggregation, loss.norm_tokens)
    total = torch.zeros(())
    for row, weight in zip(rows, weights, strict=True):
        logp = forward(fresh, [row])
        if row.logprobs is None:
            total = total - weight * logp.sum()
            continue
        where = [t for t, m in enumerate(row.mask) if m]
        old, adv = (torch.tensor([v[t] for t in where]) for v in (row.logprobs, row.advantages))
        total = total + weight * policy_loss(logp, old, adv, torch.zeros(len(where), dtype=torch.long), loss).loss.sum()
    module.zero_grad()
    total.backward()
    used = [p for p in module.parameters() if p.grad is not None]
    norm = torch.nn.utils.clip_grad_norm_(used, OPTIM.grad_clip)
    groups = [
        {"params": [p for p in used if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in used if p.ndim < 2], "weight_decay": 0.0},
    ]
    torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=EPSILON).step()
    return copy(module.model.state_dict()), float(total.detach()), float(norm)


@each_case(
    ("aggregation", "rl"),
    [
        *(
            (name, rl)
            for name in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "seq-mean-token-sum")
            for rl in (None, {})
        ),
        ("token-mean", {"importance": "none"}),
        ("token-mean", {"importance": "sequence"}),
        ("seq-mean-token-mean", {"importance": "none", "ratio": "sequence"}),
    ],
)
def test_a_step_is_plain_adamw_whatever_the_micro_batches(aggregation, rl):
    rows = tiny_model.packed_rows() if rl is None else rl_rows()
    loss = LossConfig(aggregation=aggregation, **rl or {})
    expected, total, norm = plain_step(rows, loss)
    longest = max(len(r.token_ids) for r in rows)
    for tokens in (longest, 2 * longest, 4000):
        trained = learner(batch_tokens=tokens)
        metrics = trained.step(rows, loss)
        assert metrics["loss"] == pytest.approx(total, abs=1e-6, rel=1e-6)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
        assert metrics["tokens"] == sum(sum(r.mask) for r in rows)
        same(trained.weights(), expected, 2e-6)


def test_zero_stages_agree():
    runs = {stage: learner(zero_stage=stage, batch_tokens=150) for stage in (0, 1, 2, 3)}
    losses = {stage: [run.step(rl_rows())["loss"] for _ in range(3)] for stage, run in runs.items()}
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert losses[2] == pytest.approx(losses[0], abs=1e-5)
    assert losses[3] == pytest.approx(losses[0], abs=1e-5)
    assert len(set(losses[0])) == 3


def test_on_policy_the_ratio_is_one_and_the_kl_zero():
    rows = tiny_model.rows()
    plain = learner().logprobs(rows)
    on = []
    for row, known in zip(rows, plain, strict=True):
        values = iter(known)
        old = tuple(next(values) if m else 0.0 for m in row.mask)
        on.append(replace(row, logprobs=old, advantages=tuple(float(m) for m in row.mask)))
    metrics = learner(reference=tiny_model.model()).step(on, LossConfig(kl_coef=0.1))
    assert metrics["ratio"] == pytest.approx(1, abs=1e-4)
    assert metrics["logprob_gap_max"] < 1e-4
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["clip_ratio_low"] == metrics["clip_ratio_high"] == 0
    assert metrics["loss"] == pytest.approx(-1, abs=1e-4)  # -A r, weighted to one


def test_rows_without_gradient_count_in_the_mean_only():
    rows = rl_rows()
    zero = [replace(r, advantages=tuple(0.0 for _ in r.mask)) for r in rows[:2]] + rows[2:]
    quick, slow = learner(), learner()
    quick.step(zero, LossConfig())
    slow.step(zero, LossConfig(skip_zero_advantage=False))
    same(quick.weights(), slow.weights(), 2e-6)
    still = learner()
    before = copy(still.weights())
    assert still.step([replace(r, advantages=tuple(0.0 for _ in r.mask)) for r in rows])["updated"] == 0
    same(still.weights(), before, 0)


def test_what_cannot_be_trained_on_is_refused():
    rows = tiny_model.rows()
    trained = learner()
    before = copy(trained.weights())
    with pytest.raises(InputError, match="every mask of the batch is empty"):
        trained.step([replace(r, mask=(0,) * len(r.mask)) for r in rows])
    with pytest.raises(InputError, match="more than the micro-batch budget"):
        learner(batch_tokens=10).step(rows)
    with pytest.raises(InputError, match="placeholders"):
        trained.step([replace(rows[0], images=rows[0].images[:1])])
    with pytest.raises(InputError, match="no logprobs aligned"):
        trained.step([replace(rl_rows()[0], logprobs=(0.0,))])
    same(trained.weights(), before, 0)


@each_case(
    "backend",
    [
        {"zero_stage": 2, "dtype": "bfloat16"},
        {"zero_stage": 2, "offload": "optimizer"},
        *({"zero_stage": stage} for stage in (0, 2, 3)),
    ],
)
def test_a_loss_that_is_not_finite_changes_nothing(backend):
    rows = rl_rows()
    longest = max(rows, key=lambda r: len(r.token_ids))  # the last micro-batch: others have left gradients by then
    bad = [broken(r) if r is longest else r for r in rows]
    trained, clean = (learner(batch_tokens=150, **backend) for _ in range(2))
    before = copy(trained.weights())
    with pytest.raises(EngineError, match="no update was made"):
        trained.step(bad)
    same(trained.weights(), before, 0)
    trained.step(rows)
    clean.step(rows)
    same(copy(trained.weights()), clean.weights(), 0)
    assert any((value != before[name]).any() for name, value in clean.weights().items())


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_bfloat16_gradients_are_summed_in_fp32(stage):
    """A row alone, and the same row 64 times with a 64th of its weight: powers of two, so nothing may be rounded.
    Summed in bfloat16 the norms differ by 1.5e-3."""
    row = rl_rows()[0]
    copies = [replace(row, id=f"{row.id}-{nth}") for nth in range(64)]
    backend = {"zero_stage": stage, "dtype": "bfloat16", "batch_tokens": len(row.token_ids) + 3}  # one row each
    one, many = (learner(**backend).step(rows)["grad_norm"] for rows in ([row], copies))
    assert many == pytest.approx(one, rel=1e-6)


@each_case("stage", [1, 2, 3])
def test_buffers_of_gradients_are_no_larger_than_the_model(stage):
    """DeepSpeed's default makes one or two of 2 GB, and a few engines in one process leave no room for a fork."""
    made = learner(zero_stage=stage)
    made.step(rl_rows())
    elements = sum(weight.numel() for weight in made.weights().values())
    assert made.engine.optimizer.reduce_bucket_size <= elements


def test_a_step_that_deepspeed_leaves_out_is_told(monkeypatch):
    rows, trained = rl_rows(), learner(zero_stage=2, dtype="bfloat16")
    before = copy(trained.weights())
    monkeypatch.setattr(trained, "_check", lambda *_: None)
    bad = [broken(row) for row in rows]
    for _ in range(2):
        metrics = trained.step(bad)
        assert (metrics["updated"], metrics["skipped"]) == (0.0, 1.0)
    same(trained.weights(), before, 0)
    with pytest.raises(EngineError, match="3 steps in succession"):
        trained.step(bad)


@pytest.mark.slow  # ten learners; a checkpoint that goes on with the same portions is of `make test`
@each_case(("stage", "offload"), [(0, "none"), (1, "optimizer"), (2, "optimizer"), (3, "optimizer"), (3, "weights")])
def test_a_checkpoint_goes_on_with_other_portions_of_memory(tmp_path, stage, offload):
    """Equal but for rounding: gradients are summed in another order, and Adam's step may be the host's."""
    through = learner(zero_stage=stage)
    through.step(rl_rows())
    save(through, Checkpoints(tmp_path, []), 1)
    expected = through.step(rl_rows())
    frugal = learner(zero_stage=stage, offload=offload, batch_tokens=150, activation_checkpointing=True)
    found = Checkpoints(tmp_path, []).resume()
    assert found is not None
    frugal.load_checkpoint(found[1])
    step = frugal.step(rl_rows())
    assert step["loss"] == pytest.approx(expected["loss"], rel=1e-4, abs=1e-6)
    assert step["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    same(frugal.weights(), through.weights(), 1e-5)


@each_case("stage", [0, 2, 3])
def test_a_checkpoint_continues_bit_for_bit(tmp_path, stage):
    through = learner(zero_stage=stage)
    through.step(rl_rows())
    save(through, Checkpoints(tmp_path, []), 1)
    expected = through.step(rl_rows())
    resumed = learner(zero_stage=stage)
    found = Checkpoints(tmp_path, []).resume()
    assert found is not None
    assert found[0] == 1
    resumed.load_checkpoint(found[1])
    assert resumed.step(rl_rows()) == expected
    same(resumed.weights(), through.weights(), 0)
    through.load_checkpoint(found[1])  # back again, in the same process
    assert through.step(rl_rows()) == expected


def test_learning_rate_by_hand():
    optim = Optim(lr=1.0, schedule="linear", warmup_steps=2, min_lr_ratio=0.5)
    # warm-up 1/2, 2/2; then 1 - done over the 4 steps left, mapped onto [0.5, 1]
    assert [learning_rate(optim, s, 6) for s in range(7)] == pytest.approx([0.5, 1, 1, 0.875, 0.75, 0.625, 0.5])
    cosine = Optim(lr=2.0, schedule="cosine")
    assert [learning_rate(cosine, s, 2) for s in range(3)] == pytest.approx([2, 1, 0])
    assert learning_rate(Optim(lr=3.0), 100, 2) == 3


STEPS = """
from vtcli.errors import EngineError
for kind, stage in RUNS:
    trained = t.learner(batch_tokens=150, zero_stage=stage)
    rows = t.rl_rows() if kind == "rl" else tiny_model.rows()
    shares = {"rl": [[rows[1:2], rows[:1] + rows[2:]], [[], rows]], "sft": [[rows[:2], rows[2:]], [rows, []]]}[kind]
    losses = [trained.step(share[rank]) for share in shares]
    out[kind, stage] = losses, {k: v.clone() for k, v in trained.weights().items()}
    try:
        trained.step([t.broken(r) for r in t.rl_rows()] if rank else t.rl_rows())
    except EngineError as error:
        out["error"] = str(error)
"""
RUNS = (("rl", 0), ("rl", 2), ("sft", 1), ("rl", 3), ("sft", 3))


@pytest.mark.slow
def test_two_ranks_are_one(tmp_path):
    """Uneven shares: a rank without rows, a rank without images; and a loss that is not finite stops both."""
    found = two_ranks(tmp_path, STEPS.replace("RUNS", repr(RUNS)))
    for kind, stage in RUNS:
        rows = rl_rows() if kind == "rl" else tiny_model.rows()
        alone = learner(batch_tokens=150)
        expected = [alone.step(rows) for _ in range(2)]
        losses, weights = found[0][kind, stage]
        for one, two in zip(expected, losses, strict=True):
            assert two == pytest.approx(one, abs=1e-4)
            assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
        same(weights, copy(alone.weights()), 1e-5)
        same(found[1][kind, stage][1], weights, 0)
    assert all("no update was made" in out["error"] for out in found)


CHECKPOINTS = """
import signal
from vtcli.store.checkpoints import Checkpoints
points = Checkpoints(here / "checkpoints", [])
rows, trained = t.rl_rows(), t.learner(batch_tokens=150, zero_stage=3)
if (found := points.latest()) is None:
    trained.step(rows[rank::2])
    t.save(trained, points, 1)
    whole = trained.step(rows[rank::2]), trained.logprobs(rows[:3] if rank else [])
    torch.save(whole, here / f"whole{rank}")
    torch.save(t.copy(trained.weights()), here / "whole-weights")
    if rank:
        torch.save = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    t.save(trained, points, 2)
else:
    trained.load_checkpoint(found[1])
    again = trained.step(rows[rank::2]), trained.logprobs(rows[:3] if rank else [])
    out |= {"steps": found[0], "same": again == torch.load(here / f"whole{rank}")}
    expected = torch.load(here / "whole-weights")
    out["weights"] = all(torch.equal(value, expected[name]) for name, value in trained.weights().items())
    out["kept"] = len(trained.weights(keep=rank == 0)) / len(expected)
    trained.export(tiny_model.folder(), here / "model")
    out["logprobs"] = again[1]
"""


@pytest.mark.slow
def test_two_ranks_of_zero_3_killed_in_a_checkpoint_go_on_bit_for_bit(tmp_path):
    two_ranks(tmp_path, CHECKPOINTS, dies=True)
    assert (tmp_path / "checkpoints" / "draft").is_dir(), "the second checkpoint was begun"
    found = two_ranks(tmp_path, CHECKPOINTS)
    assert [(out["steps"], out["same"], out["weights"]) for out in found] == [(1, True, True)] * 2
    assert [out["kept"] for out in found] == [1.0, 0.0]
    exported = learner(folder=tmp_path / "model").logprobs(rl_rows()[:3])  # a rank without rows waited for the other
    assert found[1]["logprobs"] == [pytest.approx(values, abs=1e-5) for values in exported]
    assert found[0]["logprobs"] == []
    newest = Checkpoints(tmp_path / "checkpoints", []).latest()
    assert newest is not None
    with pytest.raises(InputError, match="written by 2 ranks and this run has 1"):
        learner(zero_stage=3).load_checkpoint(newest[1])


KILLED = """
trained = t.learner(zero_stage=2)
trained.save_checkpoint(here / "kept")
if rank == 1:
    os.kill(os.getpid(), 9)
trained.step(t.rl_rows())
"""


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_which_wait_for_it(tmp_path):
    two_ranks(tmp_path, KILLED, dies=True, waited_for=2)  # within its limit
    assert not (tmp_path / "rank0").exists()
    assert (tmp_path / "kept" / "learner.json").is_file()


def test_a_step_without_any_row_moves_the_schedule_and_nothing_else():
    trained = learner()
    before = copy(trained.weights())
    assert trained.skip()["updated"] == 0.0
    assert trained.steps_done == 1
    same(trained.weights(), before, 0.0)


def test_later_mini_batches_are_measured_against_the_learner_of_the_rollout():
    """Two updates by hand: the second one's old policy is the learner before the first."""
    loss = LossConfig(clip_low=0.05, clip_high=0.05, importance="token")
    rows = rl_rows()
    start = learner().logprobs(rows)
    trained = learner()
    metrics = trained.update([rows[:2], rows[2:]], loss)
    by_hand = learner()
    anchors = {row.id: iter(known) for row, known in zip(rows, start, strict=True)}
    anchored = [replace(r, anchor=tuple(next(anchors[r.id]) if m else 0.0 for m in r.mask)) for r in rows]
    first, second = by_hand.step(anchored[:2], loss), by_hand.step(anchored[2:], loss)
    same(trained.weights(), copy(by_hand.weights()), 0)
    assert trained.steps_done == 2
    assert second["clip_ratio_low"] + second["clip_ratio_high"] > 0, "the first update must have moved the learner"
    tokens = first["tokens"] + second["tokens"]
    assert metrics["tokens"] == tokens
    mean = (first["loss"] * first["tokens"] + second["loss"] * second["tokens"]) / tokens
    assert metrics["loss"] == pytest.approx(mean, abs=1e-9)


def test_rows_that_are_not_learnt_have_no_old_log_probabilities_and_change_no_metric(monkeypatch):
    rows = [replace(r, advantages=tuple(0.0 for _ in r.mask)) if i % 2 else r for i, r in enumerate(rl_rows())]
    whole, trained, asked = learner(), learner(), []
    by_hand = [_anchored(row, known) for row, known in zip(rows, whole.logprobs(rows), strict=True)]
    steps = [whole.step(part, LossConfig()) for part in (by_hand[:2], by_hand[2:])]
    monkeypatch.setattr(trained, "logprobs", lambda given: asked.append(given) or learner().logprobs(given))
    assert trained.update([rows[:2], rows[2:]], LossConfig()) == pytest.approx(_joined(steps), rel=1e-5, abs=1e-8)
    same(trained.weights(), copy(whole.weights()), 1e-7)
    assert asked == [rows[::2]]


def test_a_mini_batch_without_rows_moves_the_schedule_only():
    trained, alone = learner(), learner()
    metrics = trained.update([[], rl_rows()], LossConfig())
    alone.skip()
    alone.step(rl_rows(), LossConfig())
    same(trained.weights(), copy(alone.weights()), 1e-6)
    assert metrics["updated"] == 0.5
    assert metrics["lr"] == OPTIM.lr


def test_rows_with_the_same_id_are_not_mixed():
    """Engines that are not exact may give the same sample two different rollouts under one id."""
    first, second = rl_rows()[0], rl_rows()[2]
    twins = [replace(first, id="twin"), replace(second, id="twin")]
    assert learner().logprobs(twins) == learner().logprobs([first, second])
    loss = LossConfig(aggregation="seq-mean-token-mean")
    found, expected = learner(), learner()
    assert found.step(twins, loss) == expected.step([first, second], loss)
    same(found.weights(), copy(expected.weights()), 0)
    found, expected = learner(), learner()
    assert found.update([[twins[0]], [twins[1]]], loss) == expected.update([[first], [second]], loss)


COUNTED = """
import torch.distributed as dist
seen = dict.fromkeys(("all_reduce", "all_gather_into_tensor"), 0)

def counted(name, place):
    real = getattr(dist, name)
    def call(*args, **kwargs):
        tensor = [*args, *kwargs.values()][place]
        if tensor.is_floating_point():
            seen[name] += tensor.numel() * tensor.element_size()
        return real(*args, **kwargs)
    setattr(dist, name, call)

for name in seen:
    counted(name, 0)
for stage, dtype in ((2, "bfloat16"), (1, "float32")):
    for budget in (4000, 150):
        made = t.learner(batch_tokens=budget, zero_stage=stage, dtype=dtype)
        rows, before = t.rl_rows()[:8], made.engine.micro_steps
        seen.update(dict.fromkeys(seen, 0))
        made.step(rows)
        size = sum(p.numel() for p in made.module.parameters())
        out[stage, budget] = made.engine.micro_steps - before, *(round(n / size, 2) for n in seen.values())
"""


@pytest.mark.slow
def test_bytes_between_ranks_are_those_of_the_plan(tmp_path):
    """Bytes per parameter: ZeRO-2 sums gradients in fp32 at each micro-batch, ZeRO-1 once (docs/plan.md)."""
    for found in two_ranks(tmp_path, COUNTED):
        assert found[2, 4000] == (1, 4.0, 2.0)
        assert found[2, 150] == (2, 8.0, 2.0)
        assert found[1, 4000] == (1, 4.0, 4.0)
        assert found[1, 150] == (2, 4.0, 4.0)
