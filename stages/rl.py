"""``vtcli rl``: rollouts, verdicts, advantages, one optimiser step, and again; phases follow each other in one run."""

from __future__ import annotations

import asyncio
import functools
import itertools
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from vtcli import judging, records
from vtcli.algo import pack
from vtcli.algo.advantages import group_mean
from vtcli.algo.curriculum import batch_indices, locate
from vtcli.algo.losses import LossConfig
from vtcli.algo.monitor import describe
from vtcli.algo.optim import Backend, Optim
from vtcli.algo.select import Selection, chosen, correct_with_negative_credit, select
from vtcli.artifacts import Artifact, ArtifactStore
from vtcli.binding import bind
from vtcli.checkpoints import Checkpoints
from vtcli.envs.worlds import Worlds
from vtcli.errors import ConfigError, EngineError
from vtcli.images import ImageLimits, ImageStore
from vtcli.progress import StepBar, log_step
from vtcli.protocols import Advantage, Env, Reward, Signal
from vtcli.records import SampleSet
from vtcli.rollout import Limits, Sampling, derive_seed, rollout_group
from vtcli.sandbox.pool import PoolConfig
from vtcli.schema import Credit, Group, Sample, Scored, TrainRow
from vtcli.signals.measuring import Measuring, OpenJudge, unjudged_share
from vtcli.sources import source_model
from vtcli.stagerun import RunSettings, StageRun, open_run, wait_for_commit


@dataclass(frozen=True)
class Phase:
    """``steps`` optimiser steps on questions of one ``form`` under one reward."""

    name: str
    steps: int
    form: str
    reward: Reward


@dataclass(frozen=True)
class Config:
    """A curriculum of phases over one dataset, from one model."""

    data: str  # dataset artifact
    model: str  # model artifact, folder or hub name
    phases: list[Phase]
    prompts_per_step: int
    group_size: int
    prompt: Mapping[str, Any]
    signals: Mapping[str, Any]
    advantage: Advantage = group_mean
    select: Selection = field(default_factory=Selection)
    temperature: float = 1.0
    checkpoint_every: int = 1  # steps
    max_broken: float = 0.5  # a step with a larger share of broken rollouts ends the run
    max_unjudged: float = 0.05  # the same for trajectories that a judge was asked about and gave no verdict on
    judge: OpenJudge | None = None  # conf/judge; None: the oracle
    reference: bool = False  # keep the starting model for the KL term
    tasks: list[str] | None = None  # train on these only
    bad_rows: Literal["error", "skip"] = "error"
    steps_per_phase: int | None = None  # what the recipe's phases refer to
    env: functools.partial[Env] | None = None  # conf/env: the policy writes code; None: native tools
    sandbox: PoolConfig = field(default_factory=PoolConfig)
    limits: Limits = field(default_factory=Limits)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: Optim = field(default_factory=Optim)
    backend: Backend = field(default_factory=Backend)
    images: ImageLimits = field(default_factory=ImageLimits)
    seed: int = 0
    job: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.phases or any(phase.steps < 1 for phase in self.phases):
            raise ConfigError("rl.phases needs at least one phase, and every phase at least one step")
        if self.prompts_per_step < 1 or self.group_size < 1 or self.temperature <= 0:
            raise ConfigError("rl.prompts_per_step and rl.group_size must be at least 1, rl.temperature above 0")
        if self.loss.kl_coef > 0 and not self.reference:
            raise ConfigError("rl.loss.kl_coef is above 0 and needs a reference model: set rl.reference=true")


RlConfig = Config
# These change nothing in what is learnt.
RUNTIME_KEYS = ("rl.checkpoint_every", "sandbox.active", "sandbox.live", *judging.RUNTIME_KEYS)


def run(config: Config) -> Artifact:
    """Returns the model artifact: a Hugging Face folder, ``phases/<name>/`` as they ended, logs and trajectories.

    Raises:
        InputError: data or a model that cannot be used.
        EngineError: an engine that fails, a loss that is not finite, too many broken rollouts.
    """
    settings = RunSettings.of(config.job, "policy")
    store = ArtifactStore(settings.home)
    data = store.resolve(config.data, "dataset")
    source = source_model(store, config.model)
    parents = [data, *source.parents]
    with open_run(settings, "rl", "model", config.job, parents, runtime_keys=RUNTIME_KEYS) as stage:
        if stage.reused:
            return stage.reused
        return _Trainer(config, stage, data, source.path).run()


@dataclass(frozen=True)
class _Rollouts:
    """The groups of one step: this rank's own by their place among those of all ranks, and everyone's in that order
    with the credit of what is learnt from."""

    mine: dict[int, Group]
    everyone: list[Group]
    credit: list[list[Credit]]
    rounds: int

    def metrics(self) -> dict[str, float]:
        out = describe(self.everyone)
        out |= {"selected": float(chosen(self.credit)), "rounds": float(self.rounds)}
        shares = {
            "correct_negative": correct_with_negative_credit(self.everyone, self.credit),
            "judge/unjudged": unjudged_share(m.signals for group in self.everyone for m in group.members),
        }
        return out | {name: share for name, share in shares.items() if share is not None}


class _Trainer:
    """The loop's state: engines, logs and where they stand."""

    def __init__(self, config: Config, stage: StageRun, data: Artifact, start: Path) -> None:
        from vtcli.chat.qwen2_5_vl import QwenChat
        from vtcli.engines.deepspeed import DeepSpeedLearner
        from vtcli.engines.distributed import barrier
        from vtcli.engines.hf import HfPolicy, load_model

        self.config, self.stage, self.start = config, stage, start
        self.lengths = [phase.steps for phase in config.phases]
        self.total = sum(self.lengths)
        self.chat = QwenChat.load(start)
        dtype = config.backend.dtype
        images = ImageStore(stage.work / "images", config.images.min_pixels, config.images.max_pixels, cache_mb=500)
        self.images = images
        self.learner = DeepSpeedLearner(
            load_model(start, dtype),
            images.view,
            image_pad=self.chat.image_pad,
            optim=config.optim,
            backend=config.backend,
            total_steps=self.total,
            temperature=config.temperature,
            reference=load_model(start, dtype) if config.reference else None,
        )
        barrier()  # the first rank has made the work folder
        device = str(self.learner.engine.device)
        self.policy = HfPolicy(load_model(start, dtype, device), self.chat, images.view)
        self.worlds = Worlds(config.env, config.prompt, images, config.sandbox)
        self.loop = asyncio.Runner()  # one for all steps: a sandbox belongs to its event loop
        signals: list[Signal] = [bind(node, f"signals.{name}") for name, node in config.signals.items()]
        self.measure = Measuring(signals, config.judge, images, stage.store.root)
        self.sets = {form: self._samples(data, form) for form in {phase.form for phase in config.phases}}
        rank = self.learner.rank
        self.metrics_log = stage.work / "metrics.jsonl"
        logs = [stage.work / f"trajectories{f'-{r}' if r else ''}.jsonl" for r in range(self.learner.world)]
        self.trajectories = logs[rank]
        self.checkpoints = Checkpoints(stage.work / "checkpoints", [self.metrics_log, *logs])  # of all ranks

    def _samples(self, data: Artifact, form: str) -> tuple[SampleSet, list[int]]:
        found = SampleSet(data, form, "train", self.images, self.config.bad_rows)
        wanted = self.config.tasks
        kept = [i for i in range(len(found)) if wanted is None or found.task(i) in wanted]
        return found, kept

    def run(self) -> Artifact:
        with self.loop:
            try:
                self.loop.run(self.worlds.start())
                self.loop.run(self.measure.start())
                facts = self.worlds.facts | self.measure.facts
                self.stage.tracker.tags({k: str(v) for k, v in facts.items()})
                self._steps()
            finally:
                self.loop.run(self.measure.close())
                self.loop.run(self.worlds.close())
        return self._finish()

    def _steps(self) -> None:
        done = self._resume()
        with StepBar("rl", self.total, done, quiet=self.learner.rank != 0) as bar:
            for step in range(done, self.total):
                metrics = self._step(step)
                phase, within = locate(self.lengths, step)
                if within + 1 == self.lengths[phase]:
                    self._export(self.stage.work / "phases" / self.config.phases[phase].name)
                if (step + 1) % self.config.checkpoint_every == 0 or within + 1 == self.lengths[phase]:
                    self.learner.checkpoint(self.checkpoints, step + 1)
                bar.advance(f"{self.config.phases[phase].name}: reward {metrics.get('reward', float('nan')):.3f}")

    def _resume(self) -> int:
        found = self.checkpoints.resume()
        if found is None:
            return 0
        self.learner.load_checkpoint(found[1])
        self.policy.update(self.learner.weights(), found[0])
        return found[0]

    def _step(self, step: int) -> dict[str, float]:
        """One turn of the loop; the same for the same step and weights, however often the run was interrupted."""
        phase_index, within = locate(self.lengths, step)
        phase = self.config.phases[phase_index]
        begin = time.perf_counter()
        found = self._rollouts(phase_index, within, step)
        rolled = time.perf_counter()
        rows = self._rows(found)
        metrics = self.learner.step(rows, self.config.loss) if self._any(rows) else self.learner.skip()
        self.policy.update(self.learner.weights(), step + 1)
        metrics |= found.metrics()
        metrics |= {"time/rollout_s": rolled - begin, "time/learn_s": time.perf_counter() - rolled}
        records.append(self.trajectories, [member for group in found.mine.values() for member in group.members])
        if self.learner.rank == 0:
            log_step(self.stage.tracker, self.metrics_log, metrics, step, phase.name)
        if metrics["broken"] > self.config.max_broken:
            raise EngineError(f"step {step}: {metrics['broken']:.0%} of the rollouts broke, see {self.trajectories}")
        self.measure.check(metrics.get("judge/unjudged"), self.config.max_unjudged, f"step {step}")
        return metrics

    def _rollouts(self, phase_index: int, within: int, step: int) -> _Rollouts:
        """The rollouts of a step and their credit: one round, or as many as ``select`` needs to fill the step."""
        phase, chose = self.config.phases[phase_index], self.config.select
        samples, kept = self.sets[phase.form]
        prompts = round(self.config.prompts_per_step * chose.oversample)
        wanted = self.config.prompts_per_step * self.config.group_size
        order = derive_seed(self.config.seed, phase_index) % 2**32
        mine: dict[int, Group] = {}
        rounds = 0
        while True:
            picked = batch_indices(len(kept), prompts, within * chose.max_rounds + rounds, order)
            places = range(self.learner.rank, prompts, self.learner.world)
            seed = derive_seed(self.config.seed, "rollout", step, *([rounds] if rounds else []))
            groups = self.loop.run(self._roll([samples.load(kept[picked[p]]) for p in places], phase, seed))
            mine |= {rounds * prompts + p: group for p, group in zip(places, groups, strict=True)}
            rounds += 1
            found = self._credited(mine, wanted, rounds)
            if rounds == chose.max_rounds or chosen(found.credit) == wanted:
                return found

    def _credited(self, mine: dict[int, Group], wanted: int, rounds: int) -> _Rollouts:
        """With the groups of all ranks: credit may depend on the whole batch, and must not on how it was shared out."""
        from vtcli.engines.distributed import gather

        light = {
            p: replace(g, sample=replace(g.sample, images=())) for p, g in mine.items()
        }  # only its rank needs them
        everyone = dict(sorted(item for part in gather(light) for item in part.items()))
        groups = list(everyone.values())
        credit = select(groups, self.config.advantage(groups), wanted, self.config.select)
        return _Rollouts(mine, groups, credit, rounds)

    async def _roll(self, samples: Sequence[Sample], phase: Phase, seed: int) -> list[Group]:
        sampling = Sampling(self.config.temperature, self.config.group_size, seed)
        roll = functools.partial(
            rollout_group,
            policy=self.policy,
            chat=self.chat,
            open_env=self.worlds,
            limits=self.config.limits,
        )
        found = await asyncio.gather(*(roll(sample, sampling=sampling) for sample in samples))
        groups: list[Group] = []
        measured = iter(await self.measure([member for members in found for member in members]))
        for sample, members in zip(samples, found, strict=True):
            signals = list(itertools.islice(measured, len(members)))
            verdicts = phase.reward(signals)
            scored = tuple(Scored(t, s, v) for t, s, v in zip(members, signals, verdicts, strict=True))
            groups.append(Group(sample, scored))
        return groups

    def _rows(self, found: _Rollouts) -> list[TrainRow]:
        """This rank's rows."""
        return [
            pack.to_row(member.trajectory, value)
            for place, group in found.mine.items()
            for member, value in zip(group.members, found.credit[place], strict=True)
            if value is not None and member.trajectory.policy_turns
        ]

    def _any(self, rows: Sequence[TrainRow]) -> bool:
        from vtcli.engines.distributed import gather

        return any(gather(bool(rows)))

    def _export(self, folder: Path) -> None:
        from vtcli.engines.deepspeed import export
        from vtcli.engines.distributed import barrier

        if self.learner.rank == 0:
            draft = folder.with_name(folder.name + ".draft")
            shutil.rmtree(draft, ignore_errors=True)
            export(self.learner.module.model, self.start, draft)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        barrier()

    def _finish(self) -> Artifact:
        folder = self.stage.work / "model"
        self._export(folder)  # with a barrier, so all ranks are in it
        if self.learner.rank != 0:
            return wait_for_commit(self.stage)
        for path in [self.metrics_log, *sorted(self.stage.work.glob("trajectories*.jsonl"))]:
            shutil.copyfile(path, folder / path.name)
        for name in ("phases", "images"):
            shutil.copytree(self.stage.work / name, folder / name, dirs_exist_ok=True)
        return self.stage.commit(folder, {"steps": self.total, "phases": [p.name for p in self.config.phases]})
