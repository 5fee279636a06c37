"""Mini-o3's world: numbers worked by hand, and the oracle in it."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest
import tiny_model
from cases import each_case
from fakes import make_pixels, make_sample, make_scored, make_trajectory
from qwen_views import sizing

from vtcli.config import compose
from vtcli.config.binding import bind, convert
from vtcli.data.generators import zoom
from vtcli.engines.scripted import oracle
from vtcli.envs.card import BoundCard, EnvCard, EnvInputs, read_card
from vtcli.envs.grounding import pixel_box, read, source
from vtcli.envs.prompts import PromptStyle
from vtcli.errors import ToolError
from vtcli.rollout.loop import Limits, RolloutRequest, rollout
from vtcli.schema import Group, Observation, Stop
from vtcli.signals import answer, boxes, measure_all, usage
from vtcli.store.images import ImageStore

PROMPT = PromptStyle("full", "", "{question}", "{question}")


def job(scale: str = "paper") -> dict[str, object]:
    return compose.load("rl", ["+recipe=mini_o3", f"scale={scale}"]).values


@pytest.fixture(scope="module")
def card() -> EnvCard:
    return read_card(convert(job()["env"], BoundCard, "env"))


def act(box: object, name: object = "original_image") -> str:
    return f'<think>Look.</think><grounding>{{"bbox_2d": {box}, "source": "{name}"}}</grounding>'


@each_case(
    ("box", "expected"),
    [
        ((0.25, 0.5, 0.75, 0.9), (28, 56, 84, 100)),  # 0.9 of 112 is 100.8, cut off
        ((0, 0, 1, 1), (0, 0, 111, 111)),  # never the last row and column
        ((-0.5, -1, 0.5, 0.5), (0, 0, 56, 56)),
    ],
)
def test_a_box_in_shares_as_pixels(box: tuple[float, ...], expected: tuple[int, ...]) -> None:
    assert pixel_box(box, 112, 112, 200) == expected


@each_case("box", [(0.5, 0, 0.5, 1), (0.6, 0, 0.5, 1), (1.2, 0, 1.5, 1), (0, 0, 0.004, 1)])
def test_a_box_without_area_is_refused(box: tuple[float, ...]) -> None:
    with pytest.raises(ToolError, match="x0 < x1"):
        pixel_box(box, 112, 112, 200)


def test_a_box_may_be_nearly_200_times_as_long_as_wide() -> None:
    assert pixel_box((0, 0, 1, 0.01), 200, 100, 200) == (0, 0, 199, 1)  # 199:1
    with pytest.raises(ToolError, match="201x1 pixels"):
        pixel_box((0, 0, 1, 0.01), 202, 100, 200)


@each_case(
    ("name", "given", "count", "index"),
    [("original_image", 1, 1, 0), ("observation_1", 1, 2, 1), ("observation_2", 2, 4, 3), ("observation_0", 1, 1, 0)],
)
def test_the_image_that_a_source_names(name: str, given: int, count: int, index: int) -> None:
    assert source(name, given, count) == index


@each_case("name", ["observation_2", "image", 3, None, "observation_", "observation_-1"])
def test_a_source_that_is_none_is_refused(name: object) -> None:
    with pytest.raises(ToolError, match="original_image"):
        source(name, 1, 1)


def test_the_last_complete_action_counts_and_the_answer_outside_of_it() -> None:
    found = read(act([0, 0, 1, 1]) + act([0, 0, 0.5, 1], "observation_1") + "<answer>K</answer>")
    (call,) = found.calls
    assert (call.name, call.arguments) == ("grounding", {"bbox_2d": [0, 0, 0.5, 1], "source": "observation_1"})
    assert found.answer == "K"
    assert read("<grounding>{}").calls == () and read("<grounding><answer>K</answer></grounding>").answer is None
    assert read("<grounding>[1</grounding>").calls[0].problem == "the call is not valid JSON"


def test_crops_are_cut_from_the_pixels_of_the_source_and_numbered(card: EnvCard) -> None:
    store = tiny_model.store()
    sample = make_sample(store, pixels=make_pixels(3, 112, 112))
    env = card.open(sample, EnvInputs(store, PROMPT))
    images = list(sample.images)

    def step(text: str) -> Observation:
        seen = asyncio.run(env.step(read(text), images))
        assert seen is not None
        images.extend(seen.images)
        return seen

    system, question = asyncio.run(env.reset())
    assert question == sample.question and '"source": "original_image"}</grounding>' in system
    first = step(act([0.25, 0.5, 0.75, 0.9]))
    assert first.text.startswith("After Action 0, this is the enlarged region (Observation 1):\n<image>.")
    assert np.array_equal(store.full(images[1]), store.full(images[0])[56:100, 28:84])
    wrong = step(act([0, 0, 1, 1], "observation_2"))
    assert (wrong.images, wrong.results[0].status) == ((), "error")
    assert (
        "ERROR during grounding: there is no observation_2; observation_1 to observation_1 can be named." in wrong.text
    )
    second = step(act([0.5, 0, 1, 0.5], "observation_1"))  # of 56 x 44: columns 28 to 55, rows 0 to 22
    assert "After Action 2, this is the enlarged region (Observation 2)" in second.text
    assert np.array_equal(store.full(images[2]), store.full(images[1])[0:22, 28:55])
    assert images[2].parent == 1 and second.results[0].images == (2,)
    assert asyncio.run(env.step(read("<answer>K</answer>"), images)) is None


def test_the_oracle_finds_the_tag_by_crops(card: EnvCard, tmp_path_factory: pytest.TempPathFactory) -> None:
    images = ImageStore(tmp_path_factory.mktemp("images"), sizing(10000, 12600))
    item = zoom.generate(0, 0, "test", zoom.ZoomSize(width=672, height=672, tags=1, hatchings=("across", "down")))
    sample = item.sample("answer", "test", (images.add(item.pixels),))
    opened = partial(card.open, inputs=EnvInputs(images, PROMPT))
    chat, limits = tiny_model.chat(), Limits(5, 20_000, 2000, 12)
    policy = oracle(chat, images, 0, card, sample)
    found = asyncio.run(rollout(RolloutRequest(sample, 0), policy, chat, opened, limits))
    assert found.stop is Stop.ANSWERED, found.error
    values = asyncio.run(measure_all(found, (answer.measure, boxes.measure, usage.measure))).values
    assert (values["answer_correct"], values["calls_by_tool"]) == (1, {"grounding": len(item.truth["boxes"])})
    areas = values["zooms"][0]["areas"][0]
    assert areas["fn"] < 0.05 * areas["tp"]  # the crop shows the tag; a thousandth of 672 px is less than one


def test_what_runs_out_of_turns_is_in_the_mean_and_not_in_the_loss() -> None:
    """Rewards 1, 0, 0, 0: mean 0.25, deviation 0.5 (n - 1); the third made no answer in six turns."""
    sample = make_sample()
    stops = (Stop.ANSWERED, Stop.ANSWERED, Stop.MAX_TURNS, Stop.ANSWERED)
    members = [
        make_scored(make_trajectory(sample, ["<answer>K</answer>"], stop=stop, seed=i), {}, {"answer": float(i == 0)})
        for i, stop in enumerate(stops)
    ]
    rl = job()["rl"]
    assert isinstance(rl, dict)
    (found,) = bind(rl["advantage"], "advantage")([Group(sample, tuple(members))])
    assert found[2] is None
    assert [c[0] for c in found if c is not None] == pytest.approx([1.5, -0.5, -0.5], rel=1e-4)


def test_six_turns_in_training_and_thirty_two_at_evaluation() -> None:
    values = compose.load("eval", ["+recipe=mini_o3", "scale=paper"]).values
    assert (
        values["rl"]["agent"]["limits"]["max_turns"] + 1 == 6
        and values["eval"]["agent"]["limits"]["max_turns"] + 1 == 32
    )
