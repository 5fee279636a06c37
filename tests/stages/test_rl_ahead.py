"""``rl.steps_ahead=1``: rollouts beside the learner, by weights one update older, and a resume that changes nothing.
And the other way: policy and learner take turns, and what sleeps meanwhile changes nothing either."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import rl_world
from rl_world import KilledError, lines, opened, sleepy, turns

from stages import rl as stage
from vtcli.algo.optim import Backend
from vtcli.engines.policies import Engine
from vtcli.errors import ConfigError
from vtcli.schema import Scored
from vtcli.session import session
from vtcli.store import records
from vtcli.store.artifacts import Artifact


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with opened(tmp_path_factory.mktemp("ahead") / "artifacts") as home:
        yield home


def run(home: Path, name: str, **changes: Any) -> Artifact:
    return rl_world.run(home, name, **({"steps_ahead": 1} | changes))


def test_a_killed_run_learns_from_the_rollouts_that_were_under_way(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(home, "whole")
    kept = stage.log_step

    def die(*given: Any) -> None:
        if given[3] == 2:  # after the update of the third step and the rollouts of the fourth
            raise KilledError
        kept(*given)

    monkeypatch.setattr(stage, "log_step", die)
    with pytest.raises(KilledError):
        run(home, "killed")
    monkeypatch.setattr(stage, "log_step", kept)
    (left,) = [p for p in (home / ".work").glob("rl-*") if p.is_dir()]
    assert sorted(p.name for p in left.glob("checkpoints/step-*/ahead-0.json")) == ["ahead-0.json"] * 2
    resumed = run(home, "killed")
    assert (resumed.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert lines(resumed) == lines(whole)
    assert turns(resumed) == turns(whole)
    assert [line["updated"] for line in lines(whole)] == [1] * 4
    assert [line["staleness"] for line in lines(whole)] == [0, 1, 1, 1]


def test_a_turn_tells_the_weights_that_sampled_it(home: Path) -> None:
    """The first batch and the second are of the same weights; from then on each is of the weights one update back."""
    ahead, plain = run(home, "whole"), run(home, "plain", steps_ahead=0)
    per_step = 2 * 2

    def versions(made: Artifact) -> list[set[int]]:
        found = [scored.trajectory for scored in records.read(made.path / "trajectories.jsonl", Scored)]
        steps = [found[i : i + per_step] for i in range(0, len(found), per_step)]
        return [{turn.version for t in step for turn in t.policy_turns} for step in steps]

    assert versions(ahead) == [{0}, {0}, {1}, {2}]
    assert versions(plain) == [{0}, {1}, {2}, {3}]
    first, other = ([turn for turn in turns(made) if turn[3] == 0] for made in (ahead, plain))
    assert first[: len(other)] == other  # the same rollouts as long as the weights are the same
    mismatch = [line["mismatch_kl"] for line in lines(ahead)]
    assert mismatch[0] < 1e-6 < min(mismatch[1:])  # stale, which the importance weights are told
    assert max(line["mismatch_kl"] for line in lines(plain)) < 1e-6


@pytest.mark.wide(minutes=1.5)
def test_a_run_whose_engine_and_learner_sleep_is_the_same_bit_for_bit(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    awake = run(home, "awake", steps_ahead=0, backend=Backend(zero_stage=1))

    monkeypatch.setattr(session, "open_policy", sleepy)
    settings = {"engine": Engine("vllm", sleep=2), "backend": Backend(zero_stage=1, sleep=True), "steps_ahead": 0}
    kept = stage.log_step

    def die(*given: Any) -> None:
        if given[3] == 2:
            raise KilledError
        kept(*given)

    monkeypatch.setattr(stage, "log_step", die)
    with pytest.raises(KilledError):
        run(home, "asleep", **settings)
    monkeypatch.setattr(stage, "log_step", kept)
    asleep = run(home, "asleep", **settings)
    assert (asleep.path / "model.safetensors").read_bytes() == (awake.path / "model.safetensors").read_bytes()
    assert lines(asleep) == lines(awake)
    assert turns(asleep) == turns(awake)


@pytest.mark.parametrize("asleep", [{"engine": Engine("vllm", sleep=1)}, {"backend": Backend(2, sleep=True)}])
def test_what_generates_beside_the_learner_cannot_sleep(home: Path, asleep: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"rl\.steps_ahead=1 with engine\.sleep=. .* or rl\.steps_ahead=0"):
        run(home, "refused", **asleep)


@pytest.mark.wide
def test_keys_of_memory_engine_and_time_may_change_before_a_resume_and_others_may_not(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, logged, dying = stage.log_step, list[int](), [True]

    def log(*given: Any) -> None:
        if dying[0] and given[3] == 2:
            raise KilledError
        logged.append(given[3])
        kept(*given)

    def attempt(backend: Backend, engine: Engine, **optim: Any) -> Artifact:
        job = {
            "home": str(home),
            "name": "resumed",
            "rl": {"backend": asdict(backend), "agent": {"limits": {"timeout_s": engine.timeout_s}}, "optim": optim},
            "engine": asdict(engine),
        }
        return run(home, "resumed", steps_ahead=0, backend=backend, engine=engine, job=job)

    monkeypatch.setattr(stage, "log_step", log)
    with pytest.raises(KilledError):
        attempt(Backend(1), Engine("hf"))
    dying[0] = False
    roomier = Backend(1, batch_tokens=8192, activation_checkpointing=True, sleep=True, offload="optimizer")
    faster = Engine("hf", max_batch=7, timeout_s=60, gpu_memory=0.7, sleep=1)
    attempt(roomier, faster)
    assert logged == [0, 1, 2, 3]  # it went on where it was
    logged.clear()
    for other in (Backend(2), Backend(2, "bfloat16")):  # what is stored, and what is computed
        attempt(other, faster)
        assert logged == [0, 1, 2, 3]
        logged.clear()
    attempt(roomier, faster, lr=1e-4)
    assert logged == [0, 1, 2, 3]
    attempt(replace(roomier, sleep=False), faster)  # the first one's artifact is found again
    assert logged == [0, 1, 2, 3]
