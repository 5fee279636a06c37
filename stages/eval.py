"""``vtcli eval``: roll a model out on held-out questions, measure, score, compare with its parent, write a report."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vtcli import judging
from vtcli.algo.rows import make_row, summarise
from vtcli.config.bounds import at_least, shares, within
from vtcli.config.commandline import running
from vtcli.engines.policies import Engine, Placement, TrainedPolicy, open_policy
from vtcli.engines.scripted import OraclePolicy, require_scripts
from vtcli.envs.card import BoundCard, read_card
from vtcli.envs.claims import Claims
from vtcli.envs.worlds import Worlds
from vtcli.errors import ConfigError, InputError
from vtcli.families.family import Family
from vtcli.families.table import open_family
from vtcli.protocols import Policy, Reward, Sampling, Signal, TemperatureSpan
from vtcli.report import build, content, folder, tables
from vtcli.rewards import toolsrl
from vtcli.rollout.admission import Admission
from vtcli.rollout.loop import (
    MAX_TEMPERATURE,
    GroupRequest,
    Limits,
    RolloutRequest,
    refuse_broken,
    refuse_no_room,
    require_room,
    why_broken,
)
from vtcli.rollout.stream import Stream
from vtcli.rollout.threads import EventLoop, compute
from vtcli.runs.progress import StepBar
from vtcli.runs.run import RunSettings, Scope, StageRun, open_run
from vtcli.runs.sources import source_model
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.schema import Sample, Scored, Signals, Stop, Trajectory
from vtcli.signals.measuring import Measuring, OpenJudge, unjudged_share
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageLimits, ImageStore
from vtcli.store.videos import portable

Key = tuple[str, str]  # form and sample id


FACTS = ("split", "tools", "policy", "temperature", "samples_per_question", "seed")  # of the config, for the header
# These change nothing in what is measured.
RUNTIME_KEYS = (
    *("eval.data", "eval.baseline", "eval.concurrency", "eval.max_broken", "eval.max_unjudged", "eval.device"),
    *("eval.limits.timeout_s", "engine", *judging.RUNTIME_KEYS),
)
PROMPTS_TRIED = 8  # before a model is loaded: whether eval.limits.max_tokens leaves room for an answer
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
    dtype: Literal["float32", "bfloat16"]  # of the policy's arithmetic
    env: BoundCard  # conf/env
    metrics: dict[str, Signal] = field(default_factory=dict[str, Signal])  # further signals, which no reward reads
    baseline: str | None = None  # the report to compare with: of the parent model, on the same data
    label: str | None = None  # the model's name in tables
    split: str = "test"
    forms: tuple[str, ...] = ("answer", "tool")
    max_samples: int | None = None  # of each form, evenly spread over the split
    samples_per_question: int = 1
    temperature: float = 0.0  # greedy
    top_k: int = 0  # the rest of the sampling, see ``Sampling``
    top_p: float = 1.0
    min_p: float = 0.0
    spans: tuple[TemperatureSpan, ...] = ()
    tools: Literal["offered", "none"] = "offered"
    policy: Literal["model", "oracle"] = "model"
    shown: int = 32  # trajectories to browse in the report
    judge: OpenJudge | None = None  # conf/judge; None: the oracle
    max_unjudged: float = 0.05  # a larger share of asked trajectories without a judge's verdict ends the run
    max_broken: float = 0.5  # a larger share of broken rollouts ends the run; below it they are left out of all means
    concurrency: int = 64  # rollouts at a time; finished ones survive a kill
    device: str | None = None  # torch's name of where engine=hf computes; null: a GPU where there is one
    seed: int = 0
    bad_rows: Literal["error", "skip"] = "error"
    sandbox: PoolConfig = field(default_factory=PoolConfig)
    limits: Limits = field(default_factory=Limits)
    engine: Engine = field(default_factory=Engine)
    images: ImageLimits = field(default_factory=ImageLimits)
    families: dict[str, str] = field(default_factory=dict[str, str])  # from outside: model_type to its class
    rewards: dict[str, Reward] = field(default_factory=lambda: dict(REWARDS))
    job: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.forms or set(self.forms) - set(self.rewards):
            raise ConfigError(f"eval.forms is {list(self.forms)}; expected some of {', '.join(self.rewards)}")
        at_least(1, self, "max_samples", "samples_per_question", "concurrency")
        at_least(0, self, "shown")
        within(self.temperature, "temperature", 0, MAX_TEMPERATURE)
        shares(self, "max_broken", "max_unjudged")
        card = read_card(self.env)
        if self.policy == "oracle":
            _ = card.spoken  # or it is refused here
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
    free = (*RUNTIME_KEYS, *source.location_keys("eval"))
    with open_run(settings, "eval", "report", config.job, made_from, Scope(free, source.files)) as stage:
        if stage.reused:
            tables.show(folder.load_series(stage.reused.path), config.seed)
            return stage.reused
        family = open_family(source.path, config.families)
        images = ImageStore(stage.work / "images", family.sizing(config.images))
        offered = config.tools == "offered"
        worlds = Worlds(read_card(config.env), config.prompt, images, config.sandbox, offered=offered)
        samples = _samples(config, data, images, worlds)
        if config.policy == "oracle":
            require_scripts(samples.values(), data.ref)
        measure = Measuring((config.signals | config.metrics).values(), config.judge, images, settings.home)
        with EventLoop() as loop:
            claims = Claims(images, worlds.sandbox.verify, measure)
            found = loop.run(_Rollouts(config, stage, family, images, worlds, measure, claims).collect(samples))
        refuse_no_room([s.trajectory for s in found], config.limits, "eval.limits.max_tokens")
        _check_broken(found, config, stage)
        measure.check(unjudged_share(s.signals for s in found), config.max_unjudged, "eval")
        return _finish(config, stage, source.name, parents, found, images)


def _samples(config: Config, data: Artifact, images: ImageStore, worlds: Worlds) -> dict[Key, Sample]:
    """The questions in order; rows that are skipped are listed on standard error."""
    samples: dict[Key, Sample] = {}
    for form in config.forms if config.tools == "offered" else ("answer",):
        found = records.SampleSet(data, form, config.split, images, config.bad_rows)
        sys.stderr.writelines(f"skipped: {line}\n" for line in found.bad)
        count = min(len(found), config.max_samples or len(found))
        for sample in (found.load(i * len(found) // count) for i in range(count)):
            samples[form, sample.id] = worlds.offer(sample)
    if not samples:
        raise InputError(f"{data.ref} has no question of the forms {list(config.forms)} in its split {config.split}.")
    return samples


@dataclass(frozen=True, slots=True)
class _Rollouts:
    """Parts that answer and measure the questions of one evaluation."""

    config: Config
    stage: StageRun
    family: Family
    images: ImageStore
    worlds: Worlds
    measure: Measuring
    claims: Claims

    async def collect(self, samples: Mapping[Key, Sample]) -> list[Scored]:
        """Scored trajectories in the order of the questions.

        Every trajectory is stored as soon as it is measured, and what an earlier attempt stored is not done again,
        unless it broke; what its judge left without a verdict is measured again. The reward comes last: it is
        arithmetic on the signals of whole groups.
        """
        config, path = self.config, self.stage.work / "trajectories.jsonl"
        sampling = Sampling(config.temperature, config.top_k, config.top_p, config.min_p, config.spans)
        groups = [GroupRequest(s, config.samples_per_question, config.seed, sampling) for s in samples.values()]
        stored = {s.trajectory.id: s for s in records.read(path, Scored)} if path.exists() else {}
        found = {name: s for name, s in stored.items() if s.trajectory.stop is not Stop.BROKEN}
        unjudged = [s.trajectory for s in found.values() if s.signals.values.get("unjudged")]
        left = [request for group in groups for request in group.members if request.id not in found]

        def keep(trajectory: Trajectory, signals: Signals) -> None:
            scored = portable(Scored(trajectory, signals, None))
            records.append(path, [scored])
            found[trajectory.id] = scored

        try:
            if unjudged or left:
                await self.worlds.start()
                few = list(samples.values())[:: max(1, len(samples) // PROMPTS_TRIED)]
                await require_room(few, self.family.chat, self.worlds, config.limits, "eval.limits.max_tokens")
                await self.measure.start()
                self.stage.tracker.tags({k: str(v) for k, v in (self.worlds.facts | self.measure.facts).items()})
            for trajectory, signals in zip(unjudged, await self.measure(unjudged), strict=True):
                keep(trajectory, signals)
            if left:
                await self._roll_out(left, keep)
            scored = await asyncio.gather(*(self._rewarded(group, found) for group in groups))
            return [member for group in scored for member in group]
        finally:
            await self.measure.close()
            await self.worlds.close()

    async def _roll_out(self, requests: Sequence[RolloutRequest], keep: Callable[[Trajectory, Signals], None]) -> None:
        """Loads the model and streams. Heavy libraries are imported here."""
        config, chat = self.config, self.family.chat
        opened: TrainedPolicy | None = None
        policy: Policy
        if config.policy == "oracle":
            asked = {request.seed: request.sample for request in requests}
            policy = OraclePolicy(chat, self.images, config.seed, self.worlds.card, asked)
        else:
            place = Placement(config.dtype, config.device, config.images)
            policy = opened = await compute(
                lambda: open_policy(config.engine, self.family, self.images.view, config.limits, place)
            )
        clock, room = (opened.clock, opened.cache_tokens) if opened else (None, None)
        places = None if room is None else Admission(room, config.limits.max_tokens)
        parts = (policy, chat, self.worlds, config.limits, self.measure)
        stream = Stream(*parts, clock=clock, claims=self.claims, admission=places)
        total = len(requests)
        try:
            with StepBar("eval", total, 0) as bar:

                def finished(trajectory: Trajectory, signals: Signals) -> None:
                    keep(trajectory, signals)
                    bar.advance("trajectories")

                await stream.each(requests, finished, config.concurrency)
        finally:
            if opened is not None:
                await compute(opened.close)

    async def _rewarded(self, group: GroupRequest, found: Mapping[str, Scored]) -> list[Scored]:
        """The group's trajectories with their verdicts, by id."""
        members = [(found[request.id].trajectory, found[request.id].signals) for request in group.members]
        scored = await self.claims.rewarded(self.config.rewards[group.sample.form], members)
        return sorted(scored, key=lambda s: s.trajectory.id)


def _check_broken(found: Sequence[Scored], config: Config, stage: StageRun) -> None:
    """Says how many rollouts broke and why; too many of them end the run."""
    rolled_out = [s.trajectory for s in found]
    broken = [t for t in rolled_out if t.stop is Stop.BROKEN]
    where = f"eval ({stage.work / 'trajectories.jsonl'})"
    refuse_broken(len(broken) / len(rolled_out), config.max_broken, broken, "eval", where)
    if broken:
        sys.stderr.write(f"{len(broken)} of {len(rolled_out)} rollouts broke. {why_broken(broken)}\n")


def _facts(config: Config, model: str, parents: Mapping[str, Artifact]) -> dict[str, str]:
    """The report's header."""
    env = {"environment": read_card(config.env).name}
    chosen = {k.replace("_", " "): str(getattr(config, k)) for k in FACTS}
    return {k: p.ref for k, p in parents.items()} | {"model": model} | env | chosen


def _finish(
    config: Config,
    stage: StageRun,
    model: str,
    parents: Mapping[str, Artifact],
    found: list[Scored],
    images: ImageStore,
) -> Artifact:
    """Write the artifact's files from what was found, commit them, and print the table."""
    out = stage.work / "report"
    shutil.rmtree(out, ignore_errors=True)
    folder.save_trajectories(out, found, images)
    before = folder.load_series(parents["report"].path) if "report" in parents else ()
    label = config.label or (model if config.policy == "model" else config.policy)
    series = (
        *before,
        content.Evaluation(label, model, tuple(make_row(s, toolsrl.tool_reward(s.signals)) for s in found)),
    )
    folder.save_series(out, series, config.seed)
    report = content.ReportData(
        title=f"{label} on held-out questions",
        facts=_facts(config, model, parents),
        commands=[command] if (command := running()) else [],
        lineage="\n".join(stage.store.lineage(str(p.path)).text() for p in parents.values()),
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
