"""``vtcli eval``: roll a model out on held-out questions, measure, score, compare with its parent, write a report."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vtcli import judging
from vtcli.benchmarks import results
from vtcli.benchmarks.benchmark import Benchmark, Generation, generation_of, own_rules
from vtcli.benchmarks.samples import Part
from vtcli.config.bounds import at_least
from vtcli.config.commandline import running
from vtcli.data.importers.trajectories import ImportedRuns
from vtcli.engines.openai import baseline as endpoints
from vtcli.engines.openai.baseline import Baseline
from vtcli.engines.openai.ledger import Price, TokenUsage
from vtcli.engines.scripted import GuidedPolicy, OraclePolicy, require_scripts
from vtcli.envs import video_frames
from vtcli.envs.card import read_card
from vtcli.envs.worlds import Worlds
from vtcli.errors import ConfigError, InputError
from vtcli.foreign import print_line
from vtcli.judging.separate import answers_by
from vtcli.probes import effects
from vtcli.probes.causal import CausalProbe, ProbePlanner
from vtcli.probes.run import ProbeRun
from vtcli.protocols import Reward, Signal, ToolTerm
from vtcli.report import build, content, emergent, evaluated, folder, side_by_side
from vtcli.rollout.loop import (
    GroupRequest,
    Limits,
    RolloutRequest,
    why_broken,
)
from vtcli.rollout.threads import EventLoop, compute
from vtcli.rollout.workers import one_error
from vtcli.runs.identity import Identity, listed
from vtcli.runs.progress import ScoreBars, score_so_far
from vtcli.runs.run import RunSettings, Scope, StageRun, fingerprint, open_run
from vtcli.schema import ImageRef, Sample, Scored, Stop, Trajectory
from vtcli.session import agent, memory
from vtcli.session.agent import Agent
from vtcli.session.benchmark_questions import BenchmarkQuestions, Drawing, tools_of
from vtcli.session.questions import DatasetQuestions
from vtcli.session.session import Session, family_of, sizing_of
from vtcli.signals.measuring import unjudged_share
from vtcli.statistics.rows import REQUIREMENT, make_row, summarise, unmet
from vtcli.store import disk, records, shards
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageStore
from vtcli.store.models import ModelSource, source_model
from vtcli.store.retention import link

Key = tuple[str, str]  # form and sample id


FACTS = ("split", "tools", "policy", "group_size", "seed")  # of the config, for the header
# These change nothing in what is measured.
RUNTIME_KEYS = (
    *("eval.data", "eval.benchmarks_in", "eval.baseline", "eval.concurrency", "eval.merge", "eval.label"),
    "eval.require",
    *(*agent.runtime_keys("eval"), "engine", *judging.RUNTIME_KEYS, *endpoints.RUNTIME_KEYS),
)
TRAJECTORIES = "trajectories.jsonl"
PROMPTS_TRIED = 8  # before a model is loaded: whether eval.agent.limits.max_tokens leaves room for an answer


@dataclass(frozen=True)
class Config:
    """``tools=none`` offers no tool and asks the plain questions only; ``policy=oracle`` replays the best tool use,
    ``oracle_calls`` replays its calls and lets the model answer.
    ``rewards`` by form are the recipe's own, else those of conf/config.yaml; one sees all ``group_size``
    rollouts of a question, the group that some papers' rewards look at."""

    model: str  # model artifact, Hugging Face folder or hub name; policy=endpoint: the name under which it is served
    agent: Agent
    metrics: dict[str, Signal]  # further signals, which no reward reads
    rewards: dict[str, Reward]  # by form
    tool_term: ToolTerm  # of a trajectory in either form: the column "best tool state"
    data: str | None = None  # dataset artifact; needed unless benchmark=[…] is given
    benchmark: dict[str, Benchmark] = field(default_factory=dict[str, Benchmark])  # conf/benchmark, in place of data
    benchmarks_in: str | None = None  # folder with local copies of their files
    # Sampling by benchmark, {vstar: {temperature: 0}}; ``others``: those without their own.
    generation: dict[str, Generation] = field(default_factory=dict[str, Generation])
    baseline: str | None = None  # the report to compare with: of the parent model, on the same data
    label: str | None = None  # the model's name in tables; null: its artifact
    shard: str | None = None  # "3/16": the third of sixteen parts of the questions, as an artifact of its own
    merge: int | None = None  # the number of shards, which are put together
    split: str = "test"
    forms: tuple[str, ...] = ("answer", "tool")
    max_samples: int | None = None  # of each form, evenly spread over the split
    group_size: int = 1
    tools: Literal["offered", "none"] = "offered"  # none: the no-tools probe, plain questions only
    frames: int | str | None = None  # 32 or 1fps of each video as images in its place; None: the environment's way
    # oracle: the best tool use, scripted from the truth; oracle_calls: its calls, the model's answer
    policy: Literal["model", "oracle", "oracle_calls", "endpoint", "imported"] = "model"
    endpoint: Baseline = field(default_factory=Baseline)  # of policy=endpoint
    imported: ImportedRuns = field(default_factory=ImportedRuns)  # of policy=imported: trajectories of others
    require: tuple[str, ...] = ()  # such as answer.all.accuracy>=0.5: the command fails where the report has less
    shown: int | None = None  # a seeded sample of the trajectories, to browse in the report; None: all of them
    concurrency: int = 64  # rollouts at a time; finished ones survive a kill
    seed: int = 0
    bad_rows: Literal["error", "skip"] = "error"  # skip: rows that cannot be read are left out
    memory: Literal["on", "off"] = "on"  # off: nothing that was rolled out before is taken
    probe: CausalProbe | None = None  # conf/probe: continuations of some trajectories with another picture
    job: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.forms or set(self.forms) - set(self.rewards):
            raise ConfigError(f"eval.forms is {list(self.forms)}; expected some of {', '.join(self.rewards)}")
        at_least(1, self, "max_samples", "group_size", "concurrency")
        at_least(0, self, "shown")
        require_shards(self.shard, self.merge, self.policy)
        for text in self.require:
            if not REQUIREMENT.fullmatch(text):
                raise ConfigError(
                    f"eval.require: {text!r} cannot be read; expected FORM.TASK.MEASURE>=NUMBER or <=, such as "
                    "\"eval.require=['answer.all.accuracy>=0.5']\""
                )
        card = read_card(self.agent.env)
        video_frames.require(self.frames, card, self.agent.limits.max_images, offered=self.tools == "offered")
        if self.policy.startswith("oracle"):
            _ = card.spoken  # or it is refused here
        if self.policy == "endpoint":
            self.endpoint.require(card, offered=self.tools == "offered")
        self.imported.require(self.policy)
        for task in (None, *self.benchmark):
            drawing = self.drawing(task)
            count, sampling = drawing.count, drawing.sampling
            if count > 1 and (sampling.temperature == 0 or self.policy == "oracle"):
                raise ConfigError("eval.group_size > 1 needs eval.agent.sampling.temperature > 0 and eval.policy=model")
            if self.probe and self.probe.continuations > 1 and sampling.temperature == 0:
                raise ConfigError(
                    "probe.continuations > 1 needs eval.agent.sampling.temperature > 0: greedy ones are all the same"
                )
        if self.probe:
            self.probe.require(self.policy, self.tools, self.forms)

    def require_questions(self) -> None:
        """Raises ``ConfigError`` unless there is either a dataset, or benchmarks and the folder of their copies."""
        if self.policy != "imported":
            self.benchmarks.require_instead_of(self.data)

    @property
    def benchmarks(self) -> BenchmarkQuestions:
        """The questions of benchmarks."""
        tools = tools_of(self.job)
        return BenchmarkQuestions(self.benchmark, self.benchmarks_in, tools, self.seed, self.max_samples)

    def drawing(self, task: str | None) -> Drawing:
        """Rollouts of each question of a task and how they are sampled; what its benchmark leaves open is eval's."""
        own = generation_of(task, self.benchmark, self.generation)
        return Drawing(self.group_size, self.agent.sampling).of(own)


def run(config: Config) -> Artifact:
    """Returns the report artifact: ``trajectories.jsonl`` and ``images/``, rows, ``metrics.json``, the two pages; of a
    shard the first two alone.

    Raises:
        InputError: an input that is missing, damaged, of another kind, a baseline on other data, a missing shard, or
            a report that is finished and does not have what ``require`` asks for.
    """
    report = _evaluated(config)
    if config.require and not config.shard:
        rows = folder.load_series(report.path)[-1].rows
        if failed := unmet(config.require, summarise(rows, config.seed)):
            raise InputError(
                f"{report.ref} is finished in {report.path}, but {'; '.join(failed)} (eval.require). "
                "Steps of a runbook that come after it do not start."
            )
    return report


def _evaluated(config: Config) -> Artifact:
    config.require_questions()
    settings = RunSettings.of(config.job, "report")
    store = ArtifactStore(settings.home)
    data = store.resolve(config.data, "dataset") if config.data else None
    source = None if config.policy in ("endpoint", "imported") else source_model(store, config.model)
    model = source.artifact if source else None
    baseline = store.resolve(config.baseline, "report") if config.baseline else None
    side_by_side.require_common(baseline, data, config.benchmark)
    parents: dict[str, Artifact] = {a.kind: a for a in (data, model, baseline) if a is not None}
    made_from = list(parents.values())
    free = (*RUNTIME_KEYS, *(source.location_keys("eval") if source else ()))
    read = {**(source.files if source else {}), **config.benchmarks.files(), **config.imported.files()}
    parts: list[Artifact] = []
    if config.merge is not None:
        parts = _shards(shards.names(config.merge, "eval"), settings, config.job, made_from, free, store)
    own, kind = (_of_shard(settings, config.shard), "trajectories") if config.shard else (settings, "report")
    with open_run(own, "eval", kind, config.job, made_from, Scope(free, read, lineage=parts)) as stage:
        if stage.reused:
            if not config.shard:
                _print_again(config, stage.reused, parents)
            return stage.reused
        family = family_of(config.agent, source.path if source else None)
        images = ImageStore(stage.work / "images", sizing_of(config.agent, family))
        native = family is None and config.endpoint.calls == "native"
        session = Session(
            config.agent,
            "eval",
            images,
            settings.home,
            family=family,
            prompt=config.endpoint.prompt if native else None,
            signals=(config.agent.signals | config.metrics).values(),
            rules=own_rules(config.benchmark),
            offered=config.tools == "offered",
        )
        # How foreign trajectories are read is cheap to do again, and not part of an agent.
        if config.policy != "imported":
            kept = memory.folder_of(stage.store.root, stage.work, config.memory)
            session.remember(kept, _weights(config, stage, source))
        runs = None
        if config.policy == "imported":
            runs = _ImportedGroups.of(config.imported.read(images, stage.work, config.bad_rows), config.seed)
        samples = runs.samples if runs else _samples(config, data, images, session.worlds)
        merged = _put_together(parts, stage, images)
        if config.policy.startswith("oracle"):
            require_scripts(samples.values(), data.ref if data else "benchmark")
        with EventLoop() as loop:
            found, probe = loop.run(_Rollouts(config, stage, session, runs, merged).collect(samples))
        rolled = _Results(found, probe, images, family.chat.image_tokens if family else None)
        if config.shard:
            out = stage.work / "shard"
            shutil.rmtree(out, ignore_errors=True)
            folder.save_trajectories(out, found, images)
            return stage.commit(out, {"trajectories": len(found)})
        return _finish(config, stage, source.name if source else config.model, parents, rolled)


def _weights(config: Config, stage: StageRun, source: ModelSource | None) -> list[Any]:
    """Returns plain values that differ for any two policies."""
    if source is None:
        # Another model may be served under the same name, so the place counts here, as it does for stored replies.
        free = ("key_env", "price", "budget", "patience")
        return ["endpoint", config.model, memory.described(config.endpoint, leave_out=free)]
    return [config.policy, *source.content(stage.identity.files)]


def require_shards(shard: str | None, merge: int | None, policy: str) -> None:
    """Raises ``ConfigError`` for a shard that is none, for both at once, and for imported trajectories."""
    shards.numbers(shard, "eval.shard")
    if policy == "imported" and (shard or merge is not None):
        argument = f"eval.shard={shard}" if shard else f"eval.merge={merge}"
        raise ConfigError(f"eval.policy=imported reads all trajectories at once; got {argument}. Leave it out")
    if shard and merge is not None:
        raise ConfigError(f"eval.shard={shard} and eval.merge={merge}: expected at most one of the two")
    if merge is not None:
        shards.names(merge, "eval")


def _of_shard(settings: RunSettings, shard: str) -> RunSettings:
    """Returns the settings of a shard, which is an artifact under another name."""
    return replace(settings, name=shards.name_of(settings.name, shard))


def _shards(
    names: Sequence[str],
    settings: RunSettings,
    job: Mapping[str, Any],
    parents: Sequence[Artifact],
    free: Sequence[str],
    store: ArtifactStore,
) -> list[Artifact]:
    """Returns the newest shards ``names`` (1/4, 2/4, …) of exactly this configuration, seed, model and data.

    Raises:
        InputError: some are missing; the message has the command for each.
    """
    requests: dict[str, str] = {}
    for shard in names:
        its_job = {**job, "eval": {**job["eval"], "shard": shard}}
        its_settings = _of_shard(settings, shard)
        request = fingerprint("eval", "trajectories", its_settings, its_job, parents, runtime_keys=free)
        requests[request] = shard
    artifacts = {requests[r]: a for a in store.ls() if (r := a.manifest.identity.get("request")) in requests}
    of = f"{settings.name} with this configuration, model, data and seed"
    shards.require_all(artifacts, names, "eval", of, store.root)
    return [store.resolve(artifacts[name].ref, "trajectories") for name in names]


def _put_together(parts: Sequence[Artifact], stage: StageRun, images: ImageStore) -> dict[str, Scored]:
    """Returns the trajectories of all shards by id, as these left them. Their images are linked into the work folder.
    Rewards, tables and pages are made once, over everything.

    Raises:
        InputError: a shard was made from other files, or with other code from outside.
    """
    for each in parts:
        if changed := Identity.read(each.manifest.identity).changes(stage.identity):
            raise InputError(
                f"{each.ref} was made before {listed(changed)} changed, so it is not part of this evaluation. Make it "
                "again."
            )
    for each in parts:
        for source in sorted((each.path / "images").rglob("*.png")):
            link(source, images.root / source.relative_to(each.path / "images"))
    return {s.trajectory.id: s for each in parts for s in records.read(each.path / TRAJECTORIES, Scored)}


def _samples(config: Config, data: Artifact | None, images: ImageStore, worlds: Worlds) -> dict[Key, Sample]:
    """The questions in order, of a shard its own; rows that are skipped are listed on standard error."""
    forms, asked = config.forms if config.tools == "offered" else ("answer",), config.benchmarks
    if data is not None:
        asked = DatasetQuestions(data, forms, config.split, config.max_samples, config.bad_rows)
    found = asked.load(images, Part(*shards.numbers(config.shard, "eval.shard")))
    shown = video_frames.shown(found, config.frames, images, config.agent.limits.max_images, whole=not config.shard)
    samples = {(sample.form, sample.id): worlds.offer(sample) for sample in shown}
    if not samples:
        fewer = f" for shard {config.shard}: make fewer" if config.shard else ""
        raise InputError(f"there is no question in {asked.where}{fewer}.")
    return samples


@dataclass(frozen=True, slots=True)
class _ImportedGroups:
    """Trajectories that others made, by the ids of the requests that would have made them, and these by question."""

    groups: list[GroupRequest]
    trajectories: dict[str, Trajectory]

    @classmethod
    def of(cls, found: Mapping[str, Sequence[Trajectory]], seed: int) -> _ImportedGroups:
        groups = [GroupRequest(members[0].sample, len(members), seed) for members in found.values()]
        trajectories = {
            request.id: replace(one, id=request.id, sample=request.sample, seed=request.seed)
            for group, members in zip(groups, found.values(), strict=True)
            for request, one in zip(group.members, members, strict=True)
        }
        return cls(groups, trajectories)

    @property
    def samples(self) -> dict[Key, Sample]:
        return {(group.sample.form, group.sample.id): group.sample for group in self.groups}


@dataclass(frozen=True, slots=True)
class _Rollouts:
    """Answers the questions of one evaluation."""

    config: Config
    stage: StageRun
    session: Session
    imported: _ImportedGroups | None = None  # in place of rollouts
    merged: Mapping[str, Scored] = field(default_factory=dict[str, Scored])  # of shards, as these left them

    async def collect(self, samples: Mapping[Key, Sample]) -> tuple[list[Scored], ProbeRun | None]:
        """Scored trajectories in the order of the questions, and the continuations of the probe.

        The session remembers every trajectory as soon as it is measured, so that neither a resumed evaluation nor
        another one with the same questions rolls it out again. Whole groups are rewarded at once.
        """
        config, by_id = self.config, dict(self.merged)
        asked = [(sample, config.drawing(sample.task)) for sample in samples.values()]
        groups = [GroupRequest(sample, drawn.count, config.seed, drawn.sampling) for sample, drawn in asked]
        made: Mapping[str, Trajectory] = {}
        if self.imported:
            groups, made = self.imported.groups, self.imported.trajectories
        requests = [request for group in groups for request in group.members]
        known, stale = self.session.recall(request for request in requests if request.id not in by_id)
        by_id |= known
        there = {*by_id, *(request.id for request, _ in stale)}
        stale += [(request, made[request.id]) for request in requests if request.id in made and request.id not in there]
        pending = [request for request in requests if request.id not in {*there, *made}]
        probing = config.probe is not None and not config.shard
        place_of = {r.id: place for place, group in enumerate(groups) for r in group.members}
        rewarded: dict[int, Sequence[Scored]] = {}  # by the group's place

        async def reward(place: int) -> None:
            sample, members = groups[place].sample, [by_id[request.id] for request in groups[place].members]
            # A reward may ask what rows of benchmarks and of others do not say.
            if not (self.imported or sample.task in config.benchmark):
                pairs = [(member.trajectory, member.signals) for member in members]
                scored = await self.session.claims.rewarded(config.rewards[sample.form], pairs)
                members = sorted(scored, key=lambda s: s.trajectory.id)
            rewarded[place] = members

        async with self.session as session:
            if stale or pending or probing:
                few = list(samples.values())[:: max(1, len(samples) // PROMPTS_TRIED)]
                await session.start(*([few] if pending else []))
                self.stage.tracker.tags(session.facts)
            if known:
                again = "; memory=off asks for them again" if config.memory == "on" else ""
                print_line(f"eval: {len(known)} rollouts are remembered{again}")
            if pending:
                price = config.endpoint.price if config.policy == "endpoint" else None
                print_line(f"eval: {outlook(groups, len(pending), config.agent.limits, price)}")
            async for scored in session.measure_again(stale):
                by_id[scored.trajectory.id] = scored
            if pending:
                await self._open_policy(pending)
                asking = aclosing(self._ask("eval", pending, list(by_id.values())))
                async with one_error(), asyncio.TaskGroup() as tasks, asking as answers:
                    async for scored in answers:
                        by_id[scored.trajectory.id] = scored
                        place = place_of[scored.trajectory.id]
                        if all(member.id in by_id for member in groups[place].members):
                            tasks.create_task(reward(place))
            await asyncio.gather(*(reward(place) for place in range(len(groups)) if place not in rewarded))
            members = [member for place in range(len(groups)) for member in rewarded[place]]
            _check(members, self.stage, session)
            return members, await self._continue(samples, members) if probing else None

    async def _continue(self, samples: Mapping[Key, Sample], sources: Sequence[Scored]) -> ProbeRun:
        """The continuations of the probe, remembered as trajectories are."""
        config, session = self.config, self.session
        assert config.probe is not None
        planner = ProbePlanner(
            config.probe, config.seed, session.images, samples, lambda task: config.drawing(task).sampling
        )
        probe = ProbeRun(planner, sources)
        requests = await probe.requests()
        known, stale = session.recall(requests, answers_only=True)
        for scored in known.values():
            probe.keep(scored)
        async for scored in session.measure_again(stale, answers_only=True):
            probe.keep(scored)
        if pending := [request for request in requests if request.id not in probe.done]:
            conditions = ", ".join(probe.conditions)
            print_line(f"probe: {len(probe.sources)} trajectories × {conditions}: {len(pending)} continuations")
            if session.policy is None:
                await self._open_policy(())
            async with aclosing(self._ask("probe", pending, answers_only=True)) as answers:
                async for scored in answers:
                    probe.keep(scored)
            trajectories = [row.trajectory for row in probe.rows]
            broken = [t for t in trajectories if t.stop is Stop.BROKEN]
            session.check(
                len(broken) / len(trajectories), probe.unjudged, broken, f"eval, its probe ({self.stage.work})"
            )
        return probe

    async def _open_policy(self, requests: Sequence[RolloutRequest]) -> None:
        """Loads the model, once for trajectories and continuations, or opens what stands in for one."""
        config, session = self.config, self.session
        asked = {request.seed: request.sample for request in requests}
        if session.family is None:
            session.connect(config.endpoint, config.model, asked.__getitem__, self.stage.store.root)
            return
        if config.policy != "oracle":
            await compute(session.load)
        if config.policy.startswith("oracle"):
            script = OraclePolicy(session.chat, session.images, config.seed, session.worlds.card, asked)
            session.policy = GuidedPolicy(session.policy, script) if session.policy else script

    async def _ask(
        self,
        title: str,
        requests: Sequence[RolloutRequest],
        earlier: Sequence[Scored] = (),
        *,
        answers_only: bool = False,
    ) -> AsyncGenerator[Scored]:
        """Answers of the session, with a bar for each task; ``earlier`` was finished before."""
        tasks = [scored.trajectory.sample.task for scored in earlier] + [request.sample.task for request in requests]
        asking = self.session.ask(requests, self.config.concurrency, answers_only=answers_only)
        with ScoreBars(title, Counter(tasks), self.stage.work) as bars:
            for scored in earlier:
                bars.add(scored.trajectory.sample.task, score_so_far(scored.trajectory, scored.signals))
            async for scored in asking:
                yield scored
                bars.advance(scored.trajectory.sample.task, score_so_far(scored.trajectory, scored.signals))


def outlook(groups: Sequence[GroupRequest], remaining: int, limits: Limits, price: Price | None = None) -> str:
    """Returns one line: the rollouts of each task, how many are left, and what these take at most.

    Each of ``left`` rollouts has at most ``limits.max_tokens`` in context. An endpoint reads the context again at every
    turn, of which there are at most ``max_turns`` + 1; all that it writes stays in the context. So the money is at most
    (turns × input price + output price) × tokens.

    Args:
        price: of an endpoint; None, or prices of 0: no money is named.
    """
    sizes = Counter((group.sample.task, group.size) for group in groups)
    asked = ", ".join(f"{task} {count} × {size}" for (task, size), count in sorted(sizes.items()))
    total, tokens, turns = sum(group.size for group in groups), remaining * limits.max_tokens, limits.max_turns + 1
    some = f"{remaining} of {total} rollouts are left" if remaining < total else f"{total} rollouts"
    line = f"{some} ({asked}): at most {turns} turns and {limits.max_tokens} tokens each, {tokens} in all"
    if price is None or not (price.input or price.output):
        return line
    money = TokenUsage(tokens * turns, tokens).money(price)
    return f"{line}; at most {money:.2f} {price.currency}, as each turn reads the whole context again"


@dataclass(frozen=True, slots=True)
class _Results:
    """Everything that was rolled out."""

    found: list[Scored]
    probe: ProbeRun | None
    images: ImageStore
    image_tokens: Callable[[ImageRef], int] | None  # of the model; None: an endpoint


def _check(scored: Sequence[Scored], stage: StageRun, session: Session) -> None:
    """Prints how many rollouts broke and why; too many of them, or of trajectories without a verdict, end the run."""
    rolled_out = [s.trajectory for s in scored]
    session.refuse_no_room(rolled_out)
    broken = [t for t in rolled_out if t.stop is Stop.BROKEN]
    where = f"eval ({stage.work / TRAJECTORIES})"
    session.check(len(broken) / len(rolled_out), unjudged_share(s.signals for s in scored), broken, where)
    if broken:
        print_line(f"{len(broken)} of {len(rolled_out)} rollouts broke. {why_broken(broken)}")
    if errors := [error for s in scored if (error := s.signals.values.get("answer_error"))]:
        print_line(f"{len(errors)} of {len(scored)} answers are wrong because their rule raised, such as {errors[0]}")


def _benchmark_results(
    config: Config, scored: Sequence[Scored], label: str, judge: str
) -> dict[str, results.BenchmarkResult]:
    """Figures of each benchmark, from the stored trajectories alone."""

    def setting(name: str) -> results.RunSetting:
        decoding = config.drawing(name).words(config.agent.limits.max_turns, config.frames)
        return results.RunSetting(label, judge, decoding)

    return results.of_each(config.benchmark, scored, setting, seed=config.seed)


def _facts(config: Config, model: str, parents: Mapping[str, Artifact]) -> dict[str, str]:
    """The report's header."""
    if config.policy == "imported":
        return {"model": model, "policy": "imported", "files": str(config.imported.path)}
    header = {"model": model, "environment": read_card(config.agent.env).name}
    chosen = {k.replace("_", " "): str(getattr(config, k)) for k in FACTS}
    chosen["temperature"] = str(config.agent.sampling.temperature)
    calls = {"calls": config.endpoint.calls} if config.policy == "endpoint" else {}
    calls |= {"frames of a video": str(config.frames)} if config.frames is not None else {}
    return {k: p.ref for k, p in parents.items()} | header | chosen | calls


def _finish(config: Config, stage: StageRun, model: str, parents: Mapping[str, Artifact], rolled: _Results) -> Artifact:
    """Writes the artifact's files from what was found, commits them, and prints the table."""
    scored, images, out = rolled.found, rolled.images, stage.work / "report"
    shutil.rmtree(out, ignore_errors=True)
    folder.save_trajectories(out, scored, images)
    before = folder.load_series(parents["report"].path) if "report" in parents else ()
    label = config.label or (config.policy if config.policy.startswith("oracle") else model)
    rows = tuple(make_row(s, config.tool_term(s.signals), rolled.image_tokens) for s in scored)
    series = (*before, content.Evaluation(label, model, rows))
    folder.save_series(out, series, config.seed)
    judge = answers_by(config.job) or results.ORACLE
    measured = _benchmark_results(config, scored, label, judge)
    if measured:
        plain = {name: results.plain(r, config.benchmark[name]) for name, r in measured.items()}
        disk.write_atomic(out / "benchmarks.json", json.dumps(plain, indent=1).encode())
    probed = rolled.probe.result() if rolled.probe else None
    if rolled.probe and probed:
        folder.save_probe(out, rolled.probe.rows, probed, images)
    run = side_by_side.BenchmarkRun(label, judge, scored)
    extra = evaluated.tables(run, config.benchmark, measured, parents.get("report"), probed, config.seed)
    extra += emergent.tables(series, stage.store, parents.get("model"), config.seed)
    report = content.ReportData(
        title=f"{label} on held-out questions",
        facts=_facts(config, model, parents),
        # The page of a merge names the command that makes the whole report at once.
        commands=[re.sub(r" eval\.merge=\S+", "", command)] if (command := running()) else [],
        lineage="\n".join(stage.store.lineage(str(p.path)).text() for p in parents.values()),
        series=series,
        training=folder.load_training(parents["model"].path) if "model" in parents else content.Training(),
        shown=content.choose(scored, config.shown, config.seed),
        measured=len(scored),
        notes=folder.image_notes(parents["model"].path) if "model" in parents else (),
        seed=config.seed,
        extra=extra,
    )
    build.build(out, report, images)
    figures = folder.flat(summarise(series[-1].rows, config.seed)) | results.headlines(measured)
    figures |= effects.flat(probed) if probed else {}
    stage.tracker.metrics(figures, 0)
    artifact = stage.commit(out, {"label": label} | {k: v for k, v in figures.items() if k.split(".")[1] == "all"})
    evaluated.show(artifact.path, extra, config.seed, faithful=config.policy == "imported")
    return artifact


def _print_again(config: Config, report: Artifact, parents: Mapping[str, Artifact]) -> None:
    """Prints the tables of a report that was made before, from what it stores, under the label of this command."""
    scored = list(records.read(report.path / TRAJECTORIES, Scored))
    judge, stored = answers_by(config.job) or results.ORACLE, folder.load_series(report.path)[-1].label
    label = config.label or stored
    if label != stored:
        print_line(f"the page of {report.ref} keeps the label {stored}; reuse=false makes it again")
    run, probed = side_by_side.BenchmarkRun(label, judge, scored), folder.load_probe(report.path)
    measured = _benchmark_results(config, scored, label, judge)
    extra = evaluated.tables(run, config.benchmark, measured, parents.get("report"), probed, config.seed)
    series, store = folder.load_series(report.path), ArtifactStore(RunSettings.of(config.job, "report").home)
    extra += emergent.tables(series, store, parents.get("model"), config.seed)
    evaluated.show(report.path, extra, config.seed, faithful=config.policy == "imported", label=label)
