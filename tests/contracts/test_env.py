"""One contract over every environment of conf/env, and one from outside: each call of any turn is answered.

Code is run by a fake runner, whose runs end in every way that a sandbox's may.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import yaml
from cases import failures
from fakes import (
    ALL_TOOLS,
    CODE_CARDS,
    CODE_CONF,
    PROMPT,
    FakeRunner,
    called,
    make_pixels,
    make_run,
    make_sample,
    native_card,
    tagged,
    written,
)
from grid_world import GridWorld
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outside import somebody
from qwen_views import sizing

from vtcli.config.binding import bind
from vtcli.envs import gym_world
from vtcli.envs.card import EnvCard, EnvInputs, read_card
from vtcli.envs.code import RunLostError
from vtcli.families.calls import format_call, parse_answer, parse_calls
from vtcli.protocols import DecodedTurn, Env, HasSyntax
from vtcli.sandbox.types import Status
from vtcli.schema import ImageRef, Observation, Sample, VideoRef
from vtcli.store.images import MAX_ASPECT_RATIO, ImageStore

IMAGE = make_pixels()
GOOD = {
    **{name: written(name, "plt.show()") for name in CODE_CARDS},
    "native": format_call("image_rotate_tool", {"angle": 90}),
    "mini_o3": '<grounding>{"bbox_2d": [0.25, 0.5, 1, 1], "source": "original_image"}</grounding>',
    "gymnasium": format_call("act", {"action": "right"}),
    "from outside": "<look>10 10 60 60</look>",
}
"""A call that each card carries out. The first test fails for a card without a call."""
FAILING = {
    **{name: written(name, "plt.show()") for name in CODE_CARDS},
    "native": format_call("image_rotate_tool", {"angle": 45}),
    "mini_o3": '<grounding>{"bbox_2d": [1, 1, 0, 0], "source": "original_image"}</grounding>',
    "gymnasium": format_call("act", {"action": "up"}),
}
VIDEO = "pyvision_video"
MCP = "mcp"
"""Its connection belongs to one event loop: tests/envs/test_mcp_server.py."""


def cards() -> dict[str, EnvCard]:
    grid = gym_world.card(make=partial(GridWorld, 9), actions={"left": 0, "right": 1})
    found = {"native": native_card(), "gymnasium": grid, "from outside": read_card(somebody().look)}
    for path in sorted(CODE_CONF.glob("*.yaml")):
        if path.stem not in (*found, MCP):
            found[path.stem] = read_card(bind(yaml.safe_load(path.read_text()), "env"))
    return found


CARDS = cards()


@dataclass
class World:
    store: ImageStore
    video: VideoRef

    def sample(self, name: str, **changes: Any) -> Sample:
        """An image of 200 x 150 pixels, seen as 196 x 140, or a video."""
        if name == VIDEO:
            return make_sample(images=(), videos=(self.video,), **changes)
        if name == "gymnasium":
            changes["truth"] = {gym_world.SEED: 3}
        return make_sample(self.store, pixels=make_pixels(3, 200, 150), **changes)

    def opened(self, name: str, *results: Any, offered: bool = True) -> tuple[Env, FakeRunner, Sample]:
        runner, card = FakeRunner(*results), CARDS[name]
        sample = card.offer(self.sample(name), offered)
        given_ = EnvInputs(self.store, PROMPT, runner if card.runner else None, offered)
        return card.open(sample, given_), runner, sample


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    (folder / "clip.mp4").write_bytes(b"not decoded here")
    return World(ImageStore(folder / "images", sizing()), VideoRef(str(folder / "clip.mp4"), 640, 480, 250, 25.0))


def read(env: Env, text: str) -> DecodedTurn:
    """The turn as a rollout reads it: by the environment's syntax, or by the chat's."""
    reader = env.syntax.read if isinstance(env, HasSyntax) else None
    return reader(text) if reader else DecodedTurn(text, parse_calls(text), parse_answer(text))


def step(env: Env, text: str, images: Sequence[ImageRef], store: ImageStore) -> Observation | None:
    """One step, and what holds of every answer: a placeholder an image, a result a call, real parents, plain JSON."""
    turn = read(env, text)
    seen = asyncio.run(env.step(turn, images))
    if seen is None:
        assert turn.calls == ()
        return None
    assert seen.text.count("<image>") == len(seen.images)
    assert "<|" not in seen.text
    seen.text.encode("utf-8")
    assert len(seen.results) == len(turn.calls) >= 1
    made = [index for result in seen.results for index in result.images]
    assert made == list(range(len(images), len(images) + len(seen.images)))
    for result in seen.results:
        written_ = [result.name, result.arguments, result.message, dict(result.details)]
        json.dumps(written_, allow_nan=False).encode("utf-8")
        assert result.status in ("ok", "no_output", "error", "timeout", "refused") and result.wall_s >= 0
        assert result.status == "ok" or not result.images
    for ref in seen.images:
        assert ref.parent is None or ref.parent in range(len(images))
        json.dumps(ref.transform, allow_nan=False)
        assert store.full(ref).shape == (ref.height, ref.width, 3)
        assert store.view(ref).shape == (ref.view_height, ref.view_width, 3)
        assert max(ref.width, ref.height) <= MAX_ASPECT_RATIO * min(ref.width, ref.height)
    return seen


def test_every_environment_of_the_package_is_under_this_contract() -> None:
    files = {path.stem for path in CODE_CONF.glob("*.yaml")} - {MCP}
    assert set(CARDS) == set(GOOD) == files | {"from outside"}
    assert {name for name, card in CARDS.items() if card.runner} == set(CODE_CARDS)


def each(*rows: Any) -> list[tuple[Any, ...]]:
    return [(name, *row) for name in CARDS for row in (rows or ((),))]


def test_it_opens_with_a_system_prompt_and_the_question(world: World) -> None:
    def check(name: str) -> None:
        env, _, sample = world.opened(name)
        system, question = asyncio.run(env.reset())
        assert system and sample.question in question
        for left in ("question", "images", "videos", "tools", "width", "height", "file", "name", "i"):
            assert f"{{{left}}}" not in system + question
        other, _, _ = world.opened(name)
        assert asyncio.run(other.reset()) == (system, question)

    assert not failures(each(), check)


def test_a_call_is_carried_out_and_its_image_is_of_the_trajectory(world: World) -> None:
    def check(name: str) -> None:
        env, runner, sample = world.opened(name, make_run("ok", IMAGE))
        asyncio.run(env.reset())
        seen = step(env, GOOD[name], sample.images, world.store)
        assert seen is not None and not seen.ends
        assert [result.status for result in seen.results] == ["ok"] and len(seen.images) == 1
        assert len(runner.sources) == CARDS[name].runner
        again = step(env, GOOD[name], (*sample.images, *seen.images), world.store)  # and the rollout goes on
        assert again is not None

    assert not failures(each(), check)


def test_a_turn_without_a_call_is_the_last(world: World) -> None:
    def check(name: str, text: str) -> None:
        env, runner, sample = world.opened(name)
        seen = step(env, text, sample.images, world.store)
        assert seen is None or ("answer" not in text and seen.results[0].status == "error")  # PyVision wants either
        assert not runner.setups

    assert not failures(each(("<answer>\\boxed{K}</answer>",), ("It is K.",), ("",)), check)


def test_a_call_that_fails_is_a_result(world: World) -> None:
    def check(name: str) -> None:
        env, _, sample = world.opened(name, make_run("error", error="ZeroDivisionError: division by zero"))
        seen = step(env, FAILING[name], sample.images, world.store)
        assert seen is not None and [result.status for result in seen.results] == ["error"] and not seen.images
        assert seen.results[0].message and len(seen.text) > 5

    assert not failures([(name,) for name in FAILING], check)


def test_where_nothing_is_offered_nothing_is_carried_out(world: World) -> None:
    def check(name: str) -> None:
        env, runner, sample = world.opened(name, make_run("ok", IMAGE), offered=False)
        system, question = asyncio.run(env.reset())
        assert sample.question in question
        with_tools = "".join(asyncio.run(world.opened(name)[0].reset()))
        assert len(system + question) < len(with_tools)
        seen = step(env, GOOD[name], sample.images, world.store)
        assert seen is not None and not seen.images
        assert {result.status for result in seen.results} <= {"error", "refused"}
        assert not runner.setups

    assert not failures([(name,) for name in FAILING], check)


def test_it_may_be_closed_at_any_time_and_twice(world: World) -> None:
    def check(name: str, steps: int) -> None:
        env, runner, sample = world.opened(name, make_run("ok"), make_run("ok"))
        for _ in range(steps):
            step(env, GOOD[name], sample.images, world.store)
        for _ in range(2):
            asyncio.run(env.close())
        assert runner.closed == len(runner.setups)

    assert not failures(each((0,), (1,), (2,)), check)


def test_our_own_fault_is_an_exception_and_the_episode_can_be_closed(world: World) -> None:
    """A rollout that was lost by no fault of the policy breaks; it is no failed call."""

    def check(name: str, fault: Any) -> None:
        env, runner, sample = world.opened(name, fault)
        with pytest.raises((RunLostError, OSError)):
            step(env, GOOD[name], sample.images, world.store)
        asyncio.run(env.close())
        assert runner.closed == len(runner.setups)

    faults = (make_run("lost", error="gone"), make_run("protocol", error="forged"), OSError("no pool"))
    assert not failures([(name, fault) for name in CODE_CARDS for fault in faults], check)


# Whatever is written, and however its code ends

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-300, 300) | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["horizontal", "<image>", "<|im_end|>", "original_image", "observation_1", 90, [5, 5, 60, 70]]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
KEYS = [
    "bbox_2d",
    "angle",
    "direction",
    "point_2d",
    "y_position",
    "x_position",
    "image_index",
    "color",
    "size",
    "shape",
    "source",
    "code",
]
arguments = st.dictionaries(st.sampled_from(KEYS), json_values, max_size=4)
names = st.sampled_from(ALL_TOOLS) | json_values
coordinates = st.lists(st.floats(-50, 300) | st.integers(-50, 300), min_size=4, max_size=4)
shares = st.lists(st.floats(-0.5, 1.5), min_size=4, max_size=4)


def plausible(name: str, box: list[float], index: int) -> str:
    """A call with every argument that any tool takes, so that many are carried out."""
    lines = {"y_position": box[1], "x_position": box[0]}
    rest = {"bbox_2d": box, "point_2d": box[:2], "angle": 90, "direction": "vertical"}
    return format_call(name, {**rest, **lines, "image_index": index})


acts = st.one_of(
    st.builds(lambda n, a: f"<tool_call>{json.dumps({'name': n, 'arguments': a})}</tool_call>", names, arguments),
    st.builds(plausible, st.sampled_from(ALL_TOOLS), coordinates, st.integers(-1, 2)),
    st.builds(lambda a: f"<grounding>{json.dumps(a)}</grounding>", arguments | json_values),
    st.builds(
        lambda b, s: f"<grounding>{json.dumps({'bbox_2d': b, 'source': s})}</grounding>",
        shares,
        st.sampled_from(["original_image", "observation_1", "observation_9"]),
    ),
    st.sampled_from([called("codevision", code="x", image_index=i) for i in (0, 1, 9)]),
    st.sampled_from([called("codedance_call", code="x"), tagged("x"), tagged("")]),
)
pieces = st.sampled_from(
    ["<code>", "</code>", "```python\n", "```", "<answer>", "</answer>", "<tool_call>", "</grounding>", "x=1", "\n"]
)
turns = st.lists(acts | pieces | st.text(max_size=5), max_size=6).map("".join)
words = st.sampled_from(
    ["", "7", "<image>", "</interpreter>", "</sandbox_output>", "<|im_end|>", "\ud800\x00", "a.png"]
)
shown = st.lists(st.sampled_from([IMAGE, np.zeros((1, 300, 3), np.uint8)]), max_size=3)
some = st.sampled_from([str(s) for s in Status if s not in (Status.PROTOCOL, Status.LOST, Status.NO_OUTPUT)])
runs = st.builds(
    lambda status, images, output, error: make_run(status, *images, output=output, error=error, notes=(error,)),
    some,
    shown,
    words,
    words,
) | st.builds(lambda error: make_run("no_output", error=error, notes=(error,)), words)
PACKAGE = sorted(set(CARDS) - {"from outside"})


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([*PACKAGE, *["native"] * 4, *["mini_o3"] * 2]),
    st.lists(st.tuples(turns, st.lists(runs, max_size=3)), max_size=3),
)
def test_whatever_is_written_and_run_is_answered(world: World, name: str, steps: list[tuple[str, list[Any]]]) -> None:
    env, runner, sample = world.opened(name)
    images = list(sample.images)
    for text, results in steps:
        runner.results = list(results)
        seen = step(env, text, images, world.store)
        images.extend(seen.images if seen else ())
    asyncio.run(env.close())
    assert runner.closed == len(runner.setups)
