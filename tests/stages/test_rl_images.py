"""``rl.keep_images``: images on disk stop growing, a resumed run is the same, and the artifact holds a sample."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rl_world
from fakes import native_card
from rl_world import KilledError, lines, opened, reward, turns

from stages import rl as stage
from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.errors import ConfigError
from vtcli.protocols import DecodedTurn, Env, Syntax
from vtcli.rollout.loop import Limits
from vtcli.schema import ImageRef, Observation, Sample, Scored
from vtcli.store import records
from vtcli.store.artifacts import Artifact
from vtcli.store.images import ImageLimits, ImageStore

STEPS = 5  # of each phase
PER_STEP = 4  # trajectories


class Painter:
    """Answers each turn with a picture that nobody else gets, as a tool does whose arguments always differ."""

    syntax = Syntax(stop=tuple("aeiou.,<>"), reply="user")

    def __init__(self, sample: Sample, inputs: EnvInputs) -> None:
        self.plain, self.images = native_card().open(sample, inputs), inputs.images

    async def reset(self) -> tuple[str, str]:
        return await self.plain.reset()

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        if len(images) > 2:
            return None
        seed = hashlib.sha256(turn.text.encode()).digest()
        pixels = np.random.default_rng(list(seed)).integers(0, 256, (120, 90, 3), dtype=np.uint8)
        return Observation("<image>look", (self.images.add(pixels, 0, {"op": "paint"}),), ())

    async def close(self) -> None:
        await self.plain.close()


def painter() -> EnvCard:
    def open_env(sample: Sample, inputs: EnvInputs) -> Env:
        return Painter(sample, inputs)

    return EnvCard("painter", open_env, tools=native_card().tools)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with opened(tmp_path_factory.mktemp("images") / "artifacts") as home:
        yield home


def run(home: Path, name: str, **changes: Any) -> Artifact:
    fields: dict[str, Any] = {
        "phases": [stage.Phase(form, STEPS, form, reward) for form in ("tool", "answer")],
        "env": painter,
        "limits": Limits(max_turns=2, max_tokens=1500, max_turn_tokens=40, max_images=6),
        "images": ImageLimits(56 * 56, 84 * 84),
        "checkpoint_every": 3,
        "checkpoint_keep": 1,
        "job": {"home": str(home), "name": name},
    }
    return rl_world.run(home, name, **(fields | changes))


def images_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.rglob("*.png")}


@pytest.fixture
def sizes(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of images on disk after every step."""
    kept, found = stage.log_step, list[int]()

    def log(*given: Any) -> None:
        (work,) = [p for p in (home / ".work").glob("rl-*") if p.is_dir()]
        found.append(sum(p.stat().st_size for folder in ("images", "steps") for p in (work / folder).rglob("*.png")))
        kept(*given)

    monkeypatch.setattr(stage, "log_step", log)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, pytest.param(1, marks=pytest.mark.wide)])
def test_images_on_disk_stop_growing_and_a_resumed_run_is_the_same(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    ahead: int,
) -> None:
    monkeypatch.setattr("vtcli.store.retention.submit", lambda work: work())
    whole = run(home, f"whole-{ahead}", steps_ahead=ahead)
    everything = list(sizes)
    assert everything[-1] > 1.8 * everything[3]  # each step adds its own
    sizes.clear()

    plain = stage.log_step

    def die(*given: Any) -> None:
        if given[3] == 8:  # the last checkpoint is that of six steps, and its rollouts ahead are of the seventh
            raise KilledError
        plain(*given)

    monkeypatch.setattr(stage, "log_step", die)
    with pytest.raises(KilledError):
        run(home, f"some-{ahead}", steps_ahead=ahead, keep_images=5)
    monkeypatch.setattr(stage, "log_step", plain)
    some = run(home, f"some-{ahead}", steps_ahead=ahead, keep_images=5)
    assert sizes[-1] < everything[-1] * (0.8 if ahead else 0.5)  # of ten steps three stay, or six with checkpoints'
    if not ahead:
        assert max(sizes) < 1.6 * max(sizes[:4])  # the newest steps, and five trajectories
    assert (some.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert lines(some) == lines(whole)
    assert turns(some) == turns(whole)

    found = [s.trajectory for s in records.read(some.path / "trajectories.jsonl", Scored)]
    assert len(found) == 2 * STEPS * PER_STEP
    store = ImageStore(some.path / "images")
    listed = json.loads((store.root / "sampled.json").read_text())["trajectories"]
    kept = [n for n, t in enumerate(found) if t.id in listed]
    assert len(kept) == len(listed)
    assert [n // PER_STEP for n in kept] == [1, 3, 5, 7, 9]  # 5 of 10 steps, one trajectory of each
    held = {sha for n in kept for ref in found[n].images for sha in (ref.full, ref.view)}
    assert images_in(store.root) == held
    assert [not store.dropped(t.images) for t in found] == [{ref.view for ref in t.images} <= held for t in found]
    every = ImageStore(whole.path / "images")
    assert all(every.has(t.images) and not every.dropped(t.images) for t in found)


@pytest.mark.wide
def test_images_and_logs_may_be_kept_in_another_way_from_a_resume_on(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, deaths = stage.log_step, [3, 6]

    def die(*given: Any) -> None:
        if deaths and given[3] == deaths[0]:
            deaths.pop(0)
            raise KilledError
        plain(*given)

    monkeypatch.setattr(stage, "log_step", die)
    for keep in ("all", 2):
        with pytest.raises(KilledError):
            run(home, "changed", steps_ahead=1, keep_images=keep, compress_logs=keep != "all")
    made = run(home, "changed", steps_ahead=1, keep_images="all")
    plain_log, small_log = (
        [s.trajectory for s in records.read(made.path / f"trajectories.jsonl{ending}", Scored)]
        for ending in ("", ".zst")
    )
    found = [*plain_log[: 3 * PER_STEP], *small_log, *plain_log[3 * PER_STEP :]]
    assert len({t.id for t in found}) == len(found) == 2 * STEPS * PER_STEP
    store = ImageStore(made.path / "images")
    missing = {n // PER_STEP for n, t in enumerate(found) if store.dropped(t.images)}
    assert missing == {5, 6}  # of the first attempt, which kept all, are steps 0 to 4; of the third 7 to 9


@pytest.mark.parametrize("value", ["some", -1, True])
def test_a_wrong_number_is_refused(home: Path, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"\bkeep_images: .*\ball\b"):
        run(home, "wrong", keep_images=value)
