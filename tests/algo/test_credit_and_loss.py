"""Credit, weights, losses, curriculum and monitor: numbers worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from cases import each_case
from fakes import make_sample, make_scored, make_trajectory
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vtcli.algo import advantages
from vtcli.algo.advantages import turn_level
from vtcli.algo.curriculum import batch_indices, locate, require_phases, round_indices
from vtcli.algo.losses import LossConfig, clipped_surrogate, k3, kl_estimate, policy_loss, row_sums, row_weights
from vtcli.algo.monitor import credit_spread, describe, refuse_banned_mass
from vtcli.algo.pack import imitation_row
from vtcli.algo.select import minibatches
from vtcli.engines.learner.packing import batches
from vtcli.errors import ConfigError, EngineError, InputError
from vtcli.families.table import open_family
from vtcli.schema import Credit, Group, Scored, Signals, Stop, TrainRow
from vtcli.store.models import SHIPPED

SHIPPED_FAMILY = open_family(SHIPPED / "base" / "v1")


def group(*rewards: float | None) -> Group:
    sample = make_sample()
    members = [
        make_scored(make_trajectory(sample, ["<answer>K</answer>"], seed=i), {}, None if r is None else {"answer": r})
        for i, r in enumerate(rewards)
    ]
    return Group(sample, tuple(members))


def group_mean(one: Group, **options: bool) -> list[Credit]:
    (found,) = advantages.group_mean([one], **options)
    return found


def test_group_mean_by_hand() -> None:
    # mean 1/4, deviations 3/4 and three times -1/4: variance (9 + 3) / 16 / 3 = 1/4, std 1/2
    found = [a for (a,) in group_mean(group(1, 0, 0, 0))]  # type: ignore[misc]
    assert found == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert group_mean(group(1, 0, 0, 0), std=False) == [(0.75,), (-0.25,), (-0.25,), (-0.25,)]
    # without a verdict: neither in the mean (1/2) nor in the loss
    assert group_mean(group(1, None, 0), std=False) == [(0.5,), None, (-0.5,)]
    assert group_mean(group(None, None)) == [None, None]
    assert group_mean(group(0.7)) == [(0.0,)]
    assert group_mean(group(0.7, None)) == [(0.0,), None]
    assert group_mean(group(0.1 + 0.2, 0.3, 0.3)) == [(0.0,)] * 3  # equal but for rounding
    assert group_mean(group(0.1, 0.2, 0.3))[1] == (0.0,)  # at the mean, which is rounded
    assert turn_level([Group(make_sample(), (by_turns(1, 0.1, 9.0), by_turns(1, 0.2, 9.0), by_turns(1, 0.3, 9.0)))])[0][
        1
    ] == (0.0, 0.0)


def test_every_turn_gets_the_trajectorys_value() -> None:
    one = group(1, 0)
    turns = one.members[0].trajectory.turns
    two = replace(one.members[0], trajectory=replace(one.members[0].trajectory, turns=turns * 2))
    assert group_mean(Group(one.sample, (two, one.members[1])), std=False) == [(0.5, 0.5), (-0.5,)]


def test_what_ran_out_of_a_budget_counts_in_the_statistics_only() -> None:
    one = group(1, 0, 0, 0)
    stops = (Stop.ANSWERED, Stop.MAX_TURNS, Stop.MAX_TOKENS, Stop.CALL_FAILED)
    members = zip(one.members, stops, strict=True)
    ended = [replace(m, trajectory=replace(m.trajectory, stop=stop)) for m, stop in members]
    assert group_mean(Group(one.sample, tuple(ended)), std=False) == [(0.75,), (-0.25,), (-0.25,), (-0.25,)]
    assert group_mean(Group(one.sample, tuple(ended)), std=False, mask_exceeded=True) == [(0.75,), None, None, (-0.25,)]


def by_turns(total: float | None, *per_turn: float) -> Scored:
    """A trajectory of as many turns."""
    (member,) = group(total).members
    if member.verdict is None:
        return member
    trajectory = replace(member.trajectory, turns=member.trajectory.turns * max(len(per_turn), 1))
    return replace(member, trajectory=trajectory, verdict=replace(member.verdict, per_turn=per_turn or None))


def test_turn_level_by_hand() -> None:
    sample = make_sample()
    # two groups of one batch; without std the totals 1, 0 and 3, 1 give ±0.5 and ±1
    first = Group(sample, (by_turns(1, -0.5, 0.0, 9.0), by_turns(0)))
    second = Group(sample, (by_turns(3, -0.1, 0.0), by_turns(1, 7.0), by_turns(None)))
    # the pool is -0.5, 0, -0.1: mean -0.2, variance (0.09 + 0.04 + 0.01) / 3
    spread = math.sqrt(0.14 / 3)
    a, b = turn_level([first, second], weight=0.2, std=False)
    assert a[0] == pytest.approx((0.5 + 0.2 * -0.3 / spread, 0.5 + 0.2 * 0.2 / spread, 0.5))
    assert a[1] == (-0.5,)
    assert b[0] == pytest.approx((1 + 0.2 * 0.1 / spread, 1.0))
    assert b[1] == (-1.0,)  # one turn is the last turn
    assert b[2] is None


def test_turn_level_without_turns_or_without_differences() -> None:
    plain = group(1, 0)
    assert turn_level([plain], std=False) == advantages.group_mean([plain], std=False)
    same = Group(make_sample(), (by_turns(1, 0.0, 0.0), by_turns(0, 0.0, 0.0)))
    assert turn_level([same], std=False) == [[(0.5, 0.5), (-0.5, -0.5)]]  # no failed call in the batch: no signal
    assert turn_level([], std=False) == []


def test_a_reward_of_ones_own_gives_one_value_a_turn() -> None:
    member = by_turns(1, 0.0, 0.0, 0.0)
    assert member.verdict is not None
    short = replace(member, verdict=replace(member.verdict, per_turn=(0.0, 0.0)))
    with pytest.raises(ConfigError, match=r"per_turn of 2 values for .*, which has 3 turns of the policy"):
        turn_level([Group(make_sample(), (short, by_turns(0)))])


def row(tokens: int, name: str = "r", length: int | None = None) -> TrainRow:
    length = length or tokens + 1
    return TrainRow(name, (1,) * length, (0,) * (length - tokens) + (1,) * tokens, ())


def test_row_weights_by_hand() -> None:
    rows = [row(1), row(3), row(0)]
    assert row_weights(rows, "token-mean", 10) == [0.25, 0.25, 0.0]
    assert row_weights(rows, "seq-mean-token-mean", 10) == [0.5, 1 / 6, 0.0]
    assert row_weights(rows, "seq-mean-token-sum-norm", 10) == [0.05, 0.05, 0.0]
    with pytest.raises(ValueError, match="every mask of the batch is empty"):
        row_weights([row(0)], "token-mean", 10)


@each_case(
    ("ratio", "advantage", "loss", "clipped", "gradient"),
    [  # low 0.2, high 0.3, dual clip 3; d loss / d logp = -A r where it is not clipped
        (1.0, 2.0, -2.0, 0, -2.0),
        (1.25, 2.0, -2.5, 0, -2.5),  # inside the wider upper side
        (1.5, 2.0, -2.6, 1, 0.0),  # -2 * 1.3
        (0.5, 2.0, -1.0, 0, -1.0),  # a good token that became rare is not held back
        (0.9, -1.0, 0.9, 0, 0.9),
        (0.5, -1.0, 0.8, 1, 0.0),  # 1 - 0.2
        (2.0, -1.0, 2.0, 0, 2.0),
        (5.0, -1.0, 3.0, 0, 0.0),  # dual clip
    ],
)
def test_clipped_surrogate_by_hand(ratio: float, advantage: float, loss: float, clipped: int, gradient: float) -> None:
    logp = torch.tensor([math.log(ratio) - 1.0], requires_grad=True)
    old, credit = torch.tensor([-1.0]), torch.tensor([advantage])
    settings = LossConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    value, hit = clipped_surrogate(logp, old, credit, torch.zeros(1).long(), settings)
    value.sum().backward()
    assert value.item() == pytest.approx(loss, rel=1e-5)
    assert hit.item() == clipped
    assert logp.grad is not None
    assert logp.grad.item() == pytest.approx(gradient, abs=1e-5)


def test_dual_clip_can_be_off_and_ratios_stay_finite() -> None:
    logp, old = torch.tensor([math.log(5.0), 500.0]), torch.zeros(2)
    credit, rows = torch.tensor([-1.0, -1.0]), torch.tensor([0, 1])
    value, _ = clipped_surrogate(logp, old, credit, rows, LossConfig(dual_clip=None))
    assert value[0].item() == pytest.approx(5.0)
    assert torch.isfinite(value).all()


def losses(old: list[float], learner: list[float], rows: list[int], advantage: float = 1.0, **options):
    """Loss, importance and gradient of tokens with these probabilities."""
    logp = torch.tensor([math.log(p) for p in learner], requires_grad=True)
    sampled = torch.tensor([math.log(p) for p in old])
    credit = torch.full((len(old),), advantage)
    found = policy_loss(logp, sampled, credit, torch.tensor(rows), LossConfig(**options))
    found.loss.sum().backward()
    assert logp.grad is not None
    return [[round(v, 5) for v in t.tolist()] for t in (found.loss, found.importance, logp.grad)]


def test_truncated_importance_weights_by_hand() -> None:
    # the learner finds the tokens 1.5, 4 and 0.5 times as likely as the policy that sampled them
    given = ([0.2, 0.1, 0.8], [0.3, 0.4, 0.4], [0, 0, 1])
    assert losses(*given) == [[-1.5, -2.0, -0.5], [1.5, 2.0, 0.5], [-1.5, -2.0, -0.5]]
    assert losses(*given, advantage=-2.0) == [[3.0, 4.0, 1.0], [1.5, 2.0, 0.5], [3.0, 4.0, 1.0]]
    # by row: 1.5 x 4 = 6, truncated at 8 and at 2
    assert losses(*given, importance="sequence", importance_cap=8.0)[1] == [6.0, 6.0, 0.5]
    assert losses(*given, importance="sequence")[1] == [2.0, 2.0, 0.5]
    # none: the clipped ratio against the policy itself, 1.5 and 4 at 1.2
    assert losses(*given, importance="none") == [[-1.2, -1.2, -0.5], [1.0, 1.0, 1.0], [0.0, 0.0, -0.5]]


def test_equal_engines_give_the_plain_policy_gradient() -> None:
    for options in ({}, {"importance": "none"}, {"importance": "sequence"}, {"ratio": "sequence"}):
        assert losses([0.2, 0.7], [0.2, 0.7], [0, 0], 3.0, **options) == [[-3.0, -3.0], [1.0, 1.0], [-3.0, -3.0]]


def test_gspo_by_hand() -> None:
    gspo = {"ratio": "sequence", "importance": "none"}
    # row 0: ratios 2 and 1/2, geometric mean 1; row 1: 1.21 and 1, mean 1.1; row 2: 4 and 1, mean 2, clipped at 1.2
    given = ([0.2, 0.4, 0.5, 0.5, 0.1, 0.5], [0.4, 0.2, 0.605, 0.5, 0.4, 0.5], [0, 0, 1, 1, 2, 2])
    loss, weight, gradient = losses(*given, **gspo)
    assert loss == [-1.0, -1.0, -1.1, -1.1, -1.2, -1.2]
    assert weight == [1.0] * 6
    assert gradient == [-1.0, -1.0, -1.1, -1.1, 0.0, 0.0]


def test_a_loss_of_whole_sequences_can_come_from_outside() -> None:
    """A surrogate is told the row of each token: GSPO written as one is GSPO."""

    def own(logp: Tensor, old: Tensor, advantage: Tensor, rows: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
        mean = row_sums(logp - old, rows) / row_sums(torch.ones_like(old), rows).clamp_min(1)
        ratio = mean[rows].exp()
        kept = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        return torch.maximum(-advantage * ratio, -advantage * kept), (ratio != kept).float()

    given = ([0.2, 0.4, 0.5, 0.5, 0.1, 0.5], [0.4, 0.2, 0.605, 0.5, 0.4, 0.5], [0, 0, 1, 1, 2, 2])
    mine = losses(*given, importance="none", surrogate=own)
    assert mine[:2] == losses(*given, importance="none", ratio="sequence")[:2]
    assert mine[2] == [-1.0, -1.0, -1.1, -1.1, 0.0, 0.0]  # over a row the sum of both gradients is the same


def test_kl_estimates_by_hand() -> None:
    # the learner gives 1/2 where the reference gives 1/4: d = -ln 2
    logp, reference = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    found = [kl_estimate(logp, reference, kind).item() for kind in ("k1", "k2", "k3")]
    assert found == pytest.approx([math.log(2), math.log(2) ** 2 / 2, 0.5 + math.log(2) - 1], abs=1e-6)


@each_case("kind", ["k1", "k2", "k3"])
def test_the_mean_of_every_estimate_is_the_kl(kind) -> None:
    learner, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    exact = float((learner * (learner / reference).log()).sum())
    mean = float((learner * kl_estimate(learner.log(), reference.log(), kind)).sum())
    assert mean == pytest.approx(exact, rel=0.05 if kind == "k2" else 1e-5)  # k2 is biased, slightly


@each_case(
    "wrong",
    [
        *({"clip_low": 0.0}, {"clip_low": 1.5}, {"dual_clip": 1.0}, {"importance_cap": 0.5}, {"kl_coef": -1.0}),
        *({"clip_high": math.nan}, {"kl_coef": math.nan}, {"importance_cap": math.inf}, {"norm_tokens": 0}),
    ],
)
def test_a_loss_that_makes_no_sense_is_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: must be "):
        LossConfig(**wrong)


def test_k3_by_hand() -> None:
    # d = reference - logp = ln 2: 2 - ln 2 - 1 = 0.3069; d = -ln 2: 0.5 + ln 2 - 1 = 0.1931
    logp = torch.tensor([-1.0, -1.0, -1.0])
    found = k3(logp, logp + torch.tensor([math.log(2), -math.log(2), 0.0]))
    assert found.tolist() == pytest.approx([0.306853, 0.193147, 0.0], abs=1e-6)


def test_k3_of_rounding_differences_is_not_negative() -> None:
    # exp(d) - d - 1 in float32 gave -3e-10 on the mean of differences that are mere rounding; d² / 2 is the truth there
    d = torch.linspace(-1e-3, 1e-3, 20_001)
    found = k3(torch.zeros_like(d), d)
    assert found.min() >= 0
    assert found.mean().item() == pytest.approx(d.double().square().mean().item() / 2, rel=1e-3)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 8)), min_size=1, max_size=12), st.randoms(), st.data())
def test_any_split_adds_up_to_the_same_loss(sizes, random, data) -> None:
    rows = [row(n, f"r{i}", n + extra) for i, (n, extra) in enumerate(sizes)]
    budget = data.draw(st.integers(max(len(r.token_ids) for r in rows), 60))
    shuffled = list(rows)
    random.shuffle(shuffled)
    parts = batches(shuffled, budget, SHIPPED_FAMILY)
    if any(n for n, _ in sizes):
        losses = {r.id: float(i + 1) for i, r in enumerate(rows)}  # of every token of a row
        for aggregation in ("token-mean", "seq-mean-token-mean"):
            weights = dict(zip([r.id for r in rows], row_weights(rows, aggregation, 10), strict=True))
            total = sum(weights[r.id] * losses[r.id] * sum(r.mask) for part in parts for r in part)
            means = [(losses[r.id], sum(r.mask)) for r in rows if any(r.mask)]
            if aggregation == "token-mean":
                expected = sum(v * n for v, n in means) / sum(n for _, n in means)
            else:
                expected = sum(v for v, _ in means) / len(means)
            assert total == pytest.approx(expected)


def test_an_empty_mask_is_refused() -> None:
    with pytest.raises(InputError, match="empty training mask"):
        imitation_row("x", [((1, 2), False)], [])
    assert imitation_row("x", [((1, 2), False), ((3,), True)], []).mask == (0, 0, 1)


@each_case(
    ("names", "said"),
    [
        ([], "is empty"),
        (["tool", "answer", "tool"], "'tool' is given twice"),
        (["../x"], "'../x' is not a name"),
        (["a/b"], "'a/b' is not a name"),
        ([""], "'' is not a name"),
    ],
)
def test_each_phase_keeps_its_model_under_its_own_name(names: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^rl.phases.*{said}"):
        require_phases(names)
    require_phases(["tools", "answers_b"])


def test_curriculum() -> None:
    assert [locate((3, 2), s) for s in range(5)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    with pytest.raises(ValueError, match="beyond the last"):
        locate((3, 2), 5)
    drawn = [i for step in range(6) for i in batch_indices(9, 3, step, seed=4)]
    assert sorted(drawn[:9]) == sorted(drawn[9:]) == list(range(9))
    assert drawn[:9] != drawn[9:]
    first = [i for step in range(6) for i in round_indices(9, 3, step, 0, seed=4)]
    assert first == drawn  # an epoch is one, however many further rounds there might be
    assert len({tuple(round_indices(50, 5, step, n, seed=4)) for step in range(2) for n in range(3)}) == 6
    for step in range(20):  # a step asks no question again before it has asked all
        rounds = [i for n in range(4) for i in round_indices(20, 5, step, n, seed=4)]
        assert len(set(rounds)) == 20
        assert len(round_indices(20, 5, step, 4, seed=4)) == 5
    assert sorted([*batch_indices(3, 4, 0, 0), *batch_indices(3, 4, 1, 0), *batch_indices(3, 4, 2, 0)]) == sorted(
        [0, 1, 2] * 4
    )
    with pytest.raises(ConfigError, match="cannot draw 2 samples a step from 0"):
        batch_indices(0, 2, 0, 0)


def test_monitor_counts_what_it_leaves_out() -> None:
    one, two = group(1, 0, None), group(0.5, 0.5)
    broken = replace(one.members[2].trajectory, stop=Stop.BROKEN)
    one = Group(one.sample, (*one.members[:2], replace(one.members[2], trajectory=broken)))
    found = describe([one, two])
    assert found["rollouts"] == 5
    assert found["broken"] == pytest.approx(0.2)
    assert found["unjudged"] == pytest.approx(0.2)
    assert found["reward"] == pytest.approx(0.5)  # (1 + 0 + 0.5 + 0.5) / 4
    assert found["frac_reward_zero_std"] == 0.5
    assert found["reward_std"] == pytest.approx(math.sqrt(0.5) / 2)
    assert "accuracy" not in found
    assert describe([])["rollouts"] == 0


def test_the_mean_of_both_tool_parts_is_over_rollouts_that_have_both() -> None:
    members = group(1, 0, 0, 0).members
    parts = [{"tool_global": 1.0}, {"tool_answer": 0.5}, {"tool_global": 0.5, "tool_answer": 0.25}]
    named = [make_scored(m.trajectory, {}, given) for m, given in zip(members, [*parts, {"answer": 1.0}], strict=True)]
    one, two = (describe([Group(members[0].trajectory.sample, tuple(some))]) for some in (named, named[:1]))
    assert one["tool_reward"] == 0.375
    assert "tool_reward" not in two


def test_monitor_counts_answers_that_name_the_questions_own_image() -> None:
    """Of three answers with an index one names image 0; the fourth has none."""
    members = group(1, 0, 0, 0).members
    signals = [{"answer_index": index} for index in (0, 1, 2, None)]
    named = tuple(replace(m, signals=Signals(values)) for m, values in zip(members, signals, strict=True))
    assert describe([Group(members[0].trajectory.sample, named)])["answer_index_0"] == pytest.approx(1 / 3)


def test_the_advantages_distribution() -> None:
    """One value a trajectory, the mean of its turns; None, and a trajectory without turns, are in none."""
    found = credit_spread([[(1.5,), (-0.5, -0.5), None], [(-0.5,), (-0.5,), ()], [(0.0,)]])
    assert found["advantage/mean"] == pytest.approx(0.0)
    assert found["advantage/std"] == pytest.approx(math.sqrt(3.0 / 5))  # (2.25 + 3 · 0.25 + 0) / 5
    assert [found[f"advantage/{name}"] for name in ("p10", "p50", "p90")] == pytest.approx([-0.5, -0.5, 0.9])
    assert found["advantage/zero"] == pytest.approx(0.2)
    assert credit_spread([[None]]) == {}


def test_a_model_that_wants_markers_ends_the_run() -> None:
    for mass in (None, 0.0, 0.01):
        refuse_banned_mass(mass, 0.01, "step 3")
    with pytest.raises(EngineError, match=r"step 3: .* 1.20% .*rl.max_banned_mass=1.00%"):
        refuse_banned_mass(0.012, 0.01, "step 3")


def test_mini_batches_are_contiguous_parts_of_what_has_credit():
    credit = [[(1.0,), None, (0.0,)], [(2.0, 2.0), (1.0,), (-1.0,)]]
    assert minibatches(credit, 2) == [[0, None, 0], [0, 1, 1]]
    assert minibatches(credit, 1) == [[0, None, 0], [0, 0, 0]]
    assert minibatches([[None]], 3) == [[None]]


def test_with_an_anchor_the_ratio_is_taken_to_it_and_the_weight_from_the_sampler_to_it():
    logp, anchor, sampled = (torch.tensor(v).log() for v in ([0.3], [0.2], [0.1]))
    config = LossConfig(clip_high=1.0, clip_low=1.0, importance_cap=5.0)
    found = policy_loss(logp, sampled, torch.tensor([1.0]), torch.tensor([0]), config, anchor)
    assert float(found.importance) == pytest.approx(2.0)  # 0.2 / 0.1
    assert float(found.loss) == pytest.approx(-2.0 * 1.5)  # and the ratio is 0.3 / 0.2
