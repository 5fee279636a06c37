"""``vtcli eval``: roll a model out on held-out questions, measure, score, compare with its parent, write a report."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import track

from vtcli import judging, records
from vtcli.algo.rows import make_row, summarise
from vtcli.artifacts import Artifact, ArtifactStore
from vtcli.bounds import at_least, shares
from vtcli.engines.policies import Engine, Place, open_policy
from vtcli.envs.worlds import Worlds
from vtcli.errors import ConfigError, InputError
from vtcli.images import ImageLimits, ImageStore
from vtcli.judging import oracle
from vtcli.loops import EventLoop, compute
from vtcli.protocols import Env, Policy, Reward, Signal
from vtcli.report import build, content, folder, tables
from vtcli.rewards import toolsrl
from vtcli.rollout import Limits, Sampling, refuse_broken, rollout_group, why_broken
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.schema import Sample, Scored, Stop, Trajectory
from vtcli.signals.measuring import Measuring, OpenJudge, unjudged_share
from vtcli.sources import source_model
from vtcli.stagerun import RunSettings, StageRun, open_run
from vtcli.videos import portable

Rollouts = Callable[[Sample], Awaitable[tuple[Trajectory, ...]]]
Opener = Callable[[], Rollouts]
Key = tuple[str, str]  # form and sample id


FACTS = ("split", "tools", "policy", "temperature", "samples_per_question", "seed")  # of the config, for the header
# These change nothing in what is measured.
RUNTIME_KEYS = ("eval.concurrency", "eval.max_broken", "sandbox.active", "sandbox.live", *judging.RUNTIME_KEYS)
REWARDS: Mapping[str, Reward] = {"tool": toolsrl.stage1, "answer": toolsrl.stage2}  # by form


@dataclass(frozen=True)
class Config:
    """``tools=none`` offers no tool and asks the plain questions only; ``policy=oracle`` replays the best tool use.
    ``rewards`` by form are the recipe's own, else ToolsRL's; one sees all ``samples_per_question`` rollouts of a
    question, the group that some papers' rewards look at."""

    data: str  # dataset artifact
    model: str  # model artifact, Hugging Face folder or hub name
    prompt: Mapping[str, Any]
    signals: dict[str, Signal]
    baseline: str | None = None  # the report to compare with: of the parent model, on the same data
    label: str | None = None  # the model's name in tables
    split: str = "test"
    forms: tuple[str, ...] = ("answer", "tool")
    max_samples: int | None = None  # of each form, evenly spread over the split
    samples_per_question: int = 1
    temperature: float = 0.0  # greedy
    tools: Literal["offered", "none"] = "offered"
    policy: Literal["model", "oracle"] = "model"
    shown: int = 32  # trajectories to browse in the report
    judge: OpenJudge | None = None  # conf/judge; None: the oracle
    max_unjudged: float = 0.05  # a larger share of asked trajectories without a judge's verdict ends the run
    max_broken: float = 0.5  # a larger share of broken rollouts ends the run; below it they are left out of all means
    concurrency: int = 64  # questions at a time; finished ones survive a kill
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    bad_rows: Literal["error", "skip"] = "error"
    env: partial[Env] | None = None  # conf/env: the policy writes code; None: native tools
    sandbox: PoolConfig = field(default_factory=PoolConfig)
    limits: Limits = field(default_factory=Limits)
    engine: Engine = field(default_factory=Engine)
    images: ImageLimits = field(default_factory=ImageLimits)
    rewards: dict[str, Reward] = field(default_factory=lambda: dict(REWARDS))
    job: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.forms or set(self.forms) - set(self.rewards):
            raise ConfigError(f"eval.forms is {list(self.forms)}; expected some of {', '.join(self.rewards)}")
        at_least(1, self, "max_samples", "samples_per_question", "concurrency")
        at_least(0, self, "temperature", "shown")
        shares(self, "max_broken", "max_unjudged")
        if self.samples_per_question > 1 and (self.temperature == 0 or self.policy == "oracle"):
            raise ConfigError("eval.samples_per_question > 1 needs eval.temperature > 0 and eval.policy=model")


def run(config: Config) -> Artifact:
    """Returns the report artifact: ``trajectories.jsonl`` and ``images/``, rows, ``metrics.json``, the two pages.

    Raises:
        InputError: an input that is missing, damaged, of another kind, or a baseline on other data.
    """
    settings = RunSettings.of(config.job, "report")
    store = ArtifactStore(settings.home)
    data = store.resolve(config.data, "dataset")
    source = source_model(store, config.model)
    model = source.artifact
    baseline = store.resolve(config.baseline, "report") if config.baseline else None
    if baseline and data.digest not in {p.digest for p in baseline.manifest.parents}:
        raise InputError(f"The baseline {baseline.ref} was not measured on {data.ref}. Run vtcli eval on it first.")
    parents: dict[str, Artifact] = {a.kind: a for a in (data, model, baseline) if a is not None}
    made_from = list(parents.values())
    with open_run(settings, "eval", "report", config.job, made_from, runtime_keys=RUNTIME_KEYS) as stage:
        if stage.reused:
            tables.show(folder.load_series(stage.reused.path), config.seed)
            return stage.reused
        images = ImageStore(stage.work / "images", config.images.min_pixels, config.images.max_pixels)
        samples = _samples(config, data, images)
        weights = source.path
        offered, judged = config.tools == "offered", oracle.judges(config.judge)
        worlds = Worlds(config.env, config.prompt, images, config.sandbox, offered=offered, verify=judged)
        measure = Measuring(config.signals.values(), config.judge, images, settings.home)
        doing = _Doing(config, stage, worlds, measure, lambda: _open(config, weights, images, worlds))
        with EventLoop() as loop:
            found = loop.run(_collect(doing, samples))
        _check_broken(found, config, stage)
        measure.check(unjudged_share(s.signals for s in found), config.max_unjudged, "eval")
        return _finish(config, stage, parents, found, images)


def _samples(config: Config, data: Artifact, images: ImageStore) -> dict[Key, Sample]:
    """The questions in order; rows that are skipped are listed on standard error."""
    samples: dict[Key, Sample] = {}
    for form in config.forms if config.tools == "offered" else ("answer",):
        found = records.SampleSet(data, form, config.split, images, config.bad_rows)
        sys.stderr.writelines(f"skipped: {line}\n" for line in found.bad)
        count = min(len(found), config.max_samples or len(found))
        for sample in (found.load(i * len(found) // count) for i in range(count)):
            samples[form, sample.id] = replace(sample, tools=()) if config.tools == "none" else sample
    if not samples:
        raise InputError(f"{data.ref} has no question of the forms {list(config.forms)} in its split {config.split}.")
    return samples


def _open(config: Config, weights: Path, images: ImageStore, worlds: Worlds) -> Rollouts:
    """Loads the model; heavy libraries are imported here."""
    from vtcli.chat.qwen2_5_vl import QwenChat

    chat = QwenChat.load(weights)
    sampling = Sampling(config.temperature, config.samples_per_question, config.seed)
    policy_of: Callable[[Sample], Policy]
    if config.policy == "oracle":
        from vtcli.engines.scripted import oracle

        protocol = config.env.keywords["protocol"] if config.env else None
        policy_of = partial(oracle, chat, images, config.seed, protocol)
    else:
        place = Place(config.dtype, config.device)
        policy = open_policy(config.engine, weights, chat, images.view, config.limits, place)
        policy_of = lambda _: policy  # noqa: E731
    return lambda sample: rollout_group(sample, policy_of(sample), chat, worlds, config.limits, sampling)


@dataclass(frozen=True, slots=True)
class _Doing:
    """What the questions of one evaluation are answered and measured with."""

    config: Config
    stage: StageRun
    worlds: Worlds
    measure: Measuring
    opener: Opener

    async def start(self) -> Rollouts:
        await self.worlds.start()
        await self.measure.start()
        self.stage.tracker.tags({k: str(v) for k, v in (self.worlds.facts | self.measure.facts).items()})
        return await compute(self.opener)

    async def score(self, groups: Sequence[Sequence[Trajectory]]) -> list[Scored]:
        measured = iter(await self.measure([member for group in groups for member in group]))
        done: list[Scored] = []
        for group in groups:
            signals = list(itertools.islice(measured, len(group)))
            verdicts = self.config.rewards[group[0].sample.form](signals)
            done += [portable(Scored(t, s, v)) for t, s, v in zip(group, signals, verdicts, strict=True)]
        return done

    async def close(self) -> None:
        await self.measure.close()
        await self.worlds.close()


async def _collect(doing: _Doing, samples: Mapping[Key, Sample]) -> list[Scored]:
    """Scored trajectories in the order of the questions; what an earlier attempt finished is not done again, but what
    its judge left without a verdict is measured again, and a question with a broken rollout is asked again."""
    config, path = doing.config, doing.stage.work / "trajectories.jsonl"
    found = {s.trajectory.id: s for s in records.read(path, Scored)} if path.exists() else {}
    count = Counter(_key(s) for s in found.values() if s.trajectory.stop is not Stop.BROKEN)
    left = [key for key in samples if count[key] < config.samples_per_question]
    open_keys = {_key(s) for s in found.values() if s.signals.values.get("unjudged")} - set(left)
    rollouts: Rollouts | None = None
    try:
        if open_keys:
            rollouts = await doing.start()
            again = [[s.trajectory for s in found.values() if _key(s) == key] for key in sorted(open_keys)]
            found |= {s.trajectory.id: s for s in await doing.score(again)}
        for start in track(range(0, len(left), config.concurrency), "eval", console=Console(stderr=True)):
            rollouts = rollouts or await doing.start()
            groups = await asyncio.gather(*(rollouts(samples[key]) for key in left[start : start + config.concurrency]))
            done = await doing.score(groups)
            records.append(path, done)
            found |= {s.trajectory.id: s for s in done}
    finally:
        await doing.close()
    order = {key: i for i, key in enumerate(samples)}
    return sorted(found.values(), key=lambda s: (order[_key(s)], s.trajectory.id))


def _check_broken(found: Sequence[Scored], config: Config, stage: StageRun) -> None:
    """Says how many rollouts broke and why; too many of them end the run."""
    rolled_out = [s.trajectory for s in found]
    broken = [t for t in rolled_out if t.stop is Stop.BROKEN]
    where = f"eval ({stage.work / 'trajectories.jsonl'})"
    refuse_broken(len(broken) / len(rolled_out), config.max_broken, broken, "eval", where)
    if broken:
        sys.stderr.write(f"{len(broken)} of {len(rolled_out)} rollouts broke. {why_broken(broken)}\n")


def _key(scored: Scored) -> Key:
    return scored.trajectory.sample.form, scored.trajectory.sample.id


def _facts(config: Config, parents: Mapping[str, Artifact]) -> dict[str, str]:
    """The report's header."""
    env = {"environment": str(config.env.keywords["protocol"].name)} if config.env else {}
    chosen = {k.replace("_", " "): str(getattr(config, k)) for k in FACTS}
    return {k: p.ref for k, p in parents.items()} | env | chosen


def _finish(
    config: Config, stage: StageRun, parents: Mapping[str, Artifact], found: list[Scored], images: ImageStore
) -> Artifact:
    """Write the artifact's files from what was found, commit them, and print the table."""
    out = stage.work / "report"
    shutil.rmtree(out, ignore_errors=True)
    folder.save_trajectories(out, found, images)
    before = folder.load_series(parents["report"].path) if "report" in parents else ()
    model = parents["model"].ref if "model" in parents else config.model
    label = config.label or (model if config.policy == "model" else config.policy)
    series = (
        *before,
        content.Evaluation(label, model, tuple(make_row(s, toolsrl.tool_reward(s.signals)) for s in found)),
    )
    folder.save_series(out, series, config.seed)
    report = content.ReportData(
        title=f"{label} on held-out questions",
        facts=_facts(config, parents),
        commands=folder.command_line(),
        lineage="\n".join(folder.lineage_text(stage.store.lineage(str(p.path))) for p in parents.values()),
        series=series,
        training=folder.load_training(parents["model"].path) if "model" in parents else content.Training(),
        shown=content.choose(found, config.shown, config.seed),
        seed=config.seed,
    )
    build.build(out, report, images)
    figures = folder.flat(summarise(series[-1].rows, config.seed))
    stage.tracker.metrics(figures, 0)
    artifact = stage.commit(out, {"label": label} | {k: v for k, v in figures.items() if k.split(".")[1] == "all"})
    tables.show(series, config.seed)
    sys.stderr.write(f"report: {artifact.path / 'report.html'}\n")
    return artifact
