"""``vtcli rl``: rollouts, verdicts, advantages, one optimiser step, and again; phases follow each other in one run."""

from __future__ import annotations

import functools
import itertools
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vtcli import judging
from vtcli.algo.advantages import group_mean, refuse_single
from vtcli.algo.curriculum import locate, require_phases, round_indices
from vtcli.algo.losses import LossConfig, refuse_wide_clip
from vtcli.algo.monitor import refuse_banned_mass, why_no_update
from vtcli.algo.optim import Backend, Optim
from vtcli.algo.parity import ParityBounds
from vtcli.algo.select import StepFill, filter_and_rank, refuse_early_stop, refuse_equal_singles
from vtcli.benchmarks.benchmark import Benchmark, own_rules
from vtcli.benchmarks.results import ORACLE
from vtcli.config.bounds import at_least, shares, within
from vtcli.engines.phases import Phases, refuse_sleep_ahead
from vtcli.engines.policies import ROOM, Placement, TrainedPolicy
from vtcli.envs.card import read_card
from vtcli.errors import ConfigError
from vtcli.families.family import Family
from vtcli.families.table import open_family
from vtcli.judging.separate import answers_by
from vtcli.protocols import Advantage, Reward, Select
from vtcli.rollout.batch import Collector, Fill, RoundRequest, StepBatch
from vtcli.rollout.loop import GroupRequest, derive_seed
from vtcli.rollout.threads import EventLoop
from vtcli.runs.environment import recorded
from vtcli.runs.progress import StepBar, log_step, say_cut
from vtcli.runs.run import MEMORY_KEYS, RunSettings, Scope, StageRun, first_rank, open_run, wait_for_commit
from vtcli.runs.training_logs import TrainingLogs, UpdateCount, rollouts
from vtcli.schema import Credit, Group
from vtcli.session import agent, validation
from vtcli.session.agent import Agent
from vtcli.session.benchmark_questions import BenchmarkQuestions, tools_of
from vtcli.session.benchmark_validation import BenchmarkExam, require_whole
from vtcli.session.questions import Questions, choose, require_forms
from vtcli.session.session import Session
from vtcli.session.validation import HeldOut, Validation, Validator
from vtcli.store import disk, records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.checkpoints import VALIDATED, Checkpoints, checkpoint_interval, require, score
from vtcli.store.image_work import submit
from vtcli.store.models import source_model
from vtcli.store.records import SampleSet, in_training
from vtcli.store.retention import Retention, require_keep_images
from vtcli.store.videos import portable

if TYPE_CHECKING:
    from vtcli.engines.learner.deepspeed import DeepSpeedLearner


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
    agent: Agent
    advantage: Advantage = group_mean
    select: Select = filter_and_rank
    fill: StepFill = field(default_factory=StepFill)
    steps_ahead: Literal[0, 1] = 0  # 1: rollouts of the next step go on while the learner works, one update older
    updates_per_step: int = 1  # optimiser steps: mini-batches that the rollouts of a step are shared out to
    checkpoint_every: int | str = 1  # steps, or a time: 30min, 2h
    checkpoint_beside: bool = True  # written while the training goes on, from a copy in host memory
    checkpoint_keep: int = 2  # the newest so many stay
    checkpoint_best: str | None = None  # a metric, say validation/accuracy: its best checkpoint stays too, as best/
    checkpoint_best_mode: Literal["max", "min"] = "max"  # whether the most (reward) or the least (loss) is best
    validate: Validation = field(default_factory=Validation)
    benchmark: dict[str, Benchmark] = field(default_factory=dict[str, Benchmark])  # conf/benchmark, for validate
    keep_images: int | str = "all"  # or the number of trajectories, spread over the run, whose images stay
    compress_logs: bool = False  # true: trajectories.jsonl.zst, a fifth of the bytes; `zstd -dc` reads it
    max_banned_mass: float = 0.01  # a step with a larger mean probability of markers that are never drawn ends the run
    reference: bool = False  # keep the starting model for the KL term
    tasks: list[str] | None = None  # train on these only
    bad_rows: Literal["error", "skip"] = "error"  # skip: rows that cannot be read are left out
    allow_no_update: bool = False  # a run of which no step updated anything still makes an artifact
    steps_per_phase: int | None = None  # what the recipe's phases refer to
    loss: LossConfig = field(default_factory=LossConfig)
    optim: Optim = field(default_factory=Optim)
    backend: Backend = field(default_factory=lambda: Backend(entropy=True))  # false: the metric is left out
    parity: ParityBounds = field(default_factory=ParityBounds)  # of policy and learner, at the start
    seed: int = 0
    job: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        require_phases([phase.name for phase in self.phases])
        at_least(1, self, "updates_per_step", "checkpoint_keep")
        checkpoint_interval(self.checkpoint_every, self.checkpoint_best, self.checkpoint_best_mode)
        forms = [phase.form for phase in self.phases]
        self.validate.require(forms, self.checkpoint_every, self.checkpoint_best, self.benchmark)
        require_keep_images(self.keep_images)
        within(self.prompts_per_step, "prompts_per_step", 1, MAX_PROMPTS)
        within(self.group_size, "group_size", 1, MAX_GROUP)
        within(self.agent.sampling.temperature, "agent.sampling.temperature", 0, above=True)
        refuse_single(self.advantage, self.group_size)
        refuse_equal_singles(self.select, self.group_size)
        refuse_early_stop(self.select, self.fill)
        refuse_wide_clip(self.loss)
        shares(self, "max_banned_mass")
        read_card(self.agent.env)
        self.backend.require_whole_rows(self.agent.limits.max_tokens)
        if (self.agent.dtype, self.agent.device) != (self.backend.dtype, None):
            raise ConfigError(
                f"rl.agent.dtype={self.agent.dtype}, rl.agent.device={self.agent.device}: the policy computes as its "
                f"learner does and where it does (rl.backend.dtype={self.backend.dtype}). Set rl.backend.dtype"
            )
        engine = self.agent.engine
        if self.steps_ahead:
            refuse_sleep_ahead(engine.sleep if engine.sleeps else 0, learner_sleeps=self.backend.sleep)
        if self.loss.kl_coef > 0 and not self.reference:
            raise ConfigError("rl.loss.kl_coef is above 0 and needs a reference model: set rl.reference=true")

    @property
    def benchmarks(self) -> BenchmarkQuestions:
        """The questions of benchmarks, for validation."""
        return BenchmarkQuestions(
            benchmarks=self.benchmark if self.validate.every else {},
            folder=self.validate.benchmarks_in,
            tools=tools_of(self.job),
            seed=self.seed,
            limit=self.validate.prompts,
        )


NAME = "policy"  # of the artifact, without name=
MAX_PROMPTS, MAX_GROUP = 2**16, 2**12  # of a step, all in memory at once; the papers have 1024 and 16 at most
PROMPTS_TRIED = 8  # of each form, before the first rollout: whether agent.limits.max_tokens leaves room for an answer
RUNTIME_KEYS = (  # what changes nothing that is learnt
    *("rl.data", "rl.checkpoint_keep", "rl.checkpoint_beside", "rl.keep_images", "rl.compress_logs", "engine"),
    *("rl.max_banned_mass", "rl.allow_no_update", "rl.parity", "rl.validate.benchmarks_in"),
    *agent.runtime_keys("rl"),
    *(f"rl.backend.{key}" for key in MEMORY_KEYS),
    *judging.RUNTIME_KEYS,
)


def run(config: Config) -> Artifact:
    """Returns the model artifact: a Hugging Face folder, ``phases/<name>/`` as they ended, logs and trajectories.

    Raises:
        InputError: data or a model that cannot be used.
        EngineError: an engine that fails, a loss that is not finite, too many broken rollouts.
    """
    settings = RunSettings.of(config.job, NAME)
    store = ArtifactStore(settings.home)
    data = require_forms(store.resolve(config.data, "dataset", verify=first_rank()), [p.form for p in config.phases])
    source = source_model(store, config.model, verify=first_rank())
    held_out = store.resolve(config.validate.data or config.data, "dataset", verify=first_rank())
    others = [held_out] if held_out.digest != data.digest else []
    chosen = (config.checkpoint_best or "").startswith(VALIDATED)  # its figures choose the weights
    parents, lineage = [data, *source.parents, *(others if chosen else ())], () if chosen else others
    free = (*RUNTIME_KEYS, *source.location_keys("rl"), *(() if chosen else ("rl.validate", "benchmark")))
    free += () if config.checkpoint_best else ("rl.checkpoint_every",)  # the best is chosen among what was kept
    read = {**source.files, **(config.benchmarks.files() if chosen else {})}
    with open_run(settings, "rl", "model", config.job, parents, Scope(free, read, lineage=lineage)) as stage:
        if stage.reused:
            return stage.reused
        require_whole(
            config.benchmarks, config.validate.drawn(config.agent.sampling), config.agent.env, read=first_rank()
        )
        say_cut("rl", config.agent.sampling)
        training = _open(config, stage, data, held_out, source.path)
        with training.started():
            _train(training)
        return _finish(training)


@dataclass(frozen=True)
class _Training:
    """Parts of a run, in the order in which ``_open`` opens them."""

    config: Config
    stage: StageRun
    start: Path  # the folder of the model that the run starts from
    family: Family
    retention: Retention
    session: Session
    learner: DeepSpeedLearner
    policy: TrainedPolicy
    phases: Phases  # whose turn it is on the device
    questions: Mapping[str, Questions]  # by form
    held_out: Artifact  # the dataset that validation asks
    loop: EventLoop  # one for all steps: a sandbox belongs to its event loop

    @property
    def lengths(self) -> list[int]:
        """The steps of each phase."""
        return [phase.steps for phase in self.config.phases]

    @functools.cached_property
    def logs(self) -> TrainingLogs:
        return TrainingLogs(self.stage.work, self.config.compress_logs, self.retention)

    @functools.cached_property
    def checkpoints(self) -> Checkpoints:
        """Checkpoints that include the logs of all ranks."""
        return self.logs.checkpoints(self.learner.world, self.config.checkpoint_keep, self.config.checkpoint_best_mode)

    @contextmanager
    def started(self) -> Generator[None]:
        """Starts the session, and closes it however the block ends. Some questions of each form leave room for an
        answer, or nothing is rolled out."""
        offer = self.session.worlds.offer
        with self.loop:
            try:
                few = (map(offer, found.few(PROMPTS_TRIED)) for found in self.questions.values())
                self.loop.run(self.session.start(*few))
                self.stage.tracker.tags(self.session.facts)
                yield
            finally:
                self.loop.run(self.session.close())


def _train(run: _Training) -> None:
    """Every step of the run, in the order of the design's table: collect, measure, reward, advantage, select, pack,
    update, new weights, log. The same for the same step, weights and batch, however often the run was interrupted."""
    from vtcli.engines.learner.distributed import ranks
    from vtcli.engines.learner.saving import Saver, export_complete
    from vtcli.engines.learner.throughput import timed_update

    config, learner, lengths = run.config, run.learner, run.lengths
    rank, total, wanted = learner.rank, sum(lengths), config.prompts_per_step * config.group_size
    trajectories, retention = run.logs.trajectories(rank)[-1], run.retention

    def credit(groups: Sequence[Group]) -> list[list[Credit]]:
        advantages = config.advantage(groups)  # one value per policy turn
        return config.select(groups, advantages, wanted)  # None keeps a trajectory out of the loss

    collector = Collector(
        run.loop,
        run.session.stream(),
        credit,
        Fill(wanted, config.fill.max_rounds, config.fill.stop_when_full),
        ranks("the rollouts of all ranks"),
    )
    done, ahead = _resume(run, collector)
    updates = UpdateCount(run.logs.metrics, quiet=rank != 0)
    validate = _validator(run)
    _require_agreement(run)
    if done == 0:
        validate(0, total)
    every = checkpoint_interval(config.checkpoint_every, config.checkpoint_best, config.checkpoint_best_mode)
    saver = Saver(learner, run.checkpoints, every, beside=config.checkpoint_beside)
    known = False  # that checkpoint_best is a metric
    with StepBar("rl", total, done, quiet=rank != 0, work=run.stage.work) as bar:
        for step in range(done, total):
            index, within = locate(lengths, step)
            phase, begin = config.phases[index], time.perf_counter()

            # The policy's turn: the learner's states make room, and its weights go to the engine.
            run.phases.generate(step)
            moved = time.perf_counter() - begin

            # Collect, measure, reward, advantage, select: in as many rounds as it takes to fill the step.
            retention.begin(step)
            batch = ahead or collector.collect(step, _rounds(run, step))
            rolled_out = [scored.trajectory for scored in batch.scored]

            # The learner's turn: the engine's cache and weights make room.
            turned = time.perf_counter()
            run.phases.learn()
            moved += time.perf_counter() - turned

            # Pack and update. With steps_ahead the next step is collected meanwhile, by the weights before the update.
            learn = functools.partial(timed_update, learner, batch.rows(config.updates_per_step), config.loss)
            if config.steps_ahead and step + 1 < total:
                retention.begin(step + 1)
                metrics, ahead = collector.beside(learn, step + 1, _rounds(run, step + 1))
            else:
                metrics, ahead = learn(), None
            metrics |= {"time/move_s": moved, **run.phases.peaks}

            # Append, log, and refuse to go on where the step says that the run is worth nothing.
            why = functools.partial(why_no_update, [*batch.everyone.values()], [*batch.credit.values()])
            updates.count(metrics["updated"], why)
            metrics |= batch.metrics()
            records.append(trajectories, [portable(scored) for scored in batch.scored])
            retention.end(step, rank, batch.everyone, batch.own.groups)
            metrics["time/step_s"] = time.perf_counter() - begin
            if rank == 0:
                log_step(run.stage.tracker, run.logs.metrics, metrics, step, phase.name)
                run.stage.tracker.rollouts(rollouts(batch.scored, run.session.images), step)
            where = f"step {step} ({trajectories})"
            run.session.check(metrics["broken"], metrics.get("judge/unjudged"), rolled_out, where)
            refuse_banned_mass(metrics.get("banned_mass"), config.max_banned_mass, where)

            # Validate the weights after the update. Nothing of it reaches the training.
            metrics |= validate(step + 1, total)
            known = known or require(metrics, config.checkpoint_best)

            # Checkpoint, which is written beside the next steps.
            saver.check()
            last = within + 1 == lengths[index]
            if last:
                export_complete(learner, run.start, run.stage.work / "phases" / phase.name)
            if last or saver.due(step + 1):
                value = metrics.get(config.checkpoint_best or "")
                also = functools.partial(collector.save, ahead) if ahead is not None else None
                retention.saving(step + 1)
                saver.save(step + 1, value, also)
            bar.advance(f"{phase.name}: reward {metrics.get('reward', float('nan')):.3f}")
    saver.finish()
    updates.require(config.allow_no_update)


def _rounds(run: _Training, step: int) -> Iterator[RoundRequest]:
    """The rounds of a step, as many as are taken."""
    return (_round(run, step, number) for number in itertools.count())


def _round(run: _Training, step: int, number: int) -> RoundRequest:
    """The samples of one round of a step and the reward of their groups: a function of step and number alone."""
    config, (index, within) = run.config, locate(run.lengths, step)
    phase = config.phases[index]
    samples, kept = run.questions[phase.form].samples, run.questions[phase.form].kept
    prompts = round(config.prompts_per_step * config.fill.oversample)
    order = derive_seed(config.seed, index) % 2**32
    picked = round_indices(len(kept), prompts, within, number, order)
    seed = derive_seed(config.seed, "rollout", step, *([number] if number else []))

    def group(place: int) -> GroupRequest:
        repeat = picked[:place].count(picked[place])  # the data are fewer than the places of a round
        sample = run.session.worlds.offer(samples.load(kept[picked[place]]))
        return GroupRequest(sample, config.group_size, seed, config.agent.sampling, repeat)

    def prefetch(places: Sequence[int]) -> None:
        following = _round(run, step + 1, 0)
        for place in places:
            submit(functools.partial(following.group, place))

    more = number == 0 and step + 1 < sum(run.lengths)
    return RoundRequest(group, prompts, phase.reward, prefetch if more else None)


def _validator(run: _Training) -> Validator:
    """Validates with one form and one reward over the whole run: those of the last phase, or of ``validate.form``;
    benchmarks by their own scorers."""
    config, settings = run.config, run.config.validate
    exams: list[validation.Exam] = []
    if settings.split is not None:
        last = [phase for phase in config.phases if settings.form in (None, phase.form)][-1]
        exams.append(
            HeldOut(
                settings,
                run.held_out,
                form=last.form,
                reward=last.reward,
                tasks=config.tasks,
                bad_rows=config.bad_rows,
                images=run.session.images,
                offer=run.session.worlds.offer,
                sampling=config.agent.sampling,
                seed=config.seed,
            )
        )
    if config.benchmarks.benchmarks:
        exams.append(
            BenchmarkExam(
                config.benchmarks,
                drawn=settings.drawn(config.agent.sampling),
                judge=answers_by(config.job) or ORACLE,
                images=run.retention.benchmarks(run.family.sizing(config.agent.images)),
                offer=run.session.worlds.offer,
            )
        )
    return Validator(
        settings,
        exams,
        loop=run.loop,
        session=run.session,
        phases=run.phases,
        retention=run.retention,
        work=run.stage.work,
        tracker=run.stage.tracker,
        max_banned_mass=config.max_banned_mass,
        compress=config.compress_logs,
    )


def _resume(run: _Training, collector: Collector) -> tuple[int, StepBatch | None]:
    """Returns the number of steps done, and the next step's batch if the checkpoint holds one."""
    checkpoint = run.checkpoints.resume()
    if checkpoint is None:
        return 0, None
    run.phases.learn()
    run.learner.load_checkpoint(checkpoint[1])
    run.phases.generate(checkpoint[0])
    run.retention.begin(checkpoint[0])
    return checkpoint[0], collector.load(checkpoint[1])


def _require_agreement(run: _Training) -> None:
    """Policy and learner compute the same, on every rank, or nothing is trained."""
    from vtcli.engines.parity import ParityCheck, require_at_start, starts

    config, room = run.config, max(ROOM, run.config.agent.limits.max_tokens)
    log = run.stage.work / "parity.jsonl"
    check = ParityCheck(
        run.policy,
        run.learner,
        run.family,
        run.session.view,
        dtype=config.backend.dtype,
        bounds=config.parity,
        room=room,
        temperature=config.agent.sampling.temperature,
    )
    sampled = check.sample(run.loop, derive_seed(config.seed, "parity", starts(log), run.learner.rank))
    run.phases.learn()
    require_at_start(check, sampled, log)


def _open(config: Config, stage: StageRun, data: Artifact, held_out: Artifact, start: Path) -> _Training:
    """Loads the model twice: the learner first, which joins the ranks, then the policy, on the learner's device."""
    from vtcli.engines.hf import load_model
    from vtcli.engines.learner.deepspeed import DeepSpeedLearner
    from vtcli.engines.learner.distributed import barrier, ranks
    from vtcli.engines.probes import probing

    family, dtype = open_family(start, config.agent.families), config.backend.dtype
    steps = sum(phase.steps for phase in config.phases)
    retention = Retention(stage.work, config.keep_images, steps, ahead=bool(config.steps_ahead))
    images = retention.store(family.sizing(config.agent.images), cache_mb=500)
    view = probing(images.view)
    learner = DeepSpeedLearner(
        load_model(family, dtype),
        family,
        view,
        optim=config.optim,
        backend=config.backend,
        total_steps=steps * config.updates_per_step,
        temperature=config.agent.sampling.temperature,
        reference=load_model(family, dtype) if config.reference and not config.optim.lora.rank else None,
    )
    barrier()  # the first rank has made the work folder
    if config.backend.sleep:
        learner.sleep()  # an engine takes its share of the device when it is opened
    session = Session(
        config.agent,
        "rl",
        images,
        stage.store.root,
        family=family,
        rules=own_rules(config.benchmarks.benchmarks),
        view=view,
    )
    policy = session.load(Placement(dtype, str(learner.engine.device), config.agent.images))
    engine = config.agent.engine
    phases = Phases(policy, learner, engine_sleeps=engine.sleeps, learner_sleeps=config.backend.sleep)
    rows, questions = ranks("the check of the rows"), dict[str, Questions]()
    for form in sorted({phase.form for phase in config.phases}):
        found = SampleSet(data, form, "train", images, in_training(config.bad_rows), rows)
        questions[form] = choose(data, form, found, config.tasks, config.prompts_per_step)
    return _Training(
        config, stage, start, family, retention, session, learner, policy, phases, questions, held_out, EventLoop()
    )


def _finish(run: _Training) -> Artifact:
    from vtcli.engines.learner.distributed import rank_alive
    from vtcli.engines.learner.saving import export_complete

    folder = run.stage.work / "model"
    export_complete(run.learner, run.start, folder)
    facts: dict[str, Any] = {"steps": sum(run.lengths), "phases": [p.name for p in run.config.phases]}
    if (best := run.checkpoints.best()) is not None:
        facts["best"] = {"metric": run.config.checkpoint_best, **score(best)}
        run.learner.load_checkpoint(best)
        export_complete(run.learner, run.start, folder / "best")
    if run.learner.rank != 0:
        return wait_for_commit(run.stage, RunSettings.of(run.config.job, NAME).name, rank_alive(0, "the artifact"))
    with disk.checked(folder, "copy logs, phases and images to"):
        run.logs.collect(folder)
        shutil.copytree(run.stage.work / "phases", folder / "phases", dirs_exist_ok=True)
        run.retention.collect(folder / "images", run.learner.world)
    return run.stage.commit(folder, facts | recorded(run.config.job))
