"""Signals that stored trajectories lack are measured; what is stored stays, and no judge is asked in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import each_case
from fakes import make_sample, make_trajectory

from vtcli.config.binding import bind
from vtcli.errors import ConfigError, InputError
from vtcli.judging.oracle import open_judge
from vtcli.schema import Signals, Trajectory
from vtcli.scoring.missing import Completer, needs_judge
from vtcli.scoring.stored import Facts
from vtcli.signals import JOINED, OPTIONAL, answer, consistency, evidence, names_of, usage
from vtcli.signals import format as format_rule
from vtcli.store.images import ImageStore

ALL = yaml.safe_load((Path(__file__).parents[2] / "conf" / "signals" / "all.yaml").read_text())
FACTS = Facts("t", "s", "zoom", "answer", 0)


class Asked:
    """A signal that a judge is asked for: what it gives, and how often it was called."""

    def __init__(self, value: Any, unjudged: bool = False) -> None:
        self.value, self.unjudged, self.calls = value, unjudged, 0

    async def __call__(self, trajectory: Trajectory) -> Mapping[str, Any]:
        self.calls += 1
        return {"opinion": self.value, "judged": ["opinion"], "unjudged": ["opinion"] if self.unjudged else []}


def trajectory(tmp_path: Path) -> Trajectory:
    store = ImageStore(tmp_path)
    zoom = ("image_zoom_in_tool", {"image_idx": 0, "bbox_2d": [20, 30, 60, 70]})
    return make_trajectory(make_sample(store), [zoom, "<answer>K</answer>"], store)


def complete(completer: Completer, stored: Mapping[str, Any], made: Trajectory | None) -> Mapping[str, Any]:
    return asyncio.run(completer.complete(FACTS, Signals(stored), made)).values


def nothing(facts: Facts, signals: Signals) -> set[str]:
    return set()


@each_case("name", sorted({*ALL, "consistency"}))
def test_every_signal_gives_what_its_module_declares(name: str, tmp_path: Path) -> None:
    node = ALL.get(name) or {"_target_": "vtcli.signals.consistency.measure"}
    signal = bind(node, name)
    if needs_judge(signal):
        signal = partial(signal, judge=open_judge())
    found = asyncio.run(signal(trajectory(tmp_path)))
    assert set(found) - set(JOINED) == names_of(signal) - OPTIONAL


def test_missing_signals_are_measured_and_stored_ones_stay(tmp_path: Path) -> None:
    completer = Completer(
        {"answer": answer.measure, "format": format_rule.measure, "usage": usage.measure}, (), nothing
    )
    stored = {"answer_score": 0.25, "format_ok": False}
    found = complete(completer, stored, trajectory(tmp_path))
    assert found["answer_score"] == 0.25  # as stored, though the answer is right
    assert found["answer_correct"] == 1
    assert found["format_ok"] is False
    assert found["calls"] == 1


def test_an_answer_without_an_error_of_its_rule_is_complete(tmp_path: Path) -> None:
    completer = Completer({"answer": answer.measure}, (), nothing)
    made = trajectory(tmp_path)
    stored = complete(completer, {}, made)
    assert "answer_error" not in stored
    assert asyncio.run(completer.complete(FACTS, Signals(stored), made)).values is stored


def test_what_is_complete_is_not_touched(tmp_path: Path) -> None:
    stored = Signals(dict.fromkeys(format_rule.NAMES, True))
    completer = Completer({"format": format_rule.measure}, (), nothing)
    assert asyncio.run(completer.complete(FACTS, stored, trajectory(tmp_path))) is stored


def test_measure_never_uses_what_is_stored_only(tmp_path: Path) -> None:
    completer = Completer({"usage": usage.measure}, (), nothing, measure="never")
    assert complete(completer, {"calls": 3}, trajectory(tmp_path)) == {"calls": 3}


def test_a_judge_is_asked_only_for_what_a_reward_wants(tmp_path: Path) -> None:
    signal, made = Asked(0.5), trajectory(tmp_path)
    assert complete(Completer({"opinion": signal}, ["opinion"], nothing), {}, made) == {}
    assert signal.calls == 0
    wants = lambda _, s: set() if "opinion" in s.values else {"opinion"}  # noqa: E731
    completer = Completer({"opinion": signal}, ["opinion"], wants)
    assert complete(completer, {}, made) == {"opinion": 0.5, "judged": ["opinion"]}
    assert complete(completer, {"opinion": 0.25}, made) == {"opinion": 0.25}  # stored: nobody is asked
    assert signal.calls == 1


def test_what_was_left_unjudged_is_asked_again(tmp_path: Path) -> None:
    wants = lambda _, s: set(s.values.get("unjudged") or ())  # noqa: E731
    stored = {"opinion": None, "judged": ["opinion", "x"], "unjudged": ["opinion", "x"], "x": None}
    completer = Completer({"opinion": Asked(1.0)}, ["opinion"], wants)
    completer._names["opinion"] = frozenset({"opinion"})  # as its module would declare
    found = complete(completer, stored, trajectory(tmp_path))
    assert found == {"opinion": 1.0, "judged": ["x", "opinion"], "unjudged": ["x"], "x": None}


def test_a_signal_is_measured_again_when_told(tmp_path: Path) -> None:
    completer = Completer({"usage": usage.measure}, (), nothing, again=["usage"])
    assert complete(completer, {"calls": 7}, trajectory(tmp_path))["calls"] == 1
    with pytest.raises(InputError, match="scores hold signals and no trajectories"):
        complete(completer, {"calls": 7}, None)


def test_two_signals_of_one_name_are_refused_as_in_training(tmp_path: Path) -> None:
    async def own(trajectory: Trajectory) -> Mapping[str, Any]:
        return {"calls": 9}

    completer = Completer({"usage": usage.measure, "own": own}, (), nothing, again=["own"])
    with pytest.raises(ConfigError, match=r"signals: \['calls'\] is measured twice, by own too"):
        complete(completer, {"calls": 7}, trajectory(tmp_path))


def test_signals_that_need_a_judge_are_known_by_their_parameter() -> None:
    assert needs_judge(evidence.measure)
    assert needs_judge(consistency.measure)
    assert not needs_judge(answer.measure)  # rules first
    assert not needs_judge(usage.measure)


def test_a_judge_that_need_not_be_asked_counts_where_it_was(tmp_path: Path) -> None:
    """As for answers, where rules come first."""
    made = trajectory(tmp_path)
    completer = Completer({"opinion": Asked(None, unjudged=True), "usage": usage.measure}, (), nothing)
    complete(completer, {}, made)
    complete(completer, {"opinion": 1.0}, made)  # stored: nobody is asked
    assert [found.values["unjudged"] for found in completer.asked] == [["opinion"]]


def test_a_trajectory_counts_once_however_often_its_judge_is_asked(tmp_path: Path) -> None:
    async def other(trajectory: Trajectory) -> Mapping[str, Any]:
        return {"other": None, "judged": ["other"], "unjudged": ["other"]}

    def wants(facts: Facts, signals: Signals) -> set[str]:
        return {"other"} if "opinion" in signals.values else {"opinion"}

    completer = Completer({"opinion": Asked(1.0), "other": other}, ["opinion", "other"], wants)
    completer._names.update(opinion=frozenset({"opinion"}), other=frozenset({"other"}))
    complete(completer, {}, trajectory(tmp_path))
    assert len(completer.asked) == 1
