"""``rl.validate``: held-out questions at the weights of a step, which change nothing in what is trained."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rl_world
from benchmark_copies import parquet, struct
from rl_world import KilledError, lines, opened, sleepy, turns

from stages import rl as stage
from vtcli.algo.optim import Backend
from vtcli.benchmarks.benchmark import Benchmark, Generation
from vtcli.config.binding import convert
from vtcli.engines.policies import Engine
from vtcli.errors import ConfigError, InputError
from vtcli.report.folder import load_training
from vtcli.schema import Scored, Signals, Verdict
from vtcli.session import benchmark_validation, session, validation
from vtcli.session.validation import Validation
from vtcli.store import records
from vtcli.store.artifacts import Artifact

SAMPLED = {"_target_": "uneven.measure"}
TOTAL = 2 * rl_world.STEPS
EVERY = Validation(every=2, prompts=3)


def noisy(signals_G: Sequence[Signals]) -> list[Verdict | None]:
    """A reward that draws from the global generator, as a plug point from outside may."""
    return [Verdict(float(str(s.values["sampled"])) + random.random(), {}) for s in signals_G]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with opened(tmp_path_factory.mktemp("validation") / "artifacts") as home:
        yield home


def run(home: Path, name: str, **changes: Any) -> Artifact:
    random.seed(0)
    phases = [stage.Phase(form, rl_world.STEPS, form, noisy) for form in ("tool", "answer")]
    return rl_world.run(home, name, **({"phases": phases} | changes))


def validated(made: Artifact) -> list[dict[str, Any]]:
    """The lines of ``validation.jsonl`` but for times."""
    found = [json.loads(line) for line in (made.path / "validation.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in found]


def images(made: Artifact) -> set[str]:
    return {path.name for path in (made.path / "images").rglob("*.png")}


def assert_same_training(one: Artifact, other: Artifact) -> None:
    assert (one.path / "model.safetensors").read_bytes() == (other.path / "model.safetensors").read_bytes()
    assert lines(one) == lines(other)
    assert turns(one) == turns(other)
    assert images(one) == images(other)


def test_training_is_the_same_bit_for_bit_and_a_killed_validation_is_written_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rollouts beside the learner. The test with benchmarks has them in turn."""
    plain = run(home, "plain", steps_ahead=1)
    assert not (plain.path / "validation.jsonl").exists()
    made = run(home, "made", steps_ahead=1, validate=EVERY)
    assert [line["updated"] for line in lines(made)] == [1] * TOTAL
    assert_same_training(made, plain)

    found = validated(made)
    assert [line["step"] for line in found] == [0, 2, 4]
    for line in found:
        assert line["validation/questions"] == line["validation/rollouts"] == 3
        assert 0 <= line["validation/reward"] <= 2
    stored = [list(records.read(made.path / "validation" / f"{step:06d}.jsonl", Scored)) for step in (0, 2, 4)]
    assert [{turn.version for s in part for turn in s.trajectory.policy_turns} for part in stored] == [{0}, {2}, {4}]
    assert {(s.trajectory.sample.split, s.trajectory.sample.form) for s in stored[0]} == {("validation", "answer")}
    rewards = [s.reward for s in stored[1] if s.reward is not None]
    assert found[1]["validation/reward"] == pytest.approx(sum(rewards) / 3)
    curves = {curve.name: curve for curve in load_training(made.path).curves}
    assert curves["validation/reward"].steps == (0, 2, 4)

    kept, calls = validation.figures, list[int]()

    def die(batch: Any) -> dict[str, float]:
        calls.append(batch.step)
        if batch.step == 4 and calls.count(4) == 1:
            raise KilledError
        return kept(batch)

    monkeypatch.setattr(validation, "figures", die)
    settings = {"steps_ahead": 1, "validate": EVERY, "checkpoint_every": 2}
    with pytest.raises(KilledError):
        run(home, "killed", **settings)
    resumed = run(home, "killed", **settings)
    assert calls == [0, 2, 4, 4]
    assert_same_training(resumed, plain)
    assert validated(resumed) == found


@pytest.mark.slow
@pytest.mark.wide
def test_it_takes_turns_with_a_learner_and_an_engine_that_sleep(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    awake = run(home, "awake", backend=Backend(zero_stage=1), validate=EVERY)
    monkeypatch.setattr(session, "open_policy", sleepy)
    settings = {"engine": Engine("vllm", sleep=2), "backend": Backend(zero_stage=1, sleep=True)}
    asleep = run(home, "asleep", validate=EVERY, **settings)
    assert_same_training(asleep, awake)
    assert validated(asleep) == validated(awake)


def test_the_artifact_says_which_checkpoint_was_best_on_held_out_questions(home: Path) -> None:
    every = replace(EVERY, every=1, at_start=False, group_size=2, temperature=1.0)
    made = run(home, "best", validate=every, checkpoint_best="validation/reward")
    values = {line["step"]: line["validation/reward"] for line in validated(made)}
    assert list(values) == [1, 2, 3, 4]
    best = made.manifest.summary["best"]
    assert best == {
        "metric": "validation/reward",
        "steps": max(values, key=values.__getitem__),
        "value": max(values.values()),
    }
    assert (made.path / "best" / "model.safetensors").exists()
    assert validated(made)[0]["validation/rollouts"] == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validate": Validation(form="image")}, r"validate\.form=image: no phase has that form, only answer, tool"),
        ({"checkpoint_best": "validation/accuracy"}, r"needs validation: set rl\.validate\.every, say to 1"),
        (
            {"checkpoint_best": "validation/accuracy", "checkpoint_every": 3, "validate": Validation(every=2)},
            r"rl\.checkpoint_every=3 and rl\.validate\.every=2 neither is a multiple",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_a_model_is_loaded(
    home: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(home, "refused", **changes)


def test_a_split_that_is_not_there_is_refused(home: Path) -> None:
    with pytest.raises(InputError, match=r"answer-test\.parquet.*answer-validation"):
        run(home, "refused", validate=Validation(every=1, split="test"))


def test_greedy_answers_are_drawn_once() -> None:
    with pytest.raises(ConfigError, match=r"\bgroup_size: .*temperature"):
        Validation(every=1, group_size=4)


MINI = {
    "title": "Mini",
    "rows": 4,
    "formats": [{"files": "mini.parquet", "id": "key", "question": "ask", "answer": "gold"}],
    "scores": ["short", "exact"],
    "own": {"short": {"_target_": "uneven.short"}},
}


@pytest.fixture(scope="module")
def copies(home: Path) -> Path:
    """Whole local copies of two benchmarks."""
    for name in ("mini", "other"):
        rows = [{"key": f"k{n}", "ask": "Turn it.", "gold": "K", "image": struct(n)} for n in range(4)]
        parquet(home.parent / "copies" / name / "mini.parquet", rows)
    return home.parent / "copies"


def with_benchmarks(copies: Path, **changes: Any) -> dict[str, Any]:
    benchmarks = {name: convert(MINI, Benchmark, name) for name in ("mini", "other")}
    return {"validate": replace(EVERY, benchmarks_in=str(copies), **changes), "benchmark": benchmarks}


def test_benchmarks_are_asked_without_a_trace_in_training_and_the_best_is_chosen_by_one(
    home: Path, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(home, "unasked", keep_images=2)
    best = "validation/benchmark.other.exact.all"
    settings = with_benchmarks(copies) | {"checkpoint_best": best, "checkpoint_every": 2, "keep_images": 2}
    made = run(home, "asked", **settings)
    assert_same_training(made, plain)

    found = validated(made)
    assert [line["step"] for line in found] == [0, 2, 4]
    for line in found:
        assert line["validation/questions"] == line["validation/counts.mini.questions"] == 3
        assert line["validation/benchmark.other.short.all"] <= 1
    assert made.manifest.summary["best"]["metric"] == best
    stored = list(records.read(made.path / "validation" / "000002.jsonl", Scored))
    assert [s.trajectory.sample.task for s in stored] == ["rotflip"] * 3 + ["mini"] * 3 + ["other"] * 3
    curves = {curve.name: curve for curve in load_training(made.path).curves}
    assert curves["validation/benchmark.mini.exact.all"].steps == (0, 2, 4)
    assert not any(name.endswith("_low") for name in curves)

    kept, calls = benchmark_validation.BenchmarkExam.figures, list[int]()

    def die(exam: Any, batch: Any, ranks: Any) -> dict[str, float]:
        calls.append(batch.step)
        if batch.step == 4 and calls.count(4) == 1:
            raise KilledError
        return kept(exam, batch, ranks)

    monkeypatch.setattr(benchmark_validation.BenchmarkExam, "figures", die)
    with pytest.raises(KilledError):
        run(home, "died", **settings)
    resumed = run(home, "died", **settings)
    assert calls == [0, 2, 4, 4]
    assert_same_training(resumed, plain)
    assert validated(resumed) == found


def test_benchmarks_alone_may_be_asked(home: Path, copies: Path) -> None:
    answer = {"signals": {"answer": {"_target_": "vtcli.signals.answer.measure"}, "sampled": SAMPLED}}
    made = run(home, "alone", **with_benchmarks(copies, split=None, every=4, at_start=False), **answer)
    (line,) = validated(made)
    (first, *_) = records.read(made.path / "validation" / "000004.jsonl", Scored)
    assert first.signals.values["answer_correct"] is not None  # by a rule from outside
    assert line["validation/counts.mini.questions"] == 3 and "validation/reward" not in line


def test_benchmarks_that_cannot_be_asked_are_refused_before_a_model_is_loaded(
    home: Path, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_open", lambda *given: pytest.fail("it went on"))
    settings = with_benchmarks(copies)
    mini = settings["benchmark"]["mini"]
    with pytest.raises(InputError, match=r"Mini .*rl\.validate: 4 .*\b9\b"):
        run(home, "refused", **settings | {"benchmark": {"mini": replace(mini, rows=9)}})
    with pytest.raises(InputError, match=r"mini\.parquet, .*third/"):
        run(home, "refused", **settings | {"benchmark": {"third": mini}})
    with pytest.raises(ConfigError, match=r"rl\.validate\.benchmarks_in "):
        run(home, "refused", **settings | {"validate": EVERY})
    filmed = replace(mini, formats=(replace(mini.formats[0], video="{key}.mp4"),))
    eight = replace(mini, generation=Generation(group_size=8))
    with pytest.raises(ConfigError, match=r"\bmini .* 8 .*rl\.validate\.temperature=0"):
        run(home, "refused", **settings | {"benchmark": {"mini": eight}})
    with pytest.raises(ConfigError, match=r"benchmark=\[vstar\].*validation/benchmark\.vstar"):
        run(home, "refused", **settings | {"checkpoint_best": "validation/benchmark.vstar.choices.all"})
    with pytest.raises(ConfigError, match=r"\bmini .*videos.*\bnative\b"):
        run(home, "refused", **settings | {"benchmark": {"mini": filmed}})
    with pytest.raises(ConfigError, match="split=null"):
        run(home, "refused", validate=replace(EVERY, split=None))
