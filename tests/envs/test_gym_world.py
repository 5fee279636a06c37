"""Worlds of Gymnasium: a row is an episode's start, an action is a call, a reward is a signal, an end is a stop."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_model
from cases import failures
from fakes import PROMPT, make_sample
from grid_world import GridWorld
from qwen_views import sizing

from vtcli.config import compose
from vtcli.engines.scripted import ScriptedPolicy
from vtcli.envs import gym_world
from vtcli.envs.card import EnvInputs, read_card
from vtcli.errors import ConfigError, InputError
from vtcli.families.calls import format_call
from vtcli.protocols import Env
from vtcli.rewards import world
from vtcli.rollout.loop import Limits, RolloutRequest, rollout
from vtcli.schema import Sample, Signals, Stop, Trajectory
from vtcli.signals import usage
from vtcli.store import records
from vtcli.store.images import ImageStore

ACTIONS = {"left": 0, "right": 1}


def step(action: Any) -> str:
    return format_call("act", {"action": action})


def play(card: Any, sample: Sample, store: ImageStore, *turns: str, timeout_s: float = 60) -> Trajectory:
    inputs = EnvInputs(store, PROMPT)
    policy = ScriptedPolicy(tiny_model.chat(), turns)
    limits = Limits(max_turns=9, max_tokens=20_000, max_turn_tokens=500, max_images=20, timeout_s=timeout_s)

    def opened(sample: Sample) -> Env:
        return card.open(card.offer(sample), inputs)

    return asyncio.run(rollout(RolloutRequest(sample, 0), policy, tiny_model.chat(), opened, limits))


def sample_of(store: ImageStore, make: Any, item: int = 0) -> Sample:
    made = gym_world.generate(0, item, "train", make=make, question="Move the square to the right end.", name="grid")
    again = gym_world.generate(0, item, "train", make=make, question="Move the square to the right end.", name="grid")
    assert (made.digest, made.truth, made.question) == (again.digest, again.truth, again.question)
    return make_sample(store, pixels=made.pixels, id=made.id, truth=made.truth, answer="", question=made.question)


def test_an_episode_is_played_measured_and_rewarded(tmp_path: Path) -> None:
    store, make = ImageStore(tmp_path / "images", sizing()), partial(GridWorld, 4)
    card = gym_world.card(make=make, actions=ACTIONS)
    sample = sample_of(store, make)
    start = sample.truth["world_seed"] % 2
    found = play(card, sample, store, step("left"), *[step("right")] * 4)
    moves = 1 + 3 - max(start - 1, 0)
    assert found.stop is Stop.ENDED and found.error is None and len(found.results) == moves
    assert all(result.status == "ok" and result.images for result in found.results)
    assert "The episode is over." in found.results[-1].message
    red = store.full(found.images[-1])
    assert (red[20, -20] == (200, 0, 0)).all() and len(found.images) == 1 + moves
    assert "<|" not in found.results[0].message and "‹image>" in found.results[0].message
    measured = asyncio.run(usage.measure(found))
    assert measured["world_reward"] == pytest.approx(1 - 0.1 * (moves - 1)) and measured["stop"] == "ended"
    (verdict,) = world.total([Signals(dict(measured))], scale=2.0)
    assert verdict is not None and verdict.total == pytest.approx(2 * measured["world_reward"])
    records.append(tmp_path / "t.jsonl", [found])
    assert list(records.read(tmp_path / "t.jsonl", Trajectory)) == [found]


def test_a_policy_that_never_acts_has_no_reward_and_other_worlds_have_none(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images", sizing())
    found = play(gym_world.card(make=GridWorld, actions=ACTIONS), sample_of(store, GridWorld), store, "I stay.")
    assert found.stop is Stop.ANSWERED and asyncio.run(usage.measure(found))["world_reward"] == 0
    plain = make_sample(store)
    other = Trajectory("t", plain, (1,), plain.images, (), Stop.ANSWERED, 0, None)
    assert asyncio.run(usage.measure(other))["world_reward"] is None


def test_a_row_without_an_episode_and_a_world_without_a_picture_are_refused(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images", sizing())
    with pytest.raises(InputError, match="world_seed"):
        play(gym_world.card(make=GridWorld), make_sample(store), store, "x")

    class Blind(GridWorld):
        render_mode = ""

        def _seen(self) -> Any:
            return np.zeros(4)

    with pytest.raises(ConfigError, match="render_mode"):
        gym_world.generate(0, 0, "train", make=Blind, question="?", name="blind")


def test_a_world_that_raises_breaks_its_rollout_and_is_closed(tmp_path: Path) -> None:
    made = list[GridWorld]()

    class Fragile(GridWorld):
        def step(self, action: int) -> Any:
            raise RuntimeError("the simulator is gone")

    def make() -> GridWorld:
        made.append(Fragile())
        return made[-1]

    store = ImageStore(tmp_path / "images", sizing())
    found = play(gym_world.card(make=make, actions=ACTIONS), sample_of(store, GridWorld), store, step("left"))
    assert found.stop is Stop.BROKEN and "simulator is gone" in str(found.error)
    assert [each.closed for each in made] == [1]


@pytest.mark.parametrize("shape", [(1, 2000, 3), (0, 5, 3)])
def test_a_picture_that_cannot_be_shown_fails_its_call_alone(tmp_path: Path, shape: tuple[int, ...]) -> None:
    class Thin(GridWorld):
        def step(self, action: int) -> Any:
            seen, *rest = super().step(action)
            return ({**seen, "picture": np.zeros(shape, np.uint8)}, *rest)

    store = ImageStore(tmp_path / "images", sizing())
    sample = sample_of(store, GridWorld)
    found = play(gym_world.card(make=Thin, actions=ACTIONS), sample, store, step("left"), *[step("right")] * 4)
    assert found.stop is Stop.CALL_FAILED and found.error is None and len(found.images) == 1  # its end still counts
    assert "cannot be shown" in found.results[0].message and "A row of cells" in found.results[0].message
    assert {result.status for result in found.results} == {"error"}
    assert asyncio.run(usage.measure(found))["world_reward"] > 0


def test_a_disk_that_is_full_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ImageStore(tmp_path / "images", sizing())
    sample = sample_of(store, GridWorld)

    def full(*_: object, **__: object) -> None:
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise InputError("the disk is full") from error

    monkeypatch.setattr("vtcli.store.disk.write_atomic", full)
    with pytest.raises(InputError, match="the disk is full"):
        play(gym_world.card(make=GridWorld, actions=ACTIONS), sample, store, step("right"))


def test_a_world_lives_in_one_thread_that_holds_up_nobody(tmp_path: Path) -> None:
    """A step that hangs costs its rollout the time limit; the world is closed behind it, in its own thread."""
    go, ended, seen = threading.Event(), threading.Event(), list[tuple[str, threading.Thread]]()

    class Slow(GridWorld):
        def __init__(self) -> None:
            super().__init__()
            seen.append(("make", threading.current_thread()))

        def step(self, action: int) -> Any:
            seen.append(("step", threading.current_thread()))
            if action == 0:
                go.wait(60)
                seen.append(("stepped", threading.current_thread()))
            return super().step(action)

        def close(self) -> None:
            seen.append(("close", threading.current_thread()))
            ended.set()

    store = ImageStore(tmp_path / "images", sizing())
    sample, card = sample_of(store, GridWorld), gym_world.card(make=Slow, actions=ACTIONS)
    found = play(card, sample, store, step("right"), step("left"), timeout_s=0.5)
    assert found.stop is Stop.BROKEN and "timeout_s" in str(found.error)
    assert [what for what, _ in seen] == ["make", "step", "step"]  # nothing beside the step that hangs
    go.set()
    assert ended.wait(10)
    assert [what for what, _ in seen][3:] == ["stepped", "close"]
    (thread,) = {each for _, each in seen}
    assert thread.daemon and "images" not in thread.name
    thread.join(10)
    assert not thread.is_alive()
    seen.clear()
    assert play(card, sample, store, "I stay.").error is None
    assert [what for what, _ in seen] == ["make", "close"] and len({each for _, each in seen}) == 1


OUTSIDE = """
import gymnasium, numpy as np
from grid_world import GridWorld

class Line(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(0, 255, (56, 224, 3), np.uint8)

    def __init__(self, render_mode=None):
        self.render_mode, self.inner = render_mode, GridWorld(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.inner.reset(seed=seed)[0]["picture"], {}

    def step(self, action):
        seen, *rest = self.inner.step(action)
        return (seen["picture"], *rest)

gymnasium.register("Line-v0", Line)
"""


def test_a_world_of_the_real_package_is_taken_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_worlds.py").write_text(OUTSIDE)
    (tmp_path / "own" / "env").mkdir(parents=True)
    (tmp_path / "own" / "env" / "line.yaml").write_text(
        "defaults: [gymnasium, _self_]\n"
        "make: {_target_: gymnasium.make, id: 'my_worlds:Line-v0', render_mode: rgb_array, max_episode_steps: 2}\n"
    )
    job = compose.load("rl", ["--config-dir", str(tmp_path / "own"), "scale=tiny", "+recipe=toolsrl", "env=line"])
    from vtcli.config.binding import bind

    card = read_card(bind(job.values["env"], "env"))
    store = ImageStore(tmp_path / "images", sizing())
    make = card.open.args[0]
    sample = sample_of(store, make)
    found = play(card, sample, store, step(5), step("1"), step(1), step(0))
    assert [result.status for result in found.results] == ["error", "error", "ok", "ok"]
    assert "Discrete(2)" in found.results[0].message
    assert found.stop is Stop.ENDED and "over" in found.results[-1].message  # truncated after two steps


def test_actions_of_every_space_are_read() -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    cases = [
        (spaces.Discrete(3, start=1), 3, 0),
        (spaces.Discrete(3), 2.0, 1.5),
        (spaces.Discrete(3), 0, True),
        (spaces.Box(-1, 1, (2,), np.float32), [0.5, -1], [2, 0]),
        (spaces.Box(-1, 1, (2,), np.float32), [0, 0], [1]),
        (spaces.Box(-1, 1, (), np.float32), 0.25, 2),
        (spaces.Box(-1, 1, (), np.float64), -1, [0, 0]),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [2, 2]),
        (spaces.MultiBinary(2), [0, 1], "ab"),
        (spaces.Text(5), "abc", 7),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Text(3)}), {"a": 1, "b": "x"}, {"a": 1}),
        (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)]), [0, 1], [0]),
        (spaces.Discrete(2), 1, None),
        (spaces.Discrete(2), 1, {"a": 1}),
        (spaces.Discrete(2), 1, 1e30),
    ]

    def check(space: Any, good: Any, bad: Any) -> None:
        from vtcli.errors import ToolError

        one = gym_world.GymWorld(GridWorld, 0, {}, "")
        one._world = type("World", (), {"action_space": space})
        assert space.contains(one._action(good))
        with pytest.raises(ToolError):
            one._action(bad)

    assert not failures(cases, check)
