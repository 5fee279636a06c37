"""Claims of code: kept with the image, tested where a reward or a judge asks, once for equal ones, and never else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_model
from cases import each_case
from fakes import FakeRunner, called, code_card, make_pixels, make_run, make_sample, tagged

from vtcli.engines.scripted import ScriptedPolicy
from vtcli.envs import claims
from vtcli.envs.claims import Claims, open_claims
from vtcli.envs.code import open_env
from vtcli.protocols import Pixels
from vtcli.rewards import codevision, grpo_accuracy
from vtcli.rollout.loop import GroupRequest, Limits, RolloutRequest, rollout
from vtcli.rollout.stream import Stream
from vtcli.sandbox.host.pool import Pool
from vtcli.sandbox.replay import redo
from vtcli.sandbox.replay.plan import plan
from vtcli.sandbox.types import EpisodeLostError, Operation, OutputImage, Picture
from vtcli.schema import Scored, Stop, Trajectory
from vtcli.scoring.collect import How, SignalSet, collect
from vtcli.scoring.stored import find
from vtcli.scoring.verdicts import FormReward, Scorer
from vtcli.signals import answer, boxes, code, evidence, usage
from vtcli.signals import format as format_rule
from vtcli.signals.measuring import SignalMeter
from vtcli.store import records
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import ImageStore

GIVEN = make_pixels(3, 150, 100)
BOX = [10, 20, 90, 70]
CROP = Operation("crop", {"box": BOX}, "pil", 0)
SHOWN = GIVEN[20:70, 10:90].copy()
TRUTH = {"boxes": [{"label": "tag", "box": BOX}], "choices": ["K"], "required": ["crop"], "search": True}
DONE = "<answer>K</answer>"
LIMITS = Limits(10, 20_000, 4000, 32)
PLAIN = (answer.measure, format_rule.measure, usage.measure, code.measure, boxes.measure)


class Replays:
    """Does claims again in this process; ``images`` counts them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.images = error, 0

    async def __call__(self, pictures: Sequence[Picture], images: Sequence[OutputImage]) -> tuple[OutputImage, ...]:
        if self.error is not None:
            raise self.error
        self.images += len(images)
        return tuple(self._judged(pictures, image) for image in images)

    def _judged(self, pictures: Sequence[Picture], image: OutputImage) -> OutputImage:
        found = plan(image.operations, [(p.pixels.shape[1], p.pixels.shape[0]) for p in pictures])
        same = np.array_equal(redo.redo(pictures[found.image].pixels, found.steps), image.pixels)
        return replace(image, verified=same, operations=found.operations)


def crop(pixels: Pixels = SHOWN, *chain: Operation) -> OutputImage:
    return OutputImage(pixels, "result", operations=chain or (CROP,))


def played(*shown: OutputImage, name: str = "codevision", images: ImageStore | None = None, number: int = 0):
    """A trajectory with one call for each image."""
    store = images or tiny_model.store()
    sample = replace(make_sample(store, pixels=GIVEN), truth=TRUTH)
    runs = [make_run("ok", images=(image,), operations=image.operations) for image in shown]
    env = open_env(sample, protocol=code_card(name), runner=FakeRunner(*runs), images=store)
    turn = called(name, code="x", image_index=0) if name == "codevision" else tagged("x")
    policy = ScriptedPolicy(tiny_model.chat(), [*[turn for _ in shown], DONE])
    found = asyncio.run(rollout(RolloutRequest(sample, number), policy, tiny_model.chat(), lambda _: env, LIMITS))
    assert found.stop is Stop.ANSWERED, found.error
    return found


def rewarded(reward: Any, found: Sequence[Trajectory], verify: Any, signals: Any = PLAIN) -> list[Scored]:
    async def go() -> list[Scored]:
        measure = SignalMeter(signals, None, tiny_model.store(), Path())
        asked = Claims(tiny_model.store(), verify, measure)
        first = [await asked.before(t) for t in found]
        return list(await asked.rewarded(reward, list(zip(first, await measure(first), strict=True))))

    return asyncio.run(go())


def verdicts(found: Trajectory) -> list[Any]:
    return [(ref.transform or {}).get("verified") for ref in found.images[1:]]


def test_a_reward_that_reads_claims_has_them_tested_and_equal_ones_once() -> None:
    verify = Replays()
    lie = crop(SHOWN + 1)
    found = rewarded(codevision.strategic, [played(crop()), played(crop(), lie, number=1)], verify)
    assert [verdicts(s.trajectory) for s in found] == [[True], [True, False]]
    assert verify.images == 2  # three claims, of which two are equal
    for scored in found:
        entry = scored.signals.values["operations"][0]
        assert (entry["verified"], entry["iou"]) == (True, 1.0)
        assert scored.verdict is not None and scored.verdict.parts["must_use"] == 1.0
        assert scored.trajectory.images[1].parent == 0
        seen = [
            ref for turn in scored.trajectory.turns if hasattr(turn, "observation") for ref in turn.observation.images
        ]
        assert tuple(seen) == scored.trajectory.images[1:]


def test_a_reward_that_reads_none_starts_no_replay() -> None:
    verify = Replays(AssertionError("nobody asked"))
    (found,) = rewarded(grpo_accuracy.accuracy, [played(crop())], verify)
    assert verdicts(found.trajectory) == [None] and found.signals.values["operations"][0]["verified"] is None


def test_the_oracle_as_judge_has_them_tested_before_it_looks() -> None:
    verify = Replays()
    (found,) = rewarded(grpo_accuracy.accuracy, [played(crop())], verify, (*PLAIN, evidence.measure))
    assert verify.images == 1 and found.signals.values["evidence"] == [1.0]


@each_case("signals", [PLAIN, (*PLAIN, evidence.measure)], ids=["reward", "oracle"])
def test_a_lost_replay_breaks_the_rollout_and_is_counted(signals: Any) -> None:
    verify = Replays(EpisodeLostError("the template died"))
    (found,) = rewarded(codevision.strategic, [played(crop())], verify, signals)
    assert (found.trajectory.stop, found.trajectory.error) == (Stop.BROKEN, "EpisodeLostError: the template died")
    assert found.verdict is None and found.signals.values["stop"] == "broken"


def changed(found: Trajectory, **how: Any) -> Trajectory:
    """The trajectory with another record of its last image."""
    last = found.images[-1]
    transform = {**(last.transform or {}), **how}
    return replace(found, images=(*found.images[:-1], replace(last, transform=transform)))


def step(image: Any) -> dict[str, Any]:
    return {"name": "crop", "arguments": {"box": [0, 0, 1, 1]}, "library": "pil", "image": image, "box": None}


def test_what_cannot_be_tested_stays_a_claim() -> None:
    found = played(crop())
    assert len(open_claims(found)) == 1
    for how in (
        {"picture": None},  # stored before pictures were
        {"picture": "0" * 64},  # of no image of the trajectory
        {"operations": [step(1)]},  # of itself
        {"operations": [step(2)]},
        {"operations": [step(True)]},
        {"operations": [step(0), step(None)]},
        {"operations": [{**step(0), "name": "draw"}]},
        {"operations": []},
        {"verified": False},
    ):
        assert open_claims(changed(found, **how)) == [], how
    assert open_claims(replace(found, stop=Stop.BROKEN)) == open_claims(found)  # it is not tested all the same:
    assert asyncio.run(
        Claims(tiny_model.store(), Replays(AssertionError()), SignalMeter([], None, tiny_model.store(), Path())).tested(
            replace(found, stop=Stop.BROKEN)
        )
    ).images == found.images  # fmt: skip


def test_a_claim_about_a_view_is_tested_on_the_view() -> None:
    sample = make_sample(tiny_model.store(), pixels=GIVEN)
    view = tiny_model.store().view(sample.images[0])
    assert view.shape != GIVEN.shape
    shown = OutputImage(
        view[28:56, 14:70].copy(), "value", operations=(replace(CROP, arguments={"box": [14, 28, 70, 56]}),)
    )
    verify = Replays()
    (found,) = rewarded(codevision_like, [played(shown, name="codedance")], verify)
    how = found.trajectory.images[1].transform
    assert how is not None and how["verified"] is True and how["size"] == [view.shape[1], view.shape[0]]
    across, down = 150 / view.shape[1], 100 / view.shape[0]
    assert found.signals.values["operations"][0]["box"] == pytest.approx(
        [14 * across, 28 * down, 70 * across, 56 * down]
    )


def codevision_like(signals_G: Any) -> list[None]:
    return [signals.values["operations"] and None for signals in signals_G]


def test_many_and_large_images_are_tested_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    portions: list[int] = []

    class Counted(Replays):
        async def __call__(self, pictures: Any, images: Any) -> Any:
            portions.append(len(images))
            return await super().__call__(pictures, images)

    boxes_ = [[x, 20, x + 60, 70] for x in range(5)]
    shown = [
        crop(GIVEN[20:70, x : x + 60].copy(), replace(CROP, arguments={"box": box})) for x, box in enumerate(boxes_)
    ]
    found = played(*shown)
    monkeypatch.setattr(claims, "MOST_IMAGES", 3)
    (one,) = rewarded(codevision_like, [found], Counted())
    assert (portions, verdicts(one.trajectory)) == ([3, 2], [True] * 5)
    portions.clear()
    monkeypatch.setattr(claims, "MOST_BYTES", 60 * 50 * 3 * 2)
    rewarded(codevision_like, [found], Counted())
    assert portions == [2, 2, 1]


def test_a_stream_tests_what_its_reward_asks_for() -> None:
    """The policy's turns never wait for it: the world has closed by then."""
    runner = FakeRunner(*[make_run("ok", images=(crop(),), operations=(CROP,)) for _ in range(2)])
    sample = replace(make_sample(tiny_model.store(), pixels=GIVEN), truth=TRUTH)
    verify = Replays()
    measure = SignalMeter(PLAIN, None, tiny_model.store(), Path())
    asked = Claims(tiny_model.store(), verify, measure)
    policy = Turns()
    world = lambda s: open_env(s, protocol=code_card("codevision"), runner=runner, images=tiny_model.store())  # noqa: E731
    stream = Stream(policy, tiny_model.chat(), world, LIMITS, measure, claims=asked)
    result = asyncio.run(stream({0: GroupRequest(sample, 2, 7)}, codevision.strategic))
    members = result.groups[0].members
    assert [verdicts(m.trajectory) for m in members] == [[True], [True]] and verify.images == 1
    assert [m.trajectory.images[1].parent for m in members] == [0, 0]


class Turns:
    """A call, then the answer, for as many trajectories as there are."""

    version = 0

    async def complete(self, request: Any) -> Any:
        turn = DONE if len(request.images) > 1 else called("codevision", code="x", image_index=0)
        return await ScriptedPolicy(tiny_model.chat(), [turn]).complete(request)


class Started:
    """A pool that was started."""

    def __init__(self, verify: Replays) -> None:
        self.verify = verify

    async def close(self) -> None:
        return None


def scored(folder: Path, reward: Any, verify: Replays, monkeypatch: pytest.MonkeyPatch, **how: Any) -> dict[str, Any]:
    """The signals of a stored trajectory after ``vtcli judge`` by a reward."""

    async def start(config: Any) -> Any:
        return Started(verify)

    monkeypatch.setattr(Pool, "start", start)
    source = find(ArtifactStore(folder), str(folder / "trajectories.jsonl"))
    signals = {"answer": answer.measure, "format": format_rule.measure, "usage": usage.measure, "code": code.measure}
    scorer = Scorer({"answer": FormReward("a", "answer", reward, {})}, signals)
    _, ((found,),) = asyncio.run(collect(source, [SignalSet(signals, scorer.wants, scorer.reads)], How(folder, **how)))
    return dict(found.values)


def test_a_stored_trajectory_is_tested_by_whoever_asks_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its signals were measured on claims; what rests on them is measured anew."""
    store = ImageStore(tmp_path / "images")
    found = rewarded(grpo_accuracy.accuracy, [played(crop(), images=store)], Replays())
    records.append(tmp_path / "trajectories.jsonl", found)
    before = (tmp_path / "trajectories.jsonl").read_bytes()
    verify = Replays()
    assert scored(tmp_path, grpo_accuracy.accuracy, verify, monkeypatch)["operations"][0]["verified"] is None
    assert verify.images == 0
    assert scored(tmp_path, codevision.strategic, verify, monkeypatch, measure="never")["operations"][0]["box"] is None
    assert verify.images == 0
    values = scored(tmp_path, codevision.strategic, verify, monkeypatch)
    assert values["operations"][0]["verified"] is True and values["operations"][0]["box"] == BOX
    assert verify.images == 1
    assert scored(tmp_path, grpo_accuracy.accuracy, verify, monkeypatch, again=("code",))["operations"][0]["verified"]
    assert (tmp_path / "trajectories.jsonl").read_bytes() == before


def test_it_is_said_where_a_stored_claim_cannot_be_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ImageStore(tmp_path / "images")
    (found,) = rewarded(grpo_accuracy.accuracy, [played(crop(), images=store)], Replays())
    last = found.trajectory.images[-1]
    how = {key: value for key, value in (last.transform or {}).items() if key != "picture"}
    old = replace(found.trajectory, images=(*found.trajectory.images[:-1], replace(last, transform=how)))
    records.append(tmp_path / "trajectories.jsonl", [replace(found, trajectory=old)])
    values = scored(tmp_path, codevision.strategic, Replays(), monkeypatch)
    assert values["operations"][0]["verified"] is None
    assert "1 trajectories were stored before claims of code kept their picture" in capsys.readouterr().err
