"""Each stage, killed at every change that it makes on the disk, and on a full disk: the same command again gives the
same artifact to the bit, and computes no more than it must.

A kill is a state of the disk (``moments``), so that a command is killed without a process of its own. Two real kills
show that a process leaves such states.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import world
from moments import full_disk, recorded
from small_runs import DATASET, DEMOS, EVAL, RL, SFT, SMALL, kill_after_checkpoint, start

from vtcli.config import compose
from vtcli.engines.hf import HfPolicy
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.envs import produce
from vtcli.errors import VtcliError
from vtcli.runbook.step import stage_parts
from vtcli.signals.measuring import SignalMeter
from vtcli.store.artifacts import Artifact

pytestmark = pytest.mark.slow

SAMPLED = 8
"""Moments of each stage, drawn by a seed, between the first and the last: so many in which a line of a log is torn, and
so many others. All of them, some 50 to 350 of each stage, are of the release suite: each costs up to a second of CPU
time."""

DISKS = 2
"""Changes of each stage, drawn by a seed, from which on the disk is full."""

ALL = pytest.param(None, id="all", marks=pytest.mark.wide(minutes=4))


@dataclass(frozen=True)
class Case:
    stage: str
    words: Sequence[str]
    work: Sequence[tuple[Any, str]]  # functions of which each call is a piece of work


DRAWN, ASKED, LEARNT = [(produce, "_sample"), (produce, "_episode")], (HfPolicy, "complete"), (DeepSpeedLearner, "step")
# One question at a time: what is computed beside a rollout moves the last bit of its log-probabilities.
FILTER = ["+recipe=toolsrl", "filter=mixed", "filter.data=data:v1", "filter.model=base:v1"]
CASES = {
    "demos": Case("synth", DEMOS, DRAWN),
    "dataset": Case("synth", DATASET, DRAWN),
    "filter": Case("filter", [*FILTER, "filter.rollouts.group_size=2", "filter.rollouts.concurrency=1"], [ASKED]),
    "sft": Case("sft", [*SFT, "sft.rows_per_step=12"], [LEARNT]),
    "rl": Case("rl", RL, [ASKED, LEARNT]),
    "eval": Case("eval", [*EVAL, "eval.concurrency=1"], [ASKED]),
    "judge": Case("judge", ["policy:v1", "+recipe=toolsrl"], [(SignalMeter, "__call__")]),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vtcli.store.journal.SYNC_S", 0.0)  # every row waits for the disk: as many changes in each run
        yield world.linked(tmp_path_factory.mktemp("faults") / "artifacts")


class Command:
    """The same command again and again; ``work`` counts what it computed the last time."""

    def __init__(self, home: Path, case: Case, patch: pytest.MonkeyPatch) -> None:
        self.home, self.work = home, 0
        self.words = [*case.words, *SMALL, "name=made", f"home={home}"]
        config, self.stage = stage_parts(case.stage)
        self.config = compose.build(config, compose.load(case.stage, self.words))
        for owner, name in case.work:
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            self.work += 1
            return function(*given, **named)

        return counted

    def run(self) -> Artifact:
        self.work = 0
        return self.stage(self.config)

    def problems(self, wanted: dict[str, bytes]) -> list[str]:
        """What differs after the command was given again, or is left behind."""
        try:
            found = contents(self.run().path)
        except VtcliError as error:
            return [f"{type(error).__name__}: {error}"]
        other = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        left = [path for path in self.home.rglob("*") if "draft" in path.name or path.name.endswith(".vtcli-tmp")]
        left += (self.home / ".work").glob("*/")
        problems = [f"other content of {', '.join(other)}"] if other else []
        return [*problems, *(f"left behind: {path.relative_to(self.home)}" for path in left)]


def contents(made: Path) -> dict[str, bytes]:
    """Every file of an artifact, and its summary, but for the times in them."""
    found = {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file()}
    found["summary"] = json.dumps(json.loads(found.pop("manifest.json"))["summary"], sort_keys=True).encode()
    return {name: re.sub(rb'"(wall_s|time/\w+)": [0-9.e-]+', b"", data) for name, data in found.items()}


@pytest.mark.parametrize("sampled", [SAMPLED, ALL])
@pytest.mark.parametrize("name", CASES)
def test_killed_at_any_change_the_same_command_goes_on(
    name: str, sampled: int | None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(home, CASES[name], monkeypatch)
    with recorded(home) as recorder:
        wanted = contents(command.run().path)
    every = list(enumerate(recorder.every()))
    middle = every[1:-1]
    if sampled is not None:
        torn = [each for each in middle if each[1].torn]
        rest = [each for each in middle if not each[1].torn]
        dice = random.Random(name)
        middle = [each for part in (torn, rest) for each in dice.sample(part, min(sampled, len(part)))]
    chosen = sorted(middle, key=lambda each: each[0])
    print(f"{name}: {len(chosen) + 2} of {len(every)} moments")
    problems, before = list[str](), command.work
    for number, moment in (every[0], *chosen, every[-1]):
        moment.restore()
        found = command.problems(wanted)
        if command.work > before:
            found.append(f"{command.work} pieces of work, and {before} from an earlier moment on")
        before = command.work
        problems += [f"{number}, {moment.change}: {problem}" for problem in found]
    every[0][1].restore()
    assert not problems, "\n".join(problems)
    assert before == 0  # the last moment is after the commit


@pytest.mark.parametrize("sampled", [DISKS, pytest.param(20, marks=pytest.mark.wide(minutes=2))])
@pytest.mark.parametrize("name", CASES)
def test_a_full_disk_is_one_error_after_which_the_same_command_goes_on(
    name: str, sampled: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(home, CASES[name], monkeypatch)
    with recorded(home) as recorder, full_disk(home, sys.maxsize) as changes:
        wanted = contents(command.run().path)
    empty, problems = recorder.moments[0], list[str]()
    for number in sorted(random.Random(f"{name}-{sampled}").sample(range(1, len(changes) + 1), sampled)):
        empty.restore()
        found = ["no error"]
        try:
            with full_disk(home, number):
                command.run()
        except VtcliError as error:
            found = [] if os.strerror(errno.ENOSPC) in str(error) else [str(error)]
        except OSError as error:
            found = [f"an OSError, which is shown with its traceback: {error}"]
        problems += [f"{number}, {changes[number - 1]}: {problem}" for problem in found + command.problems(wanted)]
    empty.restore()
    assert not problems, "\n".join(problems)


def test_rl_killed_by_the_kernel_goes_on(home: Path) -> None:
    again = [*RL, "reuse=false"]
    assert kill_after_checkpoint(home, "rl", again).returncode == -signal.SIGKILL
    assert not (home / "policy" / "v2").exists()
    config, run = stage_parts("rl")
    made = run(compose.build(config, compose.load("rl", [*again, *SMALL, f"home={home}"])))
    assert contents(made.path) == contents(home / "policy" / "v1")


def test_eval_killed_by_the_kernel_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*EVAL, "eval.concurrency=1", "eval.max_samples=4", "memory=off"]
    whole = Command(home, Case("eval", [*words, "reuse=false"], [ASKED]), monkeypatch)
    wanted = contents(whole.run().path)
    process = start(home, "eval", [*words, "name=killed"])
    deadline = time.monotonic() + 240
    while not any(path.read_bytes().count(b"\n") > 1 for path in home.glob(".work/eval-*/rollouts/*/*.jsonl")):
        assert process.poll() is None, process.communicate()[0][-4000:]
        assert time.monotonic() < deadline, "no rollout"
        time.sleep(0.005)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL and not (home / "killed").exists()
    asked = whole.work
    resumed = Command(home, Case("eval", words, [ASKED]), monkeypatch)
    resumed.config = compose.build(
        stage_parts("eval")[0], compose.load("eval", [*words, *SMALL, "name=killed", f"home={home}"])
    )
    found = contents(resumed.run().path)
    assert found["trajectories.jsonl"] == wanted["trajectories.jsonl"]
    assert 0 < resumed.work < asked
