"""``vtcli judge``: scores stored trajectories under one recipe or all, or compares two judges of them."""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vtcli import judging
from vtcli.config.binding import bind
from vtcli.config.bounds import at_least, shares
from vtcli.config.commandline import running
from vtcli.errors import ConfigError, VtcliError
from vtcli.judging.oracle import open_judge as open_oracle
from vtcli.protocols import Signal
from vtcli.report import printing, scores
from vtcli.runs.run import RunSettings, Scope, StageRun, open_run
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.schema import Signals
from vtcli.scoring import agreement, matrix, stored, verdicts
from vtcli.scoring.collect import How, SignalSet, collect
from vtcli.scoring.matrix import RecipeTotals
from vtcli.scoring.missing import Measure, needs_judge
from vtcli.scoring.stored import Facts, Score, TrajectorySource
from vtcli.signals.measuring import OpenJudge
from vtcli.store import codec, disk, records
from vtcli.store.artifacts import Artifact, ArtifactStore

RUNTIME_KEYS = ("scoring.concurrency", "scoring.max_unjudged", "scoring.recipes_in", *judging.RUNTIME_KEYS)
"""Keys that change no score."""

ORACLE = "oracle"  # the other side of an agreement


@dataclass(frozen=True)
class Config:
    """Section ``scoring``; ``judge`` is the judge that signals ask."""

    trajectories: str  # artifact, JSONL file or folder
    mode: Literal["score", "matrix", "agreement"] = "score"  # matrix: --all-recipes
    against: str | None = None  # agreement: the other input, or "oracle"
    recipe: str | None = None  # its name, for the artifact's; set by +recipe=
    recipes: list[str] | None = None  # matrix: RECIPE or RECIPE/VARIANT; null: all of conf/recipe
    recipes_in: str | None = None  # a folder of own ones; --config-dir fills it in
    phase: str | None = None  # the only phase with a reward to use; null: the last one of each form
    group_size: int | None = None  # null: as in the run that made them
    measure: Measure = "missing"  # signals that are not stored; never: stored ones only
    again: tuple[str, ...] = ()  # signals, by their names in the configuration, to be measured although stored
    compared: tuple[str, ...] = agreement.COMPARED  # agreement: these signals, as far as both inputs have them
    shown: int = 3  # disagreements of each pair of recipes, in each direction
    concurrency: int = 64  # trajectories whose signals are measured at a time
    signals: dict[str, Signal] = field(default_factory=dict[str, Signal])
    judge: OpenJudge | None = None  # conf/judge; None: the oracle
    max_unjudged: float = 0.05  # share without a verdict, of the trajectories that the judge is asked about
    sandbox: PoolConfig = field(default_factory=PoolConfig)  # tests claims of code, if a reward needs them
    seed: int = 0
    job: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if (self.against is not None) != (self.mode == "agreement"):
            raise ConfigError("`vtcli judge agreement A B` compares two inputs; `vtcli judge A` scores one")
        if self.mode == "score":
            verdicts.rewards_of(self.job.get("rl") or {}, self.phase)
        if unknown := sorted(set(self.again) - set(self.signals)):
            raise ConfigError(f"scoring.again: no signals {unknown}; the configuration has {sorted(self.signals)}")
        at_least(1, self, "concurrency", "group_size")
        at_least(0, self, "shown")
        shares(self, "max_unjudged")
        if not self.compared:
            raise ConfigError("scoring.compared=[]: expected the names of signals, say scoring.compared=[evidence]")


def run(config: Config) -> Artifact:
    """Scores or compares, and returns the artifact: ``scores.jsonl`` and ``summary.json``; ``matrix.parquet``,
    ``matrix.json`` and ``matrix.html``; or ``agreement.json``.

    Raises:
        InputError: trajectories are missing, damaged, of another schema version, or cannot be scored.
        ConfigError: a signal that the reward needs is neither stored nor measured.
    """
    source = stored.find(_store(config), config.trajectories)
    return {"score": _score, "matrix": _matrix, "agreement": _agreement}[config.mode](config, source)


def _open(
    config: Config, name: str, kind: Any, sources: Sequence[TrajectorySource], identity: Mapping[str, Any]
) -> Any:
    """Opens the run with the inputs' contents and the rewards in its fingerprint, because they decide the scores."""
    parents = [parent for source in sources for parent in source.parents]
    inputs = {"input": sources[0].origin(), **({"against": sources[1].origin()} if len(sources) > 1 else {})}
    settings = RunSettings.of(config.job, name)
    return open_run(settings, "judge", kind, {**config.job, **inputs, **identity}, parents, Scope(RUNTIME_KEYS))


def _score(config: Config, source: TrajectorySource) -> Artifact:
    rewards = verdicts.rewards_of(config.job["rl"], config.phase)
    variant = "-code" if config.job.get("variant") == "code" else ""
    name = f"scores-{config.recipe}{variant}" if config.recipe else "scores"
    with _open(config, name, "scores", [source], {"rewards": verdicts.nodes(rewards)}) as stage:
        if stage.reused:
            # An identical run exists: print its table again instead of asking the judge.
            scored = list(records.read(stage.reused.path / stored.SCORES, Score))
            printing.print_all(scores.summary(scored, config.seed))
            return stage.reused
        scorer = verdicts.Scorer(rewards, config.signals)
        facts, (signals,) = asyncio.run(
            collect(source, [SignalSet(config.signals, scorer.wants, scorer.reads)], _how(config))
        )
        groups = stored.groups(facts, config.group_size or source.group_size)
        scored = list(scorer.score(facts, signals, groups))
        if not any(score.reward for score in scored):
            forms = sorted({each.form for each in facts})
            raise ConfigError(f"the recipe has rewards for the forms {sorted(rewards)}; these questions are of {forms}")
        return _commit_scores(config, stage, scored)


def _commit_scores(config: Config, stage: StageRun, scored: Sequence[Score]) -> Artifact:
    out = _fresh(stage)
    records.append(out / stored.SCORES, scored)
    figures = scores.flat(scored, config.seed)
    disk.write_atomic(out / "summary.json", json.dumps(figures, indent=1).encode())
    stage.tracker.metrics(figures, 0)
    artifact = stage.commit(out, figures)
    printing.print_all(scores.summary(scored, config.seed))
    return artifact


def _matrix(config: Config, source: TrajectorySource) -> Artifact:
    jobs, problems = _recipes(config)
    rewards = {name: verdicts.nodes(verdicts.rewards_of(job["rl"])) for name, job in jobs.items()}
    identity = {"rewards": rewards, "measured": {name: job["signals"] for name, job in jobs.items()}}
    with _open(config, "matrix", "comparison", [source], identity) as stage:
        if stage.reused:
            printing.print_all(scores.matrix_tables(matrix.load(stage.reused.path), brief=True))
            return stage.reused
        facts, rows = _rows(config, source, jobs)
        rows += [RecipeTotals(name, (None,) * len(facts), problem=problem) for name, problem in problems.items()]
        matrix.require_some(rows)
        result = matrix.Matrix(tuple(rows), matrix.compare(facts, rows, config.shown, config.seed))
        about = {"trajectories": source.name, "digest": source.digest[:12], "number": str(len(facts))}
        about |= {"command": running() or ""}
        out = _fresh(stage)
        matrix.save(out, facts, result)
        page = scores.page("Reward matrix", about, scores.matrix_tables(result))
        disk.write_atomic(out / "matrix.html", page.encode())
        artifact = stage.commit(out, {row.recipe: row.scored for row in rows})
        printing.print_all(scores.matrix_tables(result, brief=True))
        return artifact


def _recipes(config: Config) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Returns the composed configuration of each recipe with a reward, and the reason for each without. ``codev/code``
    is the recipe codev with variant=code."""
    from vtcli.config.compose import load, options

    jobs: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    own = Path(config.recipes_in) if config.recipes_in else None
    for name in config.recipes or options("recipe", own):
        recipe, _, variant = name.partition("/")
        # At the scale of this run: limits and pixels change nothing here, but every recipe must compose.
        words = [f"+recipe={recipe}", f"scale={config.job['scale']}", *([f"variant={variant}"] if variant else [])]
        words += ["--config-dir", str(own)] if own else []
        values = load("judge", words).values
        try:
            verdicts.rewards_of(values["rl"])
            jobs[name] = values
        except VtcliError as error:
            problems[name] = str(error)
    return jobs, problems


def _rows(
    config: Config, source: TrajectorySource, jobs: Mapping[str, Mapping[str, Any]]
) -> tuple[list[Facts], list[RecipeTotals]]:
    """Returns the totals of every recipe. Recipes with equal signals share their measurement."""
    # By configuration and not by recipe, because a judge must be asked once for all recipes with the same signal.
    kinds = {name: json.dumps(job["signals"], sort_keys=True) for name, job in jobs.items()}
    bound = {kind: _bind(json.loads(kind)) for kind in kinds.values()}
    scorers = {
        name: verdicts.Scorer(
            verdicts.rewards_of(job["rl"]), bound[kinds[name]], strict=False
        )  # a recipe without a signal leaves a gap
        for name, job in jobs.items()
    }
    wanted = {kind: [scorer for name, scorer in scorers.items() if kinds[name] == kind] for kind in bound}
    asked = [
        SignalSet(signals, functools.partial(_wants, wanted[kind]), functools.partial(_reads, wanted[kind]))
        for kind, signals in bound.items()
    ]
    facts, measured = asyncio.run(collect(source, asked, _how(config)))
    signals = dict(zip(bound, measured, strict=True))
    groups = stored.groups(facts, config.group_size or source.group_size)
    places = {each.id: i for i, each in enumerate(facts)}
    rows: list[RecipeTotals] = []
    for name, scorer in scorers.items():
        in_order = sorted(scorer.score(facts, signals[kinds[name]], groups), key=lambda s: places[s.trajectory.id])
        rows.append(matrix.row(name, {form: reward.name for form, reward in scorer.rewards.items()}, in_order))
    return facts, rows


def _wants(scorers: Sequence[verdicts.Scorer], facts: Facts, signals: Signals) -> set[str]:
    return set[str]().union(*(scorer.wants(facts, signals) for scorer in scorers))


def _reads(scorers: Sequence[verdicts.Scorer], facts: Facts, signals: Signals) -> set[str]:
    return set[str]().union(*(scorer.reads(facts, signals) for scorer in scorers))


def _bind(nodes: Mapping[str, Any]) -> dict[str, Signal]:
    return {name: bind(node, f"signals.{name}") for name, node in nodes.items()}


def _agreement(config: Config, source: TrajectorySource) -> Artifact:
    """Compares the judge with the stored values; with ``oracle``, with the oracle's values for these trajectories."""
    oracle = config.against == ORACLE
    other = stored.trajectories(_store(config), source) if oracle else stored.find(_store(config), str(config.against))
    with _open(config, "agreement", "comparison", [source, other], {}) as stage:
        if stage.reused:
            saved = (stage.reused.path / "agreement.json").read_bytes()
            printing.print_all(scores.agreement_tables(codec.decode(agreement.JudgeComparison, json.loads(saved))))
            return stage.reused
        # One side is always as stored, because a second measurement would compare the judge with itself.
        a = _judged(source, {}, How(_home(config), measure="never"))
        judged = {name: signal for name, signal in config.signals.items() if needs_judge(signal)} if oracle else {}
        measure = "missing" if oracle else "never"
        # The oracle has the thresholds of conf/judge=oracle, or its defaults if another judge is configured.
        judge = config.judge if isinstance(config.judge, functools.partial) else None
        asked = judge if judge is not None and judge.func is open_oracle else None
        how = How(_home(config), asked, measure, tuple(judged), sandbox=config.sandbox)
        b = _judged(other, judged, how)
        comparison = agreement.compare(a, b, config.compared, config.seed)
        out = _fresh(stage)
        disk.write_atomic(out / "agreement.json", json.dumps(codec.encode(comparison), indent=1).encode())
        artifact = stage.commit(
            out, {"trajectories": comparison.trajectories, "signals": [c.signal for c in comparison.signals]}
        )
        printing.print_all(scores.agreement_tables(comparison))
        return artifact


def _judged(source: TrajectorySource, signals: Mapping[str, Signal], how: How) -> agreement.Judged:
    facts, (found,) = asyncio.run(collect(source, [SignalSet(signals)], how))
    return facts, found


def _how(config: Config) -> How:
    options = config.measure, config.again, config.concurrency, config.max_unjudged
    return How(_home(config), config.judge, *options, sandbox=config.sandbox)


def _home(config: Config) -> Path:
    return Path(str(config.job.get("home") or "artifacts"))


def _store(config: Config) -> ArtifactStore:
    return ArtifactStore(_home(config))


def _fresh(stage: StageRun) -> Path:
    """Returns an empty folder to commit; an earlier attempt may have left one with files."""
    out = stage.work / "artifact"
    shutil.rmtree(out, ignore_errors=True)
    with disk.checked(out, "make the folder"):
        out.mkdir()
    return out
