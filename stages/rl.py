"""``vtcli rl``: rollouts, verdicts, advantages, one optimiser step, and again; phases follow each other in one run."""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vtcli import judging, records
from vtcli.algo.advantages import group_mean
from vtcli.algo.curriculum import batch_indices, locate
from vtcli.algo.losses import LossConfig
from vtcli.algo.optim import Backend, Optim
from vtcli.algo.select import Selection
from vtcli.artifacts import Artifact, ArtifactStore
from vtcli.binding import bind
from vtcli.bounds import above, at_least, shares
from vtcli.checkpoints import Checkpoints, require
from vtcli.collecting import Asked, Batch, Collector, Ranks
from vtcli.engines.policies import Engine, Place, open_policy
from vtcli.envs.worlds import Worlds
from vtcli.errors import ConfigError
from vtcli.images import ImageLimits, ImageStore
from vtcli.judging import oracle
from vtcli.loops import EventLoop
from vtcli.progress import StepBar, log_step
from vtcli.protocols import Advantage, Env, Reward, Signal
from vtcli.records import SampleSet
from vtcli.rollout import Limits, Sampling, derive_seed, refuse_broken
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.schema import TrainRow
from vtcli.signals.measuring import Measuring, OpenJudge
from vtcli.sources import source_model
from vtcli.stagerun import RunSettings, StageRun, open_run, wait_for_commit
from vtcli.streaming import Stream
from vtcli.videos import portable


@dataclass(frozen=True)
class Phase:
    """``steps`` optimiser steps on questions of one ``form`` under one reward."""

    name: str
    steps: int
    form: str
    reward: Reward

    def __post_init__(self) -> None:
        at_least(1, self, "steps")


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
    steps_ahead: Literal[0, 1] = 0  # 1: rollouts of the next step go on while the learner works, one update older
    lockstep_turns: bool = False  # every trajectory's turn waits for all others': for comparisons alone
    updates_per_step: int = 1  # optimiser steps: mini-batches that the rollouts of a step are shared out to
    temperature: float = 1.0
    checkpoint_every: int = 1  # steps
    checkpoint_keep: int = 2  # the newest so many stay
    checkpoint_best: str | None = None  # a metric: its best checkpoint stays as well, and is written as best/
    checkpoint_best_mode: Literal["max", "min"] = "max"
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
    engine: Engine = field(default_factory=Engine)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: Optim = field(default_factory=Optim)
    backend: Backend = field(default_factory=Backend)
    images: ImageLimits = field(default_factory=ImageLimits)
    seed: int = 0
    job: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.phases:
            raise ConfigError("rl.phases is empty: expected at least one phase. Choose a recipe: +recipe=toolsrl")
        at_least(1, self, "prompts_per_step", "group_size", "updates_per_step", "checkpoint_every", "checkpoint_keep")
        above(0, self, "temperature")
        shares(self, "max_broken", "max_unjudged")
        if self.loss.kl_coef > 0 and not self.reference:
            raise ConfigError("rl.loss.kl_coef is above 0 and needs a reference model: set rl.reference=true")


RlConfig = Config
# These change nothing in what is learnt.
RUNTIME_KEYS = ("rl.checkpoint_keep", "rl.max_broken", "sandbox.active", "sandbox.live", *judging.RUNTIME_KEYS)


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
    free = () if config.checkpoint_best else ("rl.checkpoint_every",)  # the best is chosen among what was kept
    with open_run(settings, "rl", "model", config.job, parents, runtime_keys=(*RUNTIME_KEYS, *free)) as stage:
        if stage.reused:
            return stage.reused
        return _Trainer(config, stage, data, source.path).run()


class _Trainer:
    """The loop's state: engines, logs and where they stand."""

    def __init__(self, config: Config, stage: StageRun, data: Artifact, start: Path) -> None:
        from vtcli.chat.qwen2_5_vl import QwenChat
        from vtcli.engines.deepspeed import DeepSpeedLearner
        from vtcli.engines.distributed import barrier, gather
        from vtcli.engines.hf import load_model
        from vtcli.engines.parity import probing

        self.config, self.stage, self.start = config, stage, start
        self.lengths = [phase.steps for phase in config.phases]
        self.total = sum(self.lengths)
        self.chat = QwenChat.load(start)
        dtype = config.backend.dtype
        images = ImageStore(stage.work / "images", config.images.min_pixels, config.images.max_pixels, cache_mb=500)
        self.images = images
        self.view = probing(images.view)
        self.learner = DeepSpeedLearner(
            load_model(start, dtype),
            self.view,
            image_pad=self.chat.image_pad,
            optim=config.optim,
            backend=config.backend,
            total_steps=self.total * config.updates_per_step,
            temperature=config.temperature,
            reference=load_model(start, dtype) if config.reference else None,
        )
        barrier()  # the first rank has made the work folder
        place = Place(dtype, str(self.learner.engine.device))
        self.policy = open_policy(config.engine, start, self.chat, self.view, config.limits, place)
        self.worlds = Worlds(config.env, config.prompt, images, config.sandbox, verify=oracle.judges(config.judge))
        self.loop = EventLoop()  # one for all steps: a sandbox belongs to its event loop
        signals: list[Signal] = [bind(node, f"signals.{name}") for name, node in config.signals.items()]
        self.measure = Measuring(signals, config.judge, images, stage.store.root)
        self.collector = Collector(
            self.loop,
            Stream(self.policy, self.chat, self.worlds, config.limits, self.measure, config.lockstep_turns),
            self._asked,
            (config.prompts_per_step * config.group_size, config.select, config.advantage),
            Ranks(self.learner.rank, self.learner.world, gather),
        )
        self.sets = {form: self._samples(data, form) for form in {phase.form for phase in config.phases}}
        rank = self.learner.rank
        self.metrics_log = stage.work / "metrics.jsonl"
        logs = [stage.work / f"trajectories{f'-{r}' if r else ''}.jsonl" for r in range(self.learner.world)]
        self.trajectories = logs[rank]
        self.checkpoints = Checkpoints(
            stage.work / "checkpoints",
            [self.metrics_log, *logs],  # of all ranks
            config.checkpoint_keep,
            config.checkpoint_best_mode,
        )

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
                self.policy.close()
        return self._finish()

    def _steps(self) -> None:
        done, batch = self._resume()
        self._agree()
        known = False  # that checkpoint_best is a metric
        with StepBar("rl", self.total, done, quiet=self.learner.rank != 0) as bar:
            for step in range(done, self.total):
                metrics, batch = self._step(step, batch)
                known = known or require(metrics, self.config.checkpoint_best)
                phase, within = locate(self.lengths, step)
                if within + 1 == self.lengths[phase]:
                    self._export(self.stage.work / "phases" / self.config.phases[phase].name)
                if (step + 1) % self.config.checkpoint_every == 0 or within + 1 == self.lengths[phase]:
                    value = metrics.get(self.config.checkpoint_best or "")
                    also = functools.partial(self.collector.save, batch) if batch is not None else None
                    self.learner.checkpoint(self.checkpoints, step + 1, value, also)
                bar.advance(f"{self.config.phases[phase].name}: reward {metrics.get('reward', float('nan')):.3f}")

    def _agree(self) -> None:
        """Policy and learner compute the same, on every rank, or nothing is trained."""
        from vtcli.engines import parity
        from vtcli.engines.distributed import gather

        temperature = self.config.temperature
        own = parity.agreements(self.loop, self.policy, self.learner, self.chat, self.view, temperature)
        parity.require([a for part in gather(own) for a in part], self.config.backend.dtype)

    def _resume(self) -> tuple[int, Batch | None]:
        """How many steps are done, and the next one's batch where it was there already."""
        found = self.checkpoints.resume()
        if found is None:
            return 0, None
        self.learner.load_checkpoint(found[1])
        self.policy.update(self.learner.weights(), found[0])
        return found[0], self.collector.load(found[1])

    def _step(self, step: int, batch: Batch | None) -> tuple[dict[str, float], Batch | None]:
        """One turn of the loop, the same for the same step, weights and batch, however often the run was interrupted.
        With ``steps_ahead`` also the next step's batch, of the weights before this step's update."""
        phase = self.config.phases[locate(self.lengths, step)[0]]
        begin = time.perf_counter()
        batch = batch or self.collector.collect(step)
        learn = functools.partial(self._learn, batch.rows(self.config.updates_per_step))
        if self.config.steps_ahead and step + 1 < self.total:
            metrics, following = self.collector.beside(learn, step + 1)
        else:
            metrics, following = learn(), None
        learnt = time.perf_counter()
        self.policy.update(self.learner.weights(), step + 1)
        metrics["time/learn_s"] += time.perf_counter() - learnt
        metrics |= batch.metrics()
        records.append(self.trajectories, [portable(one) for one in batch.scored])
        metrics["time/step_s"] = time.perf_counter() - begin
        if self.learner.rank == 0:
            log_step(self.stage.tracker, self.metrics_log, metrics, step, phase.name)
        rolled_out, where = (s.trajectory for s in batch.scored), f"step {step} ({self.trajectories})"
        refuse_broken(metrics["broken"], self.config.max_broken, rolled_out, "rl", where)
        self.measure.check(metrics.get("judge/unjudged"), self.config.max_unjudged, f"step {step}")
        return metrics, following

    def _learn(self, rows: Sequence[Sequence[TrainRow]]) -> dict[str, float]:
        begin = time.perf_counter()
        metrics = self.learner.update(rows, self.config.loss)
        return metrics | {"time/learn_s": time.perf_counter() - begin}

    def _asked(self, step: int, rounds: int) -> Asked:
        """What is rolled out in a step after so many rounds of it."""
        index, within = locate(self.lengths, step)
        phase, config = self.config.phases[index], self.config
        samples, kept = self.sets[phase.form]
        prompts = round(config.prompts_per_step * config.select.oversample)
        order = derive_seed(config.seed, index) % 2**32
        picked = batch_indices(len(kept), prompts, within * config.select.max_rounds + rounds, order)
        seed = derive_seed(config.seed, "rollout", step, *([rounds] if rounds else []))
        sampling = Sampling(config.temperature, config.group_size, seed)
        return Asked(lambda place: samples.load(kept[picked[place]]), prompts, phase.reward, sampling)

    def _export(self, folder: Path) -> None:
        from vtcli.engines.distributed import barrier

        draft = folder.with_name(folder.name + ".draft")
        if self.learner.rank == 0:
            shutil.rmtree(draft, ignore_errors=True)
        self.learner.export(self.start, draft)
        if self.learner.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        barrier()

    def _finish(self) -> Artifact:
        folder = self.stage.work / "model"
        self._export(folder)  # with a barrier, so all ranks are in it
        if (best := self.checkpoints.best()) is not None:
            self.learner.load_checkpoint(best)
            self._export(folder / "best")
        if self.learner.rank != 0:
            return wait_for_commit(self.stage)
        for path in [self.metrics_log, *sorted(self.stage.work.glob("trajectories*.jsonl"))]:
            shutil.copyfile(path, folder / path.name)
        for name in ("phases", "images"):
            shutil.copytree(self.stage.work / name, folder / name, dirs_exist_ok=True)
        return self.stage.commit(folder, {"steps": self.total, "phases": [p.name for p in self.config.phases]})
