"""The turns of policy and learner: every order of events, every failure, against fakes that refuse what must not be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcli.engines.phases import Phases
from vtcli.errors import EngineError


@dataclass
class Device:
    """One GPU with room for the engine's cache or the learner's states, not for both; its calls, in order."""

    engine: set[str] = field(default_factory=lambda: {"weights", "cache"})
    learner: set[str] = field(default_factory=set[str])
    calls: list[str] = field(default_factory=list[str])
    fails_at: int = -1  # the call that fails, counted from 0

    def call(self, name: str) -> None:
        self.calls.append(name)
        if len(self.calls) - 1 == self.fails_at:
            raise RuntimeError(f"{name} failed")

    def check(self) -> None:
        assert not ("cache" in self.engine and self.learner), (self.engine, self.learner)
        assert not ({"weights"} <= self.engine and "states" in self.learner), (self.engine, self.learner)


@dataclass
class FakePolicy:
    """Level 2: weights are gone after sleep."""

    device: Device
    version: int = 0
    good: bool = True  # its weights are a model's

    def complete(self) -> None:
        assert self.good
        assert self.device.engine == {"weights", "cache"}

    def update(self, weights: Mapping[str, Any], version: int) -> None:
        self.device.call("update")
        assert weights["on"] == "device"
        self.device.engine.add("weights")
        self.version, self.good = version, True
        self.device.check()

    def sleep(self) -> None:
        self.device.call("engine sleeps")
        self.device.engine.clear()
        self.good = False

    def wake(self) -> None:
        self.device.call("engine wakes")
        assert self.good, "a cache for weights that are gone"
        self.device.engine.add("cache")
        self.device.check()


@dataclass
class FakeLearner:
    device: Device

    def weights(self, *, keep: bool = True) -> Mapping[str, Any]:
        self.device.call("weights" if keep else "weights of others")
        return {"on": "device" if "weights" in self.device.learner else "host"}

    def step(self) -> None:
        assert self.device.learner == {"weights", "states"}

    def sleep(self, *, weights: bool = True) -> None:
        self.device.call("learner sleeps" if weights else "states leave")
        self.device.learner -= {"states", "weights"} if weights else {"states"}

    def wake(self) -> None:
        self.device.call("learner wakes")
        self.device.learner |= {"states", "weights"}
        self.device.check()


def opened(fails_at: int = -1) -> tuple[Device, FakePolicy, FakeLearner, Phases]:
    device = Device(fails_at=fails_at)
    policy, learner = FakePolicy(device), FakeLearner(device)
    return device, policy, learner, Phases(policy, learner, engine_sleeps=True, learner_sleeps=True)


@pytest.mark.parametrize("leads", [True, False])
def test_only_the_rank_that_leads_servers_keeps_the_weights(leads: bool) -> None:
    class Servers(FakePolicy):
        leads = False

    device = Device()
    policy = Servers(device)
    policy.leads = leads
    phases = Phases(policy, FakeLearner(device), engine_sleeps=True, learner_sleeps=True)
    phases.learn()
    phases.generate(1)
    assert device.calls[3] == ("weights" if leads else "weights of others")


def test_one_step_in_order() -> None:
    device, policy, learner, phases = opened()
    phases.generate(0)  # as it was opened
    policy.complete()
    phases.learn()
    learner.step()
    phases.generate(1)
    policy.complete()
    assert device.calls == [
        "engine sleeps",
        "learner wakes",
        "states leave",
        "weights",
        "update",
        "learner sleeps",
        "engine wakes",
    ]
    assert policy.version == 1


@given(st.lists(st.sampled_from(["generate", "learn"]), max_size=8), st.integers(-1, 30))
def test_whatever_the_order_and_whatever_fails_nobody_works_while_asleep(events: list[str], fails_at: int) -> None:
    device, policy, learner, phases = opened(fails_at)
    version, broken, before = 0, False, 0
    for event in events:
        before = len(device.calls)
        try:
            if event == "generate":
                phases.generate(version)
                policy.complete()
            else:
                phases.learn()
                learner.step()
                version += 1 if phases.turn == "learning" else 0
        except (RuntimeError, EngineError) as error:
            refused = isinstance(error, EngineError)
            reached = phases.turn
            after = len(device.calls)
        else:
            refused, reached, after = False, phases.turn, -1
        if refused:  # a device of which nothing is known is not touched again
            assert (broken, reached, after) == (True, None, before)
        elif after >= 0:
            assert (broken, reached) == (False, None)
            broken = True
        else:
            assert (broken, reached) == (False, "generating" if event == "generate" else "learning")


def test_a_change_after_one_that_failed_says_what_failed() -> None:
    *_, phases = opened(fails_at=1)
    with pytest.raises(RuntimeError, match="learner wakes failed"):
        phases.learn()
    with pytest.raises(EngineError, match=r"refused: an earlier change failed \(learner wakes failed\)"):
        phases.generate(0)


def test_new_weights_need_the_learners_turn() -> None:
    *_, phases = opened()
    with pytest.raises(EngineError, match=r"version 1 without the learner's turn"):
        phases.generate(1)
    assert phases.turn == "generating"


def test_an_engine_that_slept_gets_its_weights_again_even_if_nothing_was_learnt() -> None:
    device, policy, _, phases = opened()
    phases.learn()
    phases.generate(0)
    policy.complete()
    assert "update" in device.calls


def test_without_sleep_only_new_weights_travel() -> None:
    device = Device(learner={"weights", "states"})
    policy = FakePolicy(device)
    device.check = lambda: None  # type: ignore[method-assign]  # room for both
    phases = Phases(policy, FakeLearner(device), engine_sleeps=False, learner_sleeps=False)
    for version in (0, 1, 1):
        phases.learn()
        phases.generate(version)
        policy.complete()
    phases.generate(2)  # with steps_ahead the engine has generated all along
    assert device.calls == ["weights", "update"] * 2
    assert policy.version == 2
