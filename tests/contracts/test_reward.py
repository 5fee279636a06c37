"""One contract over every reward: as each recipe and variant sets it, with its own defaults, and one from outside."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from outside import somebody

import vtcli.rewards
from vtcli.config.binding import bind
from vtcli.errors import ConfigError
from vtcli.protocols import Reward
from vtcli.rewards import codedance, codev, codevision, consistency, deepeyes, grpo_accuracy, pyvision, toolsrl, world
from vtcli.rewards import verdicts as checked
from vtcli.schema import Signals

CONF = Path(__file__).parents[2] / "conf"
BRIEF = partial(somebody().brief, most=50)
NEEDS: Mapping[Any, tuple[str, ...]] = {
    codev.tapo: ("answer_correct", "format_codev", "red_lines", "evidence"),
    codevision.strategic: ("answer_correct", "format_codevision", "required", "operations", "turn_calls"),
    codedance.adaptive: ("answer_correct", "format_codedance", "turn_calls"),
    consistency.accuracy_and_consistency: ("answer_correct", "consistency", "format_thyme"),
    deepeyes.conditional: ("answer_score", "format_ok"),
    grpo_accuracy.accuracy: ("answer_score", "format_ok"),
    pyvision.accumulative: ("answer_correct", "turn_calls"),
    toolsrl.stage1: ("format_ok",),
    toolsrl.stage2: ("answer_score", "format_ok"),
    toolsrl.combined: ("answer_score", "format_ok"),
    world.total: ("world_reward",),
    BRIEF.func: ("letters",),
}
"""The signals that each reward needs by its defaults. The first test fails for a reward without an entry."""
JUDGED = ("answer_correct", "answer_score", "consistency", "reply_evidence")
WITHOUT_JUDGE = (toolsrl.stage1, world.total, BRIEF.func)


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """The rewards of one configuration file."""
    if isinstance(value, dict):
        if str(value.get("_target_", "")).startswith("vtcli.rewards."):
            yield value
        for each in value.values():
            yield from nodes(each)
    elif isinstance(value, list):
        for each in value:
            yield from nodes(each)


def configured() -> dict[str, Reward]:
    found: dict[str, Reward] = {}
    for path in sorted([*(CONF / "recipe").glob("*.yaml"), *(CONF / "variant").glob("*.yaml")]):
        for number, node in enumerate(nodes(yaml.safe_load(path.read_text()))):
            if isinstance(node.get("math_tasks", ()), str):  # an interpolation
                node["math_tasks"] = ["count"]
            found[f"{path.stem} {number}"] = bind(node, "reward")
    return found


def functions() -> dict[str, Reward]:
    """Every reward of the package, by its signature."""
    found: dict[str, Reward] = {}
    for module in pkgutil.iter_modules(vtcli.rewards.__path__):
        for name, function in vars(importlib.import_module(f"vtcli.rewards.{module.name}")).items():
            if inspect.isfunction(function) and function.__module__ == f"vtcli.rewards.{module.name}":
                returned = str(function.__annotations__.get("return", ""))
                if not name.startswith("_") and returned == "list[Verdict | None]":
                    found[f"{module.name}.{name}"] = function
    return found


REWARDS = {**functions(), **configured(), "from outside": BRIEF}


def of(reward: Reward) -> Any:
    return getattr(reward, "func", reward)


def measured(**changes: Any) -> Signals:
    """A trajectory of which everything is known: right, one crop that shows the evidence, a call that ran."""
    areas = [{"tp": 100, "fp": 1500, "fn": 0}]
    values = {
        **{"stop": "answered", "task": "count", "source": "own", "answer": "K", "unjudged": []},
        **{f"format_{form}": True for form in ("ok", "codev", "thyme", "codevision", "codedance")},
        **{"answer_correct": 1, "answer_score": 1.0, "consistency": 1, "reply_evidence": 0.75},
        **{"calls": 1, "calls_ok": 1, "turn_calls": [["ok"], []], "search": True, "letters": 20, "world_reward": 0.5},
        **{"evidence": [0.5], "red_lines": [[]], "required": ["crop"], "answer_map": {"a": 1}, "zoom_labels": ["a"]},
        "operations": [{"turn": 0, "name": "crop", "image": 1, "verified": True, "box": None, "iou": 0.6}],
        "zooms": [{"image": 1, "box": [], "areas": areas}],
    }
    return Signals(values | changes)


@st.composite
def trajectories(draw: Any) -> Signals:
    right, calls = draw(st.sampled_from([0, 1, None])), draw(st.integers(0, 3))
    statuses = draw(st.lists(st.sampled_from(["ok", "no_output", "error", "refused"]), min_size=calls, max_size=calls))
    score = None if right is None else right * draw(st.sampled_from([0.6, 1.0]))
    names = ("crop", "rotate_90", "rotate", "enhance")
    done = [
        (draw(st.sampled_from(names)), draw(st.sampled_from([0.0, 0.05, 0.6])), draw(st.booleans())) for _ in statuses
    ]
    return measured(
        stop=draw(st.sampled_from(["answered", "max_turns", "broken"])),
        answer_correct=right,
        answer_score=score,
        consistency=draw(st.sampled_from([0, 1, None])),
        evidence=[draw(st.sampled_from([0.0, 0.5, 1.0, None])) for _ in statuses],
        red_lines=[draw(st.sampled_from([[], ["scratch_pad"]])) for _ in statuses],
        required=draw(st.sampled_from([[], ["crop"], ["rotate_90", "crop"]])),
        operations=[
            {"turn": t, "name": n, "image": t + 1, "verified": v, "box": None, "iou": iou if n == "crop" else None}
            for t, (n, iou, v) in enumerate(done)
        ],
        turn_calls=[*([status] for status in statuses), []],
        calls=calls,
        calls_ok=statuses.count("ok"),
        letters=draw(st.integers(0, 90)),
        world_reward=draw(st.floats(-9, 9)),
        unjudged=[*JUDGED, "evidence"],
        **{f"format_{form}": draw(st.booleans()) for form in ("ok", "codev", "thyme", "codevision", "codedance")},
    )


groups = st.lists(trajectories(), min_size=1, max_size=5)


def test_every_reward_of_the_package_is_under_this_contract() -> None:
    assert {of(reward) for reward in REWARDS.values()} == set(NEEDS)
    assert {of(reward) for reward in functions().values()} | {BRIEF.func} == set(NEEDS)


@given(groups, st.randoms())
@settings(max_examples=25, deadline=None)
def test_verdicts_are_finite_sums_of_their_parts_in_any_order_of_the_group(group: list[Signals], rng: Any) -> None:
    order = rng.sample(range(len(group)), len(group))
    for name, reward in REWARDS.items():
        found = checked(reward, group)
        for signals, verdict in zip(group, found, strict=True):
            assert (verdict is None) == (signals.values["stop"] == "broken"), name
            if verdict is None:
                continue
            parts = dict(verdict.parts)
            numbers = [verdict.total, *parts.values(), *(verdict.per_turn or ())]
            assert all(value is None or math.isfinite(value) for value in numbers), (name, verdict)
            if of(reward) is toolsrl.stage1:  # the parts hold both terms of Eq. 12 before halving
                tool, answer, kept = parts["tool_global"], parts["tool_answer"], parts["format"]
                terms = [(tool + answer) / 2, tool, answer]
                assert any(verdict.total == pytest.approx(term + kept) for term in terms), (name, verdict)
            elif None in parts.values():
                assert verdict.total is None, (name, verdict)
            else:
                assert verdict.total == pytest.approx(sum(parts.values())), (name, verdict)
            if verdict.per_turn is not None:
                assert len(verdict.per_turn) == len(signals.values["turn_calls"]), (name, verdict)
        assert checked(reward, [group[place] for place in order]) == [found[place] for place in order], name


@each_case("name", REWARDS)
def test_a_broken_rollout_has_no_verdict_and_changes_nobody_elses(name: str) -> None:
    reward, fine, broken = REWARDS[name], measured(), Signals({"stop": "broken"})
    assert reward([broken]) == [None]
    assert reward([fine, broken, fine]) == [reward([fine, fine])[0], None, reward([fine, fine])[1]]
    assert reward([fine, fine])[0] is not None


@each_case("name", REWARDS)
def test_an_answer_without_a_verdict_is_no_zero(name: str) -> None:
    unjudged = measured(unjudged=list(JUDGED), **dict.fromkeys(JUDGED))
    (verdict,) = REWARDS[name]([unjudged])
    assert verdict is not None
    if of(REWARDS[name]) in WITHOUT_JUDGE:
        assert verdict.total is not None
    else:
        assert verdict.total is None and verdict.parts["answer"] is None
        assert verdict.parts["format" if "format" in verdict.parts else "tool"] is not None or "pyvision" in name


@each_case("name", REWARDS)
def test_a_signal_that_was_not_measured_is_named(name: str) -> None:
    reward = REWARDS[name]
    _, read = vtcli.rewards.apply(reward, [measured()])
    assert read >= {"stop", *NEEDS[of(reward)]} or reward not in functions().values()
    for missing in read.intersection(("stop", *NEEDS[of(reward)])):
        for values in (
            {k: v for k, v in measured().values.items() if k != missing},
            measured(**{missing: None}).values,
        ):
            with pytest.raises(ConfigError) as caught:
                reward([Signals(values)])
            assert f"{missing!r}" in str(caught.value), missing
