"""Thyme's recipe: temperatures, rewards and limits worked by hand, and the oracle in its world."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
import tiny_model
from cases import each_case
from fakes import FakeRunner, code_card, env_card, make_run, make_sample, make_scored, make_trajectory, sure, tagged
from qwen_views import sizing
from sandbox_world import World

from vtcli.config import compose
from vtcli.config.binding import bind
from vtcli.data.generators import zoom
from vtcli.engines.scripted import ScriptedPolicy, oracle
from vtcli.envs.code import open_env
from vtcli.protocols import Sampling, TemperatureSpan
from vtcli.rollout.loop import Limits, RolloutRequest, rollout
from vtcli.rollout.spans import SpanReader
from vtcli.schema import Group, Signals, Stop
from vtcli.signals import answer, boxes, measure_all
from vtcli.signals.format import measure as form
from vtcli.store.images import ImageStore


def job(stage: str = "rl", scale: str = "paper") -> dict[str, Any]:
    return dict(compose.load(stage, ["+recipe=thyme", f"scale={scale}"]).values)


def rl() -> dict[str, Any]:
    return job()["rl"]


def sampling() -> Sampling:
    values = rl()["agent"]["sampling"]
    spans = tuple(TemperatureSpan(**span) for span in values["spans"])
    return Sampling(values["temperature"], values["top_k"], values["top_p"], values["min_p"], spans)


def test_text_is_drawn_at_1_and_code_at_0() -> None:
    """One token a character. The last of ``<code>`` is still text; ``</code>`` is still code."""
    reader, turn, drawn = SpanReader(sampling(), chr), "I look.<code>a=1</code>So", list[float]()
    for letter in turn:
        drawn.append(reader.temperature)
        reader.read([ord(letter)])
    assert drawn == [1.0] * len("I look.<code>") + [0.0] * len("a=1</code>") + [1.0] * len("So")
    assert (sampling().top_k, sampling().top_p) == (50, 0.9)


@each_case(
    ("values", "total"),
    [
        ({}, 2.0),  # 1 + 0.5 + 0.5
        ({"consistency": 0}, 1.5),
        ({"format_thyme": False}, 1.5),
        ({"answer_correct": 0}, -0.5),  # -1 + 0 + 0.5: a wrong answer earns nothing for being consistent
        ({"answer_correct": 0, "format_thyme": False}, -1.0),
        ({"answer_correct": 0, "answer": None, "format_thyme": False}, 0.0),  # no answer is better than a wrong one
    ],
)
def test_rewards_by_hand(values: dict[str, Any], total: float) -> None:
    reward = bind(rl()["phases"][0]["reward"], "reward")
    right = {"stop": "answered", "answer": "K", "answer_correct": 1, "consistency": 1, "format_thyme": True}
    (verdict,) = reward([Signals(right | values)])
    assert verdict.total == total


@each_case(
    ("texts", "kept"),
    [
        ([f"<think>Look. {tagged('x')}", "It is K.</think>\n<answer>K</answer>"], True),  # one thought over two turns
        ([f"<think>Look.</think>{tagged('x')}", "<think>K.</think><answer>K</answer>"], False),
    ],
)
def test_one_thought_goes_on_after_the_sandbox_and_then_the_answer(texts: list[str], kept: bool) -> None:
    """What the sandbox says between the turns is no part of the form, and nothing follows the answer."""
    store = tiny_model.store()
    sample, chat = make_sample(store), tiny_model.chat()
    env = open_env(
        sample, protocol=code_card("thyme"), runner=FakeRunner(make_run("ok", output="<answer>")), images=store
    )
    policy = ScriptedPolicy(chat, [texts[0], f"{texts[1]} More."])
    found = asyncio.run(rollout(RolloutRequest(sample, 0), policy, chat, lambda _: env, Limits(3, 20_000, 2000, 6)))
    assert (found.stop, found.answer, len(found.results)) == (Stop.ANSWERED, "K", 1)
    assert found.policy_turns[-1].text == texts[1]
    assert asyncio.run(form(found))["format_thyme"] is kept


def test_what_was_cut_off_is_in_the_mean_and_not_in_the_loss() -> None:
    """Rewards 2, 0, 0, 0: mean 0.5, deviation 1 (n - 1)."""
    sample, values = make_sample(), rl()
    stops = (Stop.ANSWERED, Stop.ANSWERED, Stop.MAX_TOKENS, Stop.ANSWERED)
    members = tuple(
        make_scored(make_trajectory(sample, ["<answer>K</answer>"], stop=stop, seed=i), {}, {"answer": 2.0 * (i == 0)})
        for i, stop in enumerate(stops)
    )
    groups = [Group(sample, members)]
    (found,) = bind(values["select"])(groups, bind(values["advantage"], "advantage")(groups), 4)
    assert found[2] is None
    assert [credit[0] for credit in found if credit is not None] == pytest.approx([1.5, -0.5, -0.5], rel=1e-3)


def test_the_released_numbers() -> None:
    """scripts/rl.sh at b9285b7; ms-swift's defaults for the clip range and the aggregation."""
    values = rl()
    assert (values["group_size"], values["optim"]["lr"], values["optim"]["min_lr_ratio"]) == (4, 5e-7, 0.1)
    loss = values["loss"]
    assert (loss["clip_low"], loss["clip_high"], loss["dual_clip"], loss["kl_coef"]) == (0.2, 0.2, None, 0.01)
    assert (loss["aggregation"], values["reference"]) == ("seq-mean-token-mean", True)
    limits = values["agent"]["limits"]
    assert (limits["max_tokens"], limits["max_turn_tokens"], limits["max_images"]) == (10240, 3196, 6)
    assert job("eval")["eval"]["agent"]["limits"]["max_turns"] + 1 == 5
    assert job("sft")["sft"]["rows_per_step"] == 8 * 16


def test_a_laptop_trains_by_the_same_method() -> None:
    paper, tiny = rl(), job(scale="tiny")["rl"]
    for key in ("select", "loss", "advantage"):
        assert paper[key] == tiny[key]
    assert paper["agent"]["sampling"] == tiny["agent"]["sampling"]
    assert paper["phases"][0]["reward"] == tiny["phases"][0]["reward"]


def test_the_oracle_finds_the_tag_by_code(tmp_path_factory: pytest.TempPathFactory, strongest: World) -> None:
    images = ImageStore(tmp_path_factory.mktemp("images"), sizing(10000, 12600))
    item = zoom.generate(0, 0, "test", zoom.ZoomSize(width=672, height=672, tags=1, hatchings=("across", "down")))
    sample = item.sample("answer", "test", (images.add(item.pixels),))
    chat, limits = tiny_model.chat(), Limits(3, 20_000, 2000, 6)

    async def play() -> Any:
        pool = strongest.pool
        world = partial(open_env, protocol=code_card("thyme"), runner=pool, images=images)
        policy = oracle(chat, images, 0, env_card("thyme"), sample)
        found = await rollout(RolloutRequest(sample, 0), policy, chat, world, limits)
        return await sure(found, images, pool.verify)

    found = strongest.do(play())
    assert found.stop is Stop.ANSWERED, found.error
    values = asyncio.run(measure_all(found, (answer.measure, boxes.measure, form))).values
    assert values["format_thyme"]  # one thought around all code, then the answer
    assert values["answer_correct"] == 1 and len(found.results) == len(item.truth["boxes"])
    areas = values["zooms"][0]["areas"][0]
    assert areas["fn"] < 0.05 * areas["tp"]  # the crop shows the tag
