"""Benchmarks as a part of validation inside RL: their own scorers and aggregates, at the weights of a step.

Each rank reads its share of the rows once, before the first validation. The images lie in the run's work folder, and
no training step sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vtcli.benchmarks import results, samples
from vtcli.benchmarks.results import RunSetting
from vtcli.envs.card import BoundCard, read_card
from vtcli.errors import ConfigError, InputError
from vtcli.protocols import Ranks
from vtcli.rollout.batch import RoundRequest, StepBatch
from vtcli.rollout.loop import GroupRequest, derive_seed
from vtcli.schema import Sample, Scored, Signals, Stop, Verdict
from vtcli.session.benchmark_questions import BenchmarkQuestions, Drawing
from vtcli.session.validation import FIGURES
from vtcli.signals.measuring import unjudged_share
from vtcli.signals.scorers.table import SCORERS
from vtcli.store.images import ImageStore

PROBLEMS_SHOWN = 3


@dataclass(frozen=True)
class BenchmarkExam:
    """Benchmarks that a run's validations ask, with the same rows, seeds and sampling each time.

    ``drawn`` holds for a benchmark without ``generation``. ``judge`` is the name of the model that judges.
    """

    asked: BenchmarkQuestions
    drawn: Drawing
    judge: str
    images: ImageStore  # of the run's work folder, beside those of training
    offer: Callable[[Sample], Sample]

    def round(self, ranks: Ranks) -> RoundRequest:
        """The round of every validation. Ranks share the reading of the rows out, and then know all of them."""
        local = self.asked.load(self.images, samples.Part(ranks.rank, ranks.world))
        questions = [sample for share in ranks.gather(list(map(self.offer, local))) for sample in share]
        names = list(self.asked.benchmarks)
        order = sorted(questions, key=lambda sample: names.index(sample.task))
        seed = derive_seed(self.asked.seed, "validation")

        def group(place: int) -> GroupRequest:
            drawn = self.drawn.of(self.asked.benchmarks[order[place].task].generation)
            return GroupRequest(order[place], drawn.count, seed, drawn.sampling)

        return RoundRequest(group, len(order), unrewarded)

    def figures(self, batch: StepBatch, ranks: Ranks) -> dict[str, float]:
        """Every figure of every benchmark over the rollouts of all ranks, with its 95 % interval (``_low``, ``_high``).

        ``counts.NAME.questions``, ``.broken``, ``.unanswered``, ``.unread`` and ``.unjudged`` say what they leave out.
        """
        shares: list[list[Scored]] = ranks.gather([_without_tokens(scored) for scored in batch.scored])
        rows = sorted((scored for share in shares for scored in share), key=lambda s: s.trajectory.id)
        broken = sum(scored.trajectory.stop is Stop.BROKEN for scored in rows)
        out = {"broken": broken / len(rows)}
        if (unjudged := unjudged_share(scored.signals for scored in rows)) is not None:
            out["judge/unjudged"] = unjudged
        for name, benchmark in self.asked.benchmarks.items():
            setting = RunSetting("", self.judge, "")
            result = results.result(name, benchmark, rows, setting, seed=self.asked.seed)
            if result is None:
                continue
            for figure in result.figures:
                key, e = f"{FIGURES}{name}.{figure.score}.{figure.name}", figure.estimate
                out[key] = e.value
                if e.low is not None and e.high is not None:
                    out |= {f"{key}_low": e.low, f"{key}_high": e.high}
            counts = ("questions", "broken", "unanswered", "unread", "unjudged")
            out |= {f"counts.{name}.{each}": float(getattr(result, each)) for each in counts}
        return out


def require_whole(asked: BenchmarkQuestions, drawn: Drawing, env: BoundCard, *, read: bool) -> None:
    """Checks benchmarks that validations of a run are to ask, before a model is loaded. ``read``: every row as well,
    as ``vtcli benchmarks check`` does.

    Raises:
        ConfigError: no folder; greedy answers drawn more than once; videos that the environment does not show; a scorer
            from outside with the name of one of ours.
        InputError: a copy that is not there, is not whole, or is of another version.
    """
    asked.require_folder("rl.validate.benchmarks_in")
    for name, benchmark in asked.benchmarks.items():
        own = drawn.of(benchmark.generation)
        if own.count > 1 and own.sampling.temperature == 0:
            raise ConfigError(
                f"the benchmark {name} asks each question {own.count} times, and rl.validate.temperature=0 gives equal "
                "answers: set rl.validate.temperature above 0, or rl.validate.group_size=1"
            )
        if any(form.video for form in benchmark.formats) and not read_card(env).videos:
            raise ConfigError(
                f"the benchmark {name} asks about videos, which the environment {read_card(env).name} does not show; "
                "env=pyvision_video does"
            )
        if hidden := sorted(set(benchmark.own) & set(SCORERS)):
            raise ConfigError(
                f"the benchmark {name} brings a scorer {hidden[0]}, and training may score by our rule of that name: "
                "give it another name under own"
            )
    if not read:
        return
    for name, benchmark in asked.benchmarks.items():
        copy = samples.check(Path(asked.folder or ""), name, benchmark)
        if not copy.files:
            asked.files()  # says which files are looked for
        if copy.complete:
            continue
        problems = [*(["another version than stated"] if copy.version == "another" else []), *copy.problems]
        rest = len(problems) - PROBLEMS_SHOWN
        listed = "; ".join(problems[:PROBLEMS_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")
        raise InputError(
            f"the local copy of {benchmark.title} cannot be asked in rl.validate: {listed}. A curve needs the whole "
            f"benchmark: vtcli benchmarks check {asked.folder} {name}. vtcli eval asks copies that are not whole."
        )


def unrewarded(signals_G: Sequence[Signals]) -> list[Verdict | None]:
    """A benchmark is scored, not rewarded."""
    return [None] * len(signals_G)


def _without_tokens(scored: Scored) -> Scored:
    """The parts of a trajectory that a scorer reads."""
    last = scored.trajectory.policy_turns[-1:]
    bare = tuple(replace(turn, completion=replace(turn.completion, token_ids=(), logprobs=())) for turn in last)
    return replace(scored, trajectory=replace(scored.trajectory, prompt_ids=(), images=(), turns=bare))
