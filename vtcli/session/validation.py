"""Validation inside RL: held-out questions at the weights of a step, without a trace in the training.

Rollouts of validation have a collector, an admission, seeds and a folder of images of their own, and the global random
generators are put back. So a run learns the same weights with and without it, bit for bit, and its ``metrics.jsonl`` is
the same. Figures go to ``validation.jsonl`` and the tracker, by the number of updates that the weights have had.
Trajectories go to ``validation/000012.jsonl``.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from vtcli.algo.monitor import describe, refuse_banned_mass
from vtcli.config.bounds import OutOfBounds, at_least, within
from vtcli.engines.phases import Phases
from vtcli.errors import ConfigError, InputError
from vtcli.foreign import print_line
from vtcli.protocols import Ranks, Reward, Sampling, Tracker
from vtcli.rollout.batch import Collector, Fill, RoundRequest, StepBatch
from vtcli.rollout.loop import MAX_TEMPERATURE, GroupRequest, derive_seed
from vtcli.rollout.threads import Runs
from vtcli.schema import Credit, Group, Sample
from vtcli.session.benchmark_questions import Drawing
from vtcli.session.session import Session
from vtcli.signals.measuring import unjudged_share
from vtcli.statistics.metrics import estimate
from vtcli.store import disk, records
from vtcli.store.artifacts import Artifact
from vtcli.store.checkpoints import VALIDATED, Interval
from vtcli.store.images import ImageStore
from vtcli.store.records import SampleSet, in_training
from vtcli.store.retention import Retention
from vtcli.store.videos import portable

LOG, FOLDER = "validation.jsonl", "validation"
"""Names in the model artifact: figures, one line a validation; and the folder of trajectories."""

FIGURES = "benchmark."
"""Beginning of the names of benchmarks' figures: ``benchmark.vstar.choices.all``, as ``vtcli eval`` tells a tracker."""

OF_GROUPS = ("frac_reward_zero_std", "reward_std")
"""Metrics of training that say how much a group has to teach. Validation leaves them out."""


@dataclass(frozen=True)
class Validation:
    """``rl.validate``: which questions, how often, and how answers are drawn. One form and one reward hold for the
    whole run, so that values of a curve can be compared."""

    every: int = 0  # steps, and after the last one; 0: no validation
    data: str | None = None  # dataset artifact; None: the one that is trained on
    split: str | None = "validation"  # null: no questions of a dataset, benchmarks alone
    form: str | None = None  # None: the form of the last phase
    benchmarks_in: str | None = None  # folder with local copies of the run's benchmarks, which are asked as well
    prompts: int | None = 64  # evenly spread over the split, and over each benchmark; None: all
    group_size: int = 1
    temperature: float = 0.0  # greedy; above it with the top_k, top_p, min_p and spans of training
    at_start: bool = True  # also of the weights that the run begins with

    def __post_init__(self) -> None:
        at_least(0, self, "every")
        at_least(1, self, "group_size", "prompts")
        within(self.temperature, "temperature", 0, MAX_TEMPERATURE)
        if self.group_size > 1 and self.temperature == 0:
            raise OutOfBounds("group_size", "above 1 needs a temperature above 0: greedy answers are equal.")

    def due(self, updates: int, total: int) -> bool:
        """Returns True if the weights after ``updates`` of ``total`` updates are validated."""
        if not self.every:
            return False
        return self.at_start if updates == 0 else updates % self.every == 0 or updates == total

    def drawn(self, training: Sampling) -> Drawing:
        """Rollouts of each question and their sampling, which above temperature 0 is otherwise that of training."""
        sampling = replace(training, temperature=self.temperature) if self.temperature else Sampling(0.0)
        return Drawing(self.group_size, sampling)

    def require(
        self, forms: Sequence[str], checkpoint_every: int | str, best: str | None, benchmarks: Collection[str] = ()
    ) -> None:
        """Checks what it has to do with the phases' ``forms`` and with the choice of the best checkpoint.

        Raises:
            ConfigError: a form without a phase; nothing is asked; the best is chosen by validation, and no checkpoint
                would have a value, or by a benchmark that is not asked.
        """
        if benchmarks and not self.every:
            print_line("rl: benchmark=[…] is asked by validation alone, which rl.validate.every=0 leaves out.")
        if self.every and self.split is None and not benchmarks:
            raise ConfigError(
                "rl.validate.split=null asks benchmarks alone, of which none is chosen: benchmark=[vstar]"
            )
        if self.form not in (None, *forms):
            raise ConfigError(
                f"rl.validate.form={self.form}: no phase has that form, only {', '.join(sorted(set(forms)))}"
            )
        if best is None or not best.startswith(VALIDATED):
            return
        name = best.removeprefix(VALIDATED + FIGURES).partition(".")[0]
        if best.startswith(VALIDATED + FIGURES) and name not in benchmarks:
            raise ConfigError(
                f"rl.checkpoint_best={best} is a figure of the benchmark {name}, which no validation asks: give "
                f"benchmark=[{name}], whose figures are {VALIDATED}{FIGURES}{name}.SCORE.FIGURE"
            )
        steps = Interval.read(checkpoint_every).steps or 1
        if not self.every:
            raise ConfigError(f"rl.checkpoint_best={best} needs validation: set rl.validate.every, say to {steps}")
        if self.every % steps and steps % self.every:
            raise ConfigError(
                f"rl.checkpoint_best={best} chooses among validated checkpoints, but of rl.checkpoint_every={steps} "
                f"and rl.validate.every={self.every} neither is a multiple of the other: make one of them so"
            )


@dataclass(frozen=True)
class HeldOut:
    """The questions of a run's validations, the same each time, and how they are asked and scored. ``offer`` gives a
    sample the run's tools; ``sampling`` is that of training."""

    settings: Validation
    data: Artifact
    form: str
    reward: Reward
    tasks: Sequence[str] | None
    bad_rows: Literal["error", "skip"]
    images: ImageStore
    offer: Callable[[Sample], Sample]
    sampling: Sampling
    seed: int

    def round(self, ranks: Ranks) -> RoundRequest:
        """The round of every validation: the same samples and seeds, so that weights alone differ.

        Raises:
            InputError: no such questions, or rows that cannot be used.
        """
        settings = self.settings
        assert settings.split is not None
        samples = SampleSet(self.data, self.form, settings.split, self.images, in_training(self.bad_rows), ranks)
        places = self._places(samples)
        drawn, seed = settings.drawn(self.sampling), derive_seed(self.seed, "validation")

        def group(place: int) -> GroupRequest:
            return GroupRequest(self.offer(samples.load(places[place])), drawn.count, seed, drawn.sampling)

        return RoundRequest(group, len(places), self.reward)

    def _places(self, samples: SampleSet) -> list[int]:
        """``prompts`` of the samples, evenly spread over those of ``tasks``, or of all."""
        names = samples.tasks() if self.tasks is not None else []
        kept = [i for i, task in enumerate(names) if task in (self.tasks or ())] if names else [*range(len(samples))]
        if not kept:
            raise InputError(
                f"{self.data.ref} has no row of {self.form}-{self.settings.split} of the tasks "
                f"{self.tasks or 'that it may have'}, which rl.validate is to ask."
            )
        count = min(len(kept), self.settings.prompts or len(kept))
        # Spread and not the first ones, because rows of one task or difficulty often lie together.
        return [kept[i * len(kept) // count] for i in range(count)]

    def figures(self, batch: StepBatch, ranks: Ranks) -> dict[str, float]:
        return figures(batch)


class Exam(Protocol):
    """Questions of a run's validations, as one round, and the figures of their rollouts."""

    def round(self, ranks: Ranks) -> RoundRequest: ...

    def figures(self, batch: StepBatch, ranks: Ranks) -> dict[str, float]:
        """By the names that they have after ``validation/``; ``broken`` is one. Collective."""
        ...


def no_credit(groups: Sequence[Group]) -> list[list[Credit]]:
    """Nothing is learnt from validation."""
    return [[None] * len(group.members) for group in groups]


@dataclass
class Validator:
    """Validates the policy of a run. All ranks make one and call it together; they share the questions out."""

    settings: Validation
    exams: Sequence[Exam]
    loop: Runs
    session: Session
    phases: Phases
    retention: Retention
    work: Path  # the run's folder
    tracker: Tracker
    max_banned_mass: float  # as for the steps of training
    compress: bool = False
    _collectors: list[tuple[Collector, RoundRequest]] = field(
        default_factory=list[tuple[Collector, RoundRequest]], init=False
    )

    def __post_init__(self) -> None:
        from vtcli.engines.learner.distributed import ranks

        for exam in self.exams if self.settings.every else ():
            # At the start of the run, because rows that cannot be used shall not be found after hours of training.
            asked = exam.round(ranks("the check of held-out rows"))
            everyone = ranks("the rollouts of validation of all ranks")
            self._collectors.append((Collector(self.loop, self.session.stream(), no_credit, Fill(0), everyone), asked))

    def __call__(self, updates: int, total: int) -> dict[str, float]:
        """Validates the weights after ``updates`` of ``total`` updates. Returns what it stored; nothing where none is
        due. It ends in the learner's turn."""
        from vtcli.engines.learner.distributed import random_state, set_random_state

        if not self._collectors or not self.settings.due(updates, total):
            return {}
        # The generators' state is taken now and put back below, so that training draws the same with and without it.
        begin, state, rank = time.perf_counter(), random_state(), self._collectors[0][0].ranks.rank
        self.phases.generate(updates)
        # Its pictures lie in a folder of their own, which goes with the validation: training counts on none of them.
        with self.retention.apart():
            batches = [collector.collect(updates, [asked]) for collector, asked in self._collectors]
        self.phases.learn()
        set_random_state(state)  # a plug point may have drawn from them
        trajectories = self._store(batches, updates, rank)
        named: dict[str, float] = {}
        for exam, (collector, _), batch in zip(self.exams, self._collectors, batches, strict=True):
            metrics = exam.figures(batch, collector.ranks)
            rolled_out = [scored.trajectory for scored in batch.scored]
            where = f"validation after {updates} updates ({trajectories})"
            self.session.check(metrics["broken"], metrics.get("judge/unjudged"), rolled_out, where)
            refuse_banned_mass(metrics.get("banned_mass"), self.max_banned_mass, where)
            named = {f"{VALIDATED}{name}": value for name, value in metrics.items()} | named
        named["time/validate_s"] = time.perf_counter() - begin
        # The figures are of all ranks already, so the first one alone writes them.
        if rank == 0:
            with disk.checked(self.work / LOG, "append to"), (self.work / LOG).open("a") as file:
                file.write(json.dumps({"step": updates, **named}) + "\n")
            self.tracker.metrics(named, updates)
        return named

    def _store(self, batches: Sequence[StepBatch], updates: int, rank: int) -> Path:
        """Writes this rank's trajectories, in place of those of an attempt that was interrupted."""
        name = f"{updates:06d}{f'-{rank}' if rank else ''}.jsonl"
        plain, small = (self.work / FOLDER / f"{name}{ending}" for ending in ("", ".zst"))
        # Both endings, because the attempt before may have run at another scale's setting of compression.
        plain.unlink(missing_ok=True)
        small.unlink(missing_ok=True)
        path = small if self.compress else plain
        records.append(path, [portable(scored) for batch in batches for scored in batch.scored])
        return path


def figures(batch: StepBatch) -> dict[str, float]:
    """Means over the rollouts of all ranks, by the names that they have in training.

    ``questions`` is their number. ``accuracy`` is the mean over the ``accuracy_questions`` that have one, with its 95 %
    interval from ``accuracy_low`` to ``accuracy_high``.
    """
    groups = list(batch.everyone.values())
    metrics = describe(groups, [count for each in batch.light.values() for count in each.tokens])
    metrics["questions"] = float(len(groups))
    right = [share for group in groups if (share := _right(group)) is not None]
    if right:
        accuracy = estimate(right, seed=0)
        metrics |= {"accuracy": accuracy.value, "accuracy_questions": float(accuracy.n)}
        if accuracy.low is not None and accuracy.high is not None:
            metrics |= {"accuracy_low": accuracy.low, "accuracy_high": accuracy.high}
    if (unjudged := unjudged_share(m.signals for group in groups for m in group.members)) is not None:
        metrics["judge/unjudged"] = unjudged
    return {name: value for name, value in metrics.items() if name not in OF_GROUPS}


def _right(group: Group) -> float | None:
    """The share of right answers among the scored rollouts of one question."""
    values = [m.signals.values.get("answer_correct") for m in group.members if m.reward is not None]
    known = [float(value) for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def collect(work: Path, target: Path) -> None:
    """Puts figures and trajectories of a finished run into the folder of its artifact."""
    if (work / LOG).exists():
        shutil.copyfile(work / LOG, target / LOG)
        shutil.copytree(work / FOLDER, target / FOLDER, dirs_exist_ok=True)
