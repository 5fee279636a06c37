"""The memory of rollouts: what tells two of them apart, what is asked again, and what several writers leave."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from cases import failures
from fakes import make_sample, native_card
from rl_world import PROMPT

from vtcli.engines.policies import Engine
from vtcli.errors import ConfigError
from vtcli.families.table import open_family
from vtcli.judging.model import open_judge
from vtcli.protocols import Request, Sampling
from vtcli.rollout.loop import GroupRequest, Limits, RolloutRequest
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.schema import Completion, Scored, Stop, Trajectory, VideoRef
from vtcli.session import memory
from vtcli.session.agent import UNCOUNTED, Agent
from vtcli.session.memory import measure_name, request_name, shelf_name
from vtcli.session.session import Session
from vtcli.signals import answer, usage
from vtcli.signals.scorers.texts import exact
from vtcli.store.images import ImageLimits, ImageStore
from vtcli.store.removal import ROLLOUTS, bound_rollouts, caches

AGENT = Agent(
    env=partial(native_card),
    prompt=PROMPT,
    signals={"answer": partial(answer.measure)},
    limits=Limits(max_turns=1, max_tokens=600, max_turn_tokens=40),
    judge=partial(open_judge, url="http://a", model="m"),
)


async def fact(trajectory: Trajectory) -> dict[str, float | None]:
    return {"length": float(trajectory.length)}


class Counting:
    """Answers with the request's seed, and counts how often it is asked."""

    version, clock, cache_tokens = 0, None, None

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, request: Request) -> Completion:
        self.asked += 1
        ids = tuple(tiny_model.chat().encode_turn(f"<answer>{request.seed % 1000}</answer>"))
        return Completion(ids, (-0.5,) * len(ids), "stop")

    def close(self) -> None: ...


def requests(count: int = 3, **changes: Any) -> list[RolloutRequest]:
    return list(GroupRequest(make_sample(images=(tiny_model.image(0),), **changes), count, seed=5).members)


def answered(root: Path, wanted: Sequence[RolloutRequest], **changes: Any) -> tuple[list[Scored], int]:
    """The rollouts, and how many of them had to be asked for."""
    fields: dict[str, Any] = {"env": native_card, "prompt": PROMPT, "signals": {"fact": fact}, "limits": AGENT.limits}
    agent = Agent(**fields | changes)
    session = Session(agent, "eval", tiny_model.store(), root, family=open_family(tiny_model.folder(), {}))
    session.remember(root / ROLLOUTS, ["the weights"])
    policy: Any = Counting()
    session.policy = session.trained = policy

    async def go() -> list[Scored]:
        known, stale = session.recall(wanted)
        async with session:
            await session.start()
            found = [*known.values(), *[scored async for scored in session.measure_again(stale)]]
            there = {scored.trajectory.id for scored in found}
            left = [request for request in wanted if request.id not in there]
            return [*found, *[scored async for scored in session.ask(left, 4)]]

    return sorted(asyncio.run(go()), key=lambda scored: scored.trajectory.id), policy.asked


def other(value: Any) -> Iterator[tuple[str, Any]]:
    """The same value with one leaf changed, for every leaf."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            for where, changed in other(getattr(value, field.name)):
                try:
                    yield f"{field.name}{where and '.'}{where}", replace(value, **{field.name: changed})
                except (ValueError, TypeError, ConfigError):  # bounds that depend on each other
                    continue
    elif isinstance(value, bool):
        yield "", not value
    elif isinstance(value, int | float):
        yield "", value + 1 if isinstance(value, int) else value / 2 + 0.01
    elif isinstance(value, str):
        yield "", "bfloat16" if value == "float32" else f"{value} "
    elif isinstance(value, partial):
        yield "", partial(value.func, *value.args, **{**value.keywords, "other": 1})
    elif isinstance(value, dict):
        yield "", {**value, "other": "1"}
    elif value is None or isinstance(value, tuple):
        yield "", None if value else ("other",)


def test_every_field_of_the_agent_that_decides_a_rollout_makes_another_one() -> None:
    def check(where: str, agent: Agent) -> None:
        decides = (
            where.split(".", maxsplit=1)[0] not in (*UNCOUNTED, "signals", "judge") and where != "limits.timeout_s"
        )
        decides |= where == "engine.own"
        same = shelf_name(agent, ["w"], offered=True) == shelf_name(AGENT, ["w"], offered=True)
        assert same != decides, where

    cases = [(where, agent) for where, agent in other(AGENT) if where != "judge"]
    assert len(cases) > 25 and {where.split(".")[0] for where, _ in cases} >= {"env", "prompt", "limits", "sampling"}
    assert not failures(cases, check)
    base = shelf_name(AGENT, ["w"], offered=True)
    assert base == shelf_name(replace(AGENT), ["w"], offered=True)
    for agent, weights, offered in ((AGENT, ["v"], True), (AGENT, ["w"], False)):
        assert shelf_name(agent, weights, offered=offered) != base
    assert (
        shelf_name(replace(AGENT, engine=Engine(name="vllm"), sandbox=PoolConfig(active=1)), ["w"], offered=True)
        == base
    )
    assert shelf_name(replace(AGENT, images=ImageLimits(56 * 56, 99_999)), ["w"], offered=True) != base


def test_what_measures_is_apart_from_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = list(AGENT.signals.values())
    base = measure_name(signals, AGENT.judge, ["deepeyes_answer"])
    assert base == measure_name(signals, partial(open_judge, url="http://b", model="m"), ["deepeyes_answer"])
    assert base != measure_name(signals, partial(open_judge, url="http://a", model="n"), ["deepeyes_answer"])
    assert base != measure_name([*signals, usage.measure], AGENT.judge, ["deepeyes_answer"])
    assert base != measure_name([partial(answer.measure, rules={"mine": exact})], AGENT.judge, ["deepeyes_answer"])
    monkeypatch.setattr(memory, "scoring_source", lambda: "other code")
    assert base != measure_name(signals, AGENT.judge, ["deepeyes_answer"])


def test_a_question_is_its_content_and_not_its_split() -> None:
    (first,) = requests(1)
    sample = first.sample
    assert request_name(first) == request_name(replace(first, sample=replace(sample, split="train")))
    for changed in (
        replace(first, seed=first.seed + 1),
        replace(first, sampling=Sampling(top_k=3)),
        replace(first, sample=replace(sample, question="Which digit?")),
        replace(first, sample=replace(sample, tools=())),
        replace(first, sample=replace(sample, images=(tiny_model.image(1),))),
    ):
        assert request_name(changed) != request_name(first)


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    first, asked = answered(tmp_path, requests())
    assert asked == 3
    again, asked = answered(tmp_path, requests())
    assert (again, asked) == (first, 0)
    more, asked = answered(tmp_path, [*requests(4), *requests(2, id="another")])
    assert asked == 1 + 2 and [scored for scored in more if scored in first] == first
    _, asked = answered(tmp_path, requests(), limits=replace(AGENT.limits, max_turns=2))
    assert asked == 3


def test_other_signals_measure_the_same_rollouts(tmp_path: Path) -> None:
    first, _ = answered(tmp_path, requests())
    found, asked = answered(tmp_path, requests(), signals={"usage": usage.measure})
    assert asked == 0 and [s.trajectory for s in found] == [s.trajectory for s in first]
    assert all("calls" in s.signals.values and "length" not in s.signals.values for s in found)


def test_a_broken_rollout_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete, numbers = Counting.complete, iter(range(99))

    async def failing(self: Counting, request: Request) -> Completion:
        if next(numbers) == 1:
            raise ValueError("no pixels today")
        return await complete(self, request)

    monkeypatch.setattr(Counting, "complete", failing)
    found, _ = answered(tmp_path, requests(), max_broken=1.0)
    assert [s.trajectory.stop for s in found].count(Stop.BROKEN) == 1
    found, asked = answered(tmp_path, requests())
    assert asked == 1 and Stop.BROKEN not in [s.trajectory.stop for s in found]


def test_a_torn_line_and_a_lost_picture_are_asked_again(tmp_path: Path) -> None:
    answered(tmp_path, requests())
    (path,) = tmp_path.glob(f"{ROLLOUTS}/*/*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])  # its writer was killed
    _, asked = answered(tmp_path, requests())
    assert asked == 1
    assert len(list(path.parent.glob("*.jsonl"))) == 2  # each process has a file of its own
    _, asked = answered(tmp_path, requests())
    assert asked == 0


def test_pictures_of_tools_come_along(tmp_path: Path) -> None:
    here, there = ImageStore(tmp_path / "here", tiny_model.store()._sizing), tmp_path / "there"
    (request,), made = requests(1), here.add(tiny_model.store().full(tiny_model.image(2)), 0, {"op": "crop"})
    shelf = memory.RolloutMemory(tmp_path / ROLLOUTS, "agent", here)
    trajectory = replace(answered(tmp_path, [request])[0][0].trajectory, images=(*request.sample.images, made))
    shelf.put(["name"], "ab", trajectory, answered(tmp_path, [request])[0][0].signals)
    later = memory.RolloutMemory(tmp_path / ROLLOUTS, "agent", ImageStore(there, tiny_model.store()._sizing))
    found = later.get("name", "ab")
    assert found is not None and found.trajectory == trajectory
    assert all((there / sha[:2] / f"{sha}.png").is_file() for sha in {made.full, made.view})
    for path in (tmp_path / ROLLOUTS / "agent" / "images").rglob("*.png"):
        path.unlink()
    assert memory.RolloutMemory(tmp_path / ROLLOUTS, "agent", here).get("name", "ab") is None


def test_two_measurements_stand_beside_each_other(tmp_path: Path) -> None:
    """So that an evaluation and a filter, which measure other signals, do not measure again in turns."""
    for signals in ({"fact": fact}, {"usage": usage.measure}):
        answered(tmp_path, requests(), signals=signals)
    lines = [line for path in tmp_path.glob(f"{ROLLOUTS}/*/*.jsonl") for line in path.read_text().splitlines()]
    assert len(lines) == 2 * 3
    for signals in ({"fact": fact}, {"usage": usage.measure}):
        assert answered(tmp_path, requests(), signals=signals)[1] == 0
    again = [line for path in tmp_path.glob(f"{ROLLOUTS}/*/*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(again) == sorted(lines)


def test_what_cannot_be_read_is_asked_again(tmp_path: Path) -> None:
    for number, damage in enumerate((b"\0" * 40, b"{", None)):
        answered(tmp_path / str(number), requests())
        (path,) = (tmp_path / str(number)).glob(f"{ROLLOUTS}/*/*.jsonl")
        if damage is None:
            path.write_bytes(path.read_bytes().replace(b'"seed": ', b'"seeds": ', 1))
        else:
            path.write_bytes(path.read_bytes().replace(b'"trajectory": {"id"', damage, 1))
        assert answered(tmp_path / str(number), requests())[1] == 1, damage


def test_a_file_that_a_plug_names_counts(tmp_path: Path) -> None:
    table, names = tmp_path / "table.json", list[tuple[str, str]]()
    plug: Any = partial(usage.measure)
    plug.keywords["table"] = str(table)
    for content in ("1", "2"):
        table.write_text(content)
        names.append((shelf_name(replace(AGENT, env=plug), ["w"]), measure_name([plug], None, [])))
    assert len({name for pair in names for name in pair}) == 4


def test_another_video_under_the_same_name_is_another_question(tmp_path: Path) -> None:
    (first,), names = requests(1), set[str]()
    for folder in ("old", "new"):
        path = tmp_path / folder / "scene.mp4"
        path.parent.mkdir()
        path.write_text(folder)
        videos = (VideoRef(str(path), 640, 480, 100, 25.0),)
        names.add(request_name(replace(first, sample=replace(first.sample, videos=videos))))
    assert len(names) == 2


def test_agents_that_nobody_asks_make_room(tmp_path: Path) -> None:
    for days, name in ((9, "old"), (3, "older than a day"), (0, "new")):
        folder = tmp_path / ROLLOUTS / name
        folder.mkdir(parents=True)
        (folder / "a.jsonl").write_bytes(b"x" * 1000)
        os.utime(folder, (time.time() - days * 86_400, time.time() - days * 86_400))
    assert [each.path.name for each in caches(tmp_path)] == ["old", "older than a day", "new"]
    assert [each.path.name for each in caches(tmp_path, 5 * 86_400.0)] == ["old"]
    bound_rollouts(tmp_path, most=2500)
    assert [each.path.name for each in caches(tmp_path)] == ["older than a day", "new"]
    bound_rollouts(tmp_path, most=0)
    assert [each.path.name for each in caches(tmp_path)] == ["new"]
