"""CodeDance's adaptive reward by hand, the table of d(mu), and its turns through the turn-level advantage."""

from __future__ import annotations

import asyncio
import math

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from vtcli.algo.advantages import turn_level
from vtcli.config import compose
from vtcli.config.binding import bind
from vtcli.errors import ConfigError
from vtcli.rewards.codedance import CodedanceWeights, Scaling, Turns, adaptive, difficulty, turn_returns
from vtcli.schema import Completion, Group, PolicyTurn, Sample, Scored, Signals, Stop, Trajectory
from vtcli.signals import usage

MUS = (0, 0.25, 0.5, 0.625, 0.75, 0.875, 1)


def signals(right, *turns, **changes):
    base = {"stop": "answered", "format_codedance": True, "answer_correct": right, "task": "count"}
    return Signals(base | {"turn_calls": [list(turn) for turn in turns]} | changes)


@each_case(
    ("scaling", "row"),
    [
        (Scaling(), (0.782, 0.681, 0.300, 0.069, -0.081, -0.153, -0.182)),  # gamma 4, beta 0.2
        (Scaling(4, 0.1), (0.882, 0.781, 0.400, 0.169, 0.019, -0.053, -0.082)),
        (Scaling(5, 0.2), (0.793, 0.724, 0.300, 0.023, -0.124, -0.177, -0.193)),
        (Scaling(0, 0.2), (0.3,) * 7),  # flat: sigma(0) - beta, whatever the accuracy
        (Scaling(4, 0.0), (0.982, 0.881, 0.500, 0.269, 0.119, 0.047, 0.018)),
    ],
)
def test_the_table_of_d(scaling, row):
    assert [difficulty(mu, scaling) for mu in MUS] == pytest.approx(row, abs=6e-4)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.5, 8), st.floats(0.01, 0.6))
def test_d_is_bounded_falls_and_changes_its_sign_once(a, b, gamma, beta):
    """8.2.2: -beta < d < 1 - beta, strictly falling, zero at 1/2 + ln((1 - beta) / beta) / (2 gamma)."""
    scaling = Scaling(gamma, beta)
    assert -beta < difficulty(a, scaling) < 1 - beta
    if a < b - 1e-6:
        assert difficulty(a, scaling) > difficulty(b, scaling)
    logistic = 1 / (1 + math.exp(-gamma * (1 - 2 * a))) - beta  # sigma(gamma (1 - 2 mu)) - beta, the paper's form
    assert difficulty(a, scaling) == pytest.approx(logistic)
    zero = 0.5 + math.log((1 - beta) / beta) / (2 * gamma)
    assert difficulty(zero, scaling) == pytest.approx(0, abs=1e-9)


def test_an_outcome_reward_pays_nothing_for_tools():
    """4.4 and table 3: "focuses only on final-answer correctness". Right with a call that ran: 1; wrong: 0. It needs
    no judge for the tool's part."""
    group = [signals(1, ["ok"], []), signals(0, ["ok"], []), signals(None, ["ok"], [], unjudged=["answer_correct"])]
    verdicts = adaptive(group, weights=CodedanceWeights(tool=0.0))
    assert [v and v.total for v in verdicts] == [1.0, 0.0, None]
    assert [v and v.parts["tool"] for v in verdicts] == [0.0, 0.0, 0.0]
    assert [v and v.total for v in adaptive(group[:2])] == pytest.approx(
        [1.45, 0.15]
    )  # d(0.5) = 0.3: 1.5 and 0.5 of it


def test_the_bonus_of_deepeyes_by_hand():
    """4.4: "positive signals for every successful tool execution upon accurate answer". Format and weights are the
    recipe's; nothing depends on the group."""
    group = [
        signals(1, ["ok"], ["error"], []),  # 1 + 1, though one call of two failed
        signals(1, ["no_output"], []),  # 1: no call was successful
        signals(0, ["ok"], [], format_codedance=False),  # 0 - 0.2
        signals(1, ["ok"], [], source="xince"),  # 1.2 + 1
    ]
    found = adaptive(group, math_tasks=("xince",), scaling=Scaling(term="conditional"))
    assert [v.total for v in found] == pytest.approx([2.0, 1.0, -0.2, 2.2])
    assert [v.parts["tool"] for v in found] == [1.0, 0.0, 0.0, 1.0]
    (unjudged,) = adaptive(
        [signals(None, ["ok"], [], unjudged=["answer_correct"])], scaling=Scaling(term="conditional")
    )
    assert (unjudged.total, unjudged.parts["tool"]) == (None, None)


def test_the_sign_flips_at_two_thirds_by_default():
    assert difficulty(0.673) == pytest.approx(0, abs=2e-3)


def test_a_group_by_hand():
    """Accuracy 1/4, so d = sigma(2) - 0.2 = 0.68080."""
    d = 1 / (1 + math.exp(-2)) - 0.2
    group = [
        signals(1, ["ok"], ["error"], []),  # 1 + 0 + d * 1.5 * 1/2
        signals(0, ["ok"], ["ok"], [], format_codedance=False),  # 0 - 0.2 + d * 0.5 * 1
        signals(0, []),  # no call: 0
        signals(0, ["no_output"], []),  # comments only: a failed call
    ]
    found = adaptive(group)
    assert [v.total for v in found] == pytest.approx([1 + 0.75 * d, -0.2 + 0.5 * d, 0.0, 0.0])
    assert found[0].total == pytest.approx(1.5106, abs=1e-4)
    assert found[0].parts == pytest.approx({"answer": 1.0, "tool": 0.75 * d, "format": 0.0})


def test_in_an_easy_group_a_call_costs_even_where_the_answer_is_right():
    """All right: d = sigma(-4) - 0.2 = -0.18201; three of four use a call each."""
    d = 1 / (1 + math.exp(4)) - 0.2
    found = adaptive([signals(1, ["ok"], [])] * 3 + [signals(1, [])])
    assert [v.total for v in found] == pytest.approx([1 + 1.5 * d] * 3 + [1.0])


def test_in_a_hard_group_a_call_pays_even_where_the_answer_is_wrong():
    """All wrong: d = sigma(4) - 0.2 = 0.78201, times 0.5."""
    d = 1 / (1 + math.exp(-4)) - 0.2
    assert [v.total for v in adaptive([signals(0, ["ok"], []), signals(0, [])])] == pytest.approx([0.5 * d, 0.0])


def test_a_group_of_one_is_its_own_accuracy():
    assert adaptive([signals(1, ["ok"], [])])[0].total == pytest.approx(1 - 1.5 * 0.18201, abs=1e-4)


def test_mathematical_tasks_have_weights_of_their_own():
    """All right: 1.2 + d * 2 * 1; a wrong format costs 0.4."""
    d = difficulty(1.0)
    group = [signals(1, ["ok"], [], task="geometry"), signals(1, [], task="geometry", format_codedance=False)]
    found = adaptive(group, math_tasks=("geometry",))
    assert [v.total for v in found] == pytest.approx([1.2 + 2 * d, 0.8])


def test_an_imported_row_has_the_weights_of_its_source():
    """The released code routes by data_source. The configured task is whatever the user calls the imported set. All
    right, a wrong format: 1.2 + 2 d - 0.4 for a mathematical source, 1 + 1.5 d - 0.2 for another."""
    sample = Sample("s", "codedance_rl", "answer", "train", "?", "3", (), (), truth={"source": "xince"})
    measured = asyncio.run(usage.measure(Trajectory("t", sample, (), (), (), Stop.ANSWERED, 0)))
    assert (measured["source"], measured["task"]) == ("xince", "codedance_rl")
    named = {key: measured[key] for key in ("source", "task")}
    plain = named | {"source": "SA1B"}
    group = [signals(1, ["ok"], [], format_codedance=False, **each) for each in (named, plain)]
    math_tasks = compose.load("rl", ["+recipe=codedance", "scale=paper"]).values["rl"]["phases"][0]["reward"][
        "math_tasks"
    ]
    d = difficulty(1.0)
    found = adaptive(group, math_tasks=tuple(math_tasks))
    assert [v.total for v in found] == pytest.approx([0.8 + 2 * d, 0.8 + 1.5 * d])


def test_the_released_code_takes_the_mean_score_for_mu():
    """Scores 1 and 0 - 0.2 have mean 0.4, not 0.5."""
    group = [signals(1, ["ok"], []), signals(0, [], format_codedance=False)]
    found = adaptive(group, scaling=Scaling(mu="score"))
    assert found[0].parts["tool"] == pytest.approx(1.5 * difficulty(0.4))
    assert adaptive(group)[0].parts["tool"] == pytest.approx(1.5 * difficulty(0.5))


def test_broken_and_unjudged_members_do_not_count_in_mu():
    unjudged = {"unjudged": ["answer_correct"]}
    group = [signals(1, ["ok"], []), Signals({"stop": "broken"}), signals(None, ["ok"], [], **unjudged)]
    found = adaptive([*group, signals(None, [], **unjudged)])
    assert found[0].parts["tool"] == pytest.approx(1.5 * difficulty(1.0))
    assert found[1] is None
    assert (found[2].total, found[2].parts) == (None, {"answer": None, "tool": None, "format": 0.0})
    assert (found[3].total, found[3].parts["tool"]) == (None, 0.0)  # no call, nothing to weigh
    (alone,) = adaptive([signals(None, ["ok"], [], **unjudged)])
    assert alone.parts["tool"] is None  # nobody knows mu


@each_case(
    ("turns", "returns"),
    [
        ([["error"], ["ok"], ["timeout"], []], (-0.52, -0.1, -0.5, 0.0)),  # -0.5 + 0.2 (0 + 0.2 (-0.5))
        ([["ok"], ["ok"], []], (0.0, 0.0, 0.0)),
        ([["ok", "error"], []], (-0.5, 0.0)),  # one penalty a turn
        ([[]], (0.0,)),
        ([["error"]], (0.0,)),  # the last turn has none
        ([], ()),
    ],
)
def test_returns_of_turns_by_hand(turns, returns):
    assert turn_returns(turns, Turns()) == pytest.approx(returns)
    (verdict,) = adaptive([signals(1, *turns)])
    assert verdict.per_turn == pytest.approx(returns)


def test_failed_turns_reach_only_their_own_advantage():
    """Two trajectories of equal reward 0 (no call succeeded, both wrong), so the sequence's advantage is 0.

    Early turns' returns: -0.5 | -0.6, -0.5 of (error, error, answer); mean -16/30, deviation sqrt(2)/30."""
    group = [signals(0, ["error"], []), signals(0, ["error"], ["error"], [])]
    turn = PolicyTurn(Completion((1,), (0.0,), "stop"), "", (), None, 0)
    sample = Sample("s", "count", "answer", "train", "?", "3", (), ())
    members = tuple(
        Scored(Trajectory(str(i), sample, (), (), (turn,) * n, Stop.ANSWERED, i), s, v)
        for i, (n, s, v) in enumerate(zip((2, 3), group, adaptive(group), strict=True))
    )
    (credit,) = turn_level([Group(sample, members)])
    fine, bad = 0.2 / math.sqrt(2), -0.2 * math.sqrt(2)  # 0.2 (1/30) / (sqrt(2)/30), 0.2 (-2/30) / (sqrt(2)/30)
    assert credit[0] == pytest.approx((fine, 0.0))
    assert credit[1] == pytest.approx((bad, fine, 0.0))


def test_wrong_values_of_the_scaling_are_named():
    node = {"_target_": "vtcli.rewards.codedance.adaptive"}
    with pytest.raises(ConfigError, match=r"r\.scaling: gamma=4 must not be negative, beta=1 must lie in"):
        bind(node | {"scaling": {"beta": 1}}, "r")
