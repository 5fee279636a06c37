"""The tasks that only code can solve, from the generator through a dataset file to the real sandbox: the oracle solves
all, and a demonstration shows what a rollout shows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_model
from cases import each_case
from fakes import code_card, env_card, make_sample
from qwen_views import sizing
from sandbox_world import World

from vtcli.data.generators import dots, moving
from vtcli.data.generators.item import Item, stream
from vtcli.data.teachers import plans as demos
from vtcli.data.teachers.scripted import Script, Teacher
from vtcli.engines.scripted import oracle
from vtcli.envs.code import open_env
from vtcli.envs.demonstrate import DemoEpisode, DemonstrationSetup, demonstrate
from vtcli.envs.produce import Chunk, produce
from vtcli.envs.prompts import PromptStyle
from vtcli.families.calls import parse_answer
from vtcli.rollout.loop import Limits, RolloutRequest, rollout
from vtcli.sandbox.host.pool import Pool
from vtcli.schema import Sample, Stop, Trajectory
from vtcli.signals import answer, frames
from vtcli.store import records
from vtcli.store.images import ImageStore
from vtcli.store.records import SampleSet

ITEMS = 4
CARDS = {"moving": "pyvision_video", "dots": "codedance"}
LIMITS = Limits(max_tokens=20_000, max_turn_tokens=4000)
PROMPT = PromptStyle("compact", "", "{question}", "{question}")
PERFECT = Teacher(skill=1.0, direct=0.0)


def made(task: str, number: int, split: str = "test") -> Item:
    if task == "moving":
        return moving.generate(0, number, split, moving.MovingSize())
    return dots.generate(0, number, split, dots.DotsSize())


def dataset(folder: Path, task: str) -> SampleSet:
    def make(seed: int, item: int, split: str, *, form: str = "answer") -> Item:
        del seed, form
        return made(task, item, split)

    rows: Any = produce(Chunk(make, task, "test", "answer", range(ITEMS), 0))
    records.write_samples(folder / "answer-test.parquet", rows)
    return SampleSet(folder, "answer", "test", tiny_model.store())


Plays = dict[str, tuple[list[Trajectory], list[DemoEpisode]]]


async def play_all(folder: Path, pool: Pool) -> Plays:
    """Per task the oracle's rollouts of its samples, and a demonstration of each kind; over one pool."""
    chat, store = tiny_model.chat(), tiny_model.store()

    async def play(task: str, sample: Sample) -> Trajectory:
        card = code_card(CARDS[task])
        env = open_env(sample, protocol=card, runner=pool, images=store, style="compact")
        return await rollout(
            RolloutRequest(sample, 0),
            oracle(chat, store, 0, env_card(CARDS[task]), sample),
            chat,
            lambda sample: env,
            LIMITS,
        )

    done: Plays = {}
    for task, card in CARDS.items():
        samples = dataset(folder / task, task)
        setting = DemonstrationSetup(env_card(card), PERFECT, PROMPT, sizing(10_000, 12_600))
        rng = stream(0, task, "demo-train", 0, purpose=1)
        shown = [await demonstrate(made(task, 0), kind, rng, setting, pool) for kind in ("answer", "perceive")]
        done[task] = list(await asyncio.gather(*(play(task, samples.load(i)) for i in range(ITEMS)))), shown
    return done


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory, strongest: World) -> Plays:
    return strongest.do(play_all(tmp_path_factory.mktemp("tasks"), strongest.pool))


@pytest.fixture(scope="module")
def found(plays: Plays) -> dict[str, list[Trajectory]]:
    return {task: trajectories for task, (trajectories, _) in plays.items()}


@each_case("task", CARDS)
def test_the_oracle_solves_every_sample_by_code(task: str, found: dict[str, list[Trajectory]]) -> None:
    for trajectory in found[task]:
        assert trajectory.stop is Stop.ANSWERED, trajectory.error
        assert [result.status for result in trajectory.results] == ["ok"]
        assert asyncio.run(answer.measure(trajectory))["answer_correct"] == 1


def test_a_video_is_seen_by_its_frames_alone(found: dict[str, list[Trajectory]]) -> None:
    for number, trajectory in enumerate(found["moving"]):
        sample, item = trajectory.sample, made("moving", number)
        assert sample.images == () and len(trajectory.images) == 1 and item.clip is not None
        shown = tiny_model.store().full(trajectory.images[0])
        assert np.array_equal(shown, moving.figure(item.clip.frames[sample.truth["frame"]]))
        signals = asyncio.run(frames.measure(trajectory))
        entry = {"image": 0, "indices": [sample.truth["frame"]], "verified": None}  # the host decodes no video
        assert signals == {"frames": [entry], "frame_shown": 1}


def test_what_code_counts_is_printed_and_no_image_is_made(found: dict[str, list[Trajectory]]) -> None:
    for trajectory in found["dots"]:
        assert len(trajectory.images) == 1
        prints = trajectory.sample.truth["code"]["prints"]
        assert trajectory.results[0].message == f"<interpreter>{prints}\n</interpreter>"


def test_frames_are_not_measured_where_the_truth_names_none(found: dict[str, list[Trajectory]]) -> None:
    assert asyncio.run(frames.measure(found["dots"][0])) == {"frames": None, "frame_shown": None}


# ---------------------------------------------------------------- demonstrations


def script(task: str, number: int, teacher: Teacher) -> tuple[Item, Script]:
    item = made(task, number)
    rng, spoken = stream(0, task, "demo-train", number, purpose=1), env_card(CARDS[task]).spoken
    return item, demos.plan(item, rng, "answer", teacher, (1.0, 1.0), spoken)


def said(plan: Script) -> str:
    return (parse_answer(plan.turns[-1]) or "").strip().removeprefix("\\boxed{").removesuffix("}")


@each_case("task", CARDS)
def test_a_half_skilled_teacher_is_right_where_its_code_is(task: str) -> None:
    scripts = [script(task, number, Teacher(skill=0.5, direct=0.0)) for number in range(100)]
    right = [plan.right for _, plan in scripts]
    assert abs(float(np.mean(right)) - 0.5) < 0.2  # four standard errors
    assert all(len(plan.turns) == 2 for _, plan in scripts)
    assert all(said(plan) == item.answer for item, plan in scripts if plan.right)
    wrong = [said(plan) == item.answer for item, plan in scripts if not plan.right]
    assert float(np.mean(wrong)) < 0.6  # by chance only


def test_without_a_frame_the_answer_is_a_guess() -> None:
    scripts = [script("moving", number, Teacher(direct=1.0)) for number in range(150)]
    assert all(len(plan.turns) == 1 for _, plan in scripts)
    assert abs(float(np.mean([said(plan) == item.answer for item, plan in scripts])) - 0.25) < 0.15


def test_without_code_few_dots_are_counted_and_many_are_guessed() -> None:
    scripts = [script("dots", number, Teacher(direct=1.0)) for number in range(150)]
    for difficulty in ("easy", "hard"):
        some = [said(plan) == item.answer for item, plan in scripts if item.truth["difficulty"] == difficulty]
        assert all(some) if difficulty == "easy" else abs(float(np.mean(some)) - 1 / 6) < 0.18


@each_case("task", CARDS)
def test_perception_asks_nothing_that_the_picture_does_not_show(task: str) -> None:
    for number in range(20):
        item = made(task, number)
        seen = demos.perceive(item, stream(0, task, "demo-train", number, purpose=1), lambda _: (1.0, 1.0))
        for question, reply in seen.turns:
            assert "second" not in question and reply
            if task == "dots" and item.truth["difficulty"] == "hard":
                assert (question, reply) == ("Are the dots large or small?", "small")


@each_case("task", CARDS)
def test_demonstrations_are_played_in_the_real_environment(task: str, plays: Plays) -> None:
    told, seen = plays[task][1]
    item = made(task, 0)
    assert [m["role"] for m in told.messages] == ["system", "user", "assistant", told.messages[3]["role"], "assistant"]
    assert item.answer in told.messages[-1]["content"] and len(told.images) == len(seen.images) == 1
    assert told.messages[1]["content"].startswith("<image>") == (task == "dots")
    assert told.messages[3]["content"].count("<image>") == (task == "moving")
    assert seen.messages[1]["content"].startswith("<image>")


def test_a_question_about_an_image_needs_no_video_where_no_code_is_on_offer() -> None:
    sample = make_sample(ImageStore(tiny_model.store().root))
    env = open_env(
        sample,
        protocol=code_card("pyvision_video"),
        runner=None,  # type: ignore[arg-type]
        images=tiny_model.store(),
        offered=False,
    )
    assert asyncio.run(env.reset())[1].startswith(sample.question)
