"""``vtcli sft``: imitates demonstrations; without a model to start from it builds one from its architecture."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vtcli.algo.curriculum import batch_indices
from vtcli.algo.optim import Backend, Optim
from vtcli.config.binding import convert
from vtcli.config.bounds import above, at_least, shares
from vtcli.envs.card import BoundCard, EnvCard, EnvInputs, read_card
from vtcli.envs.played import Playback, playback
from vtcli.envs.prompts import read_prompt
from vtcli.errors import ConfigError, EngineError, InputError
from vtcli.families.family import Family
from vtcli.families.messages import DemoRows
from vtcli.families.table import find_family, open_family
from vtcli.foreign import print_line
from vtcli.protocols import Ranks
from vtcli.runs.environment import recorded
from vtcli.runs.progress import StepBar, log_step
from vtcli.runs.run import MEMORY_KEYS, RunSettings, Scope, StageRun, first_rank, open_run, wait_for_commit
from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.schema import TrainRow
from vtcli.store import disk
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.checkpoints import Checkpoints, checkpoint_interval, require
from vtcli.store.image_work import submit
from vtcli.store.images import ImageLimits, ImageStore
from vtcli.store.models import source_model
from vtcli.store.records import Demo, DemoSet


@dataclass(frozen=True)
class First:
    """Rows of one kind that are learned alone before all rows are mixed, because a model that starts from nothing does
    not learn to see among calls and guesses (docs/results.md)."""

    kind: str = "perceive"  # the end of a row's id
    epochs: float = 0.0  # over the rows of this kind
    rows_per_step: int = 32

    def __post_init__(self) -> None:
        at_least(0, self, "epochs")
        at_least(1, self, "rows_per_step")


@dataclass(frozen=True, kw_only=True)
class Config:
    """``model`` null builds ``architecture`` from scratch, with a tokenizer trained on the demonstrations."""

    data: str  # demos artifact
    model: str | None  # model artifact, folder, or hub name
    optim: Optim = field(default_factory=lambda: Optim(lr=1e-5, schedule="cosine", warmup_steps=50, beta2=0.95))
    epochs: float = 3.0
    rows_per_step: int = 128
    rows: int | None = None  # drawn by the seed; a smaller draw is part of a larger one. None: all
    first: First = field(default_factory=First)  # rows that come alone before all are mixed
    checkpoint_every: int | str = 200  # steps, or a time: 30min, 2h
    checkpoint_beside: bool = True  # written during training, from a copy in host memory
    checkpoint_keep: int = 2  # number of newest checkpoints that stay
    checkpoint_best: str | None = None  # a metric: its best checkpoint stays too, and is exported as best/
    checkpoint_best_mode: Literal["max", "min"] = "max"  # whether the most (reward) or the least (loss) is best
    backend: Backend = field(default_factory=Backend)
    family: str | None = None  # of the model to build: its model_type
    architecture: dict[str, Any] | None = None  # its sizes, as the family defines them
    families: dict[str, str] = field(default_factory=dict[str, str])  # from outside: model_type to class
    images: ImageLimits = field(default_factory=ImageLimits)
    env: BoundCard | None = None  # conf/env: demonstrations are played there before training
    prompt: dict[str, Any] = field(default_factory=dict[str, Any])
    sandbox: PoolConfig = field(default_factory=PoolConfig)  # where their code runs
    play_rows: int = 64  # so many demonstrations are played in the environment first, to see that their calls work
    play_timeout_s: float = 120  # for all of their code; the rest is counted as late
    max_failed: float = 0.05  # share of calls that fail although the demonstration shows a success; more end the run
    max_tokens: int | None = None  # of a row, images included; null: any length
    too_long: Literal["skip", "error"] = "skip"  # leave out rows beyond max_tokens, or end the run at its start
    seed: int = 0
    job: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.model is None and self.architecture is None:
            raise ConfigError("sft.model is null and there is no model.architecture to build: give one of them")
        if self.architecture is not None:
            self.built()
        at_least(1, self, "rows_per_step", "checkpoint_keep", "rows", "max_tokens")
        at_least(0, self, "play_rows")
        shares(self, "max_failed")
        checkpoint_interval(self.checkpoint_every, self.checkpoint_best, self.checkpoint_best_mode)
        above(0, self, "epochs", "play_timeout_s")

    def built(self) -> tuple[type[Family], Any]:
        """Returns the family and the sizes of the model to build, checked before any library is loaded.

        Raises:
            ConfigError: an unknown family, or sizes that it does not have.
        """
        if self.family is None:
            raise ConfigError("model.family is not given: name the family of the model.architecture to build")
        kind = find_family(self.family, self.families)
        return kind, convert(self.architecture or {}, kind.Architecture, "sft.architecture")


NAME = "base"  # of the artifact, without name=
# These do not change what the model learns.
RUNTIME_KEYS = (
    "sft.data",
    "sft.checkpoint_keep",
    "sft.checkpoint_beside",
    "sft.play_rows",
    "sft.play_timeout_s",
    "sft.max_failed",
    *(f"sft.backend.{key}" for key in MEMORY_KEYS),
)


def run(config: Config) -> Artifact:
    """Trains and returns the model artifact: a Hugging Face folder with ``metrics.jsonl``.

    Raises:
        InputError: unusable demonstrations or an unusable model.
    """
    settings = RunSettings.of(config.job, NAME)
    store = ArtifactStore(settings.home)
    data = store.resolve(config.data, "demos", verify=first_rank())
    parents = [data]
    source = source_model(store, config.model, verify=first_rank()) if config.model else None
    if source is not None:
        parents += source.parents
    # Settings of RL or of generators do not count, so that a change there finds the finished model again.
    made_from = {key: config.job.get(key) for key in ("sft", "model", "images", "scale", "families")}
    free = (*RUNTIME_KEYS, *(source.location_keys("sft") if source else ()))
    free += () if config.checkpoint_best else ("sft.checkpoint_every",)  # the best is chosen among saved checkpoints
    files = source.files if source else {}
    with open_run(settings, "sft", "model", made_from, parents, Scope(free, files)) as stage:
        if stage.reused:
            return stage.reused
        family = open_family(source.path, config.families) if source is not None else None
        sizing = (family or config.built()[0]).sizing(config.images)
        images = ImageStore(stage.work / "images", sizing, cache_mb=2000)
        ranks = _ranks()
        train, held = (DemoSet(data, split, images, "when_read", ranks) for split in ("train", "validation"))
        _require_playable(config, train, images, ranks)
        family = family or open_family(_build(config, stage, train), config.families)
        return _train(config, stage, family, train, held, images)


def _require_playable(config: Config, demos: DemoSet, images: ImageStore, ranks: Ranks) -> None:
    """Plays calls of some demonstrations in the environment and reports the share that does what it shows, because a
    model would otherwise learn calls that fail. Reports why, if this machine has no sandbox for code.

    Raises:
        InputError: more than ``max_failed`` of the calls fail where their demonstration shows a success.
    """
    card = read_card(config.env) if config.env is not None and config.play_rows else None
    if card is None:
        return
    own: Playback | None = None
    if ranks.rank == 0:  # the others wait in gather
        count = min(config.play_rows, len(demos))
        chosen = sorted(np.random.default_rng(config.seed).permutation(len(demos))[:count].tolist())
        try:
            own = asyncio.run(_play(config, card, (demos.load(index) for index in chosen), images))
        except (ConfigError, EngineError) as error:
            # Native tools run in this process: their error is a real one and not a lack of this machine.
            if not card.runner:
                raise
            print_line(f"sft: the code of the demonstrations is not played in the environment {card.name}: {error}")
    playback: Playback | None = ranks.gather(own)[0]
    if playback is None:
        return
    ok = playback.calls - len(playback.failures)
    unplayed = (
        [f"{playback.late} more are not, within sft.play_timeout_s={config.play_timeout_s:g}"] if playback.late else []
    )
    unplayed += [f"the sandbox lost {playback.lost} more"] if playback.lost else []
    but = f" ({', '.join(unplayed)})" if unplayed else ""
    account = (
        f"{playback.rows} of {len(demos)} demonstrations played in the environment {card.name}{but}: {ok} of "
        f"{playback.calls} calls do what they show"
    )
    shown = "".join(f"\n  {line}" for line in playback.failures[:3])
    if playback.failed > config.max_failed:
        raise InputError(
            f"{config.data}: {account}, and the others fail:{shown}\nMake the demonstrations with the recipe and scale "
            "of this training, whose views their coordinates refer to, or choose their environment (env=NAME); "
            f"sft.max_failed={config.max_failed:g} is the bound."
        )
    if ranks.rank == 0 and (playback.calls or unplayed):
        meant = f", {playback.meant} of them failures that are meant" if playback.meant else ""
        print_line(f"sft: {account}{meant}{'; these fail:' + shown if playback.failures else ''}")


async def _play(config: Config, card: EnvCard, demos: Iterable[Demo], images: ImageStore) -> Playback:
    """Plays demonstrations, those with code in a separate sandbox.

    Raises:
        ConfigError: this machine has no sandbox, or the environment cannot open the demonstrations.
        EngineError: the sandbox does not start.
    """
    inputs = EnvInputs(images, read_prompt(config.prompt))
    if not card.runner:
        return await playback(demos, card, inputs)
    active = config.sandbox.active
    async with await Pool.start(replace(config.sandbox, live=active)) as pool:
        inputs = replace(inputs, runner=pool)
        return await playback(demos, card, inputs, at_once=active, timeout_s=config.play_timeout_s)


def _ranks() -> Ranks:
    from vtcli.engines.learner.distributed import ranks

    return ranks("the check of the rows")


def _build(config: Config, stage: StageRun, demos: DemoSet) -> Path:
    """Builds a fresh model in the work folder, in the first rank; the folder is complete or absent."""
    from vtcli.engines.learner.distributed import barrier, init_distributed

    folder = stage.work / "init"
    rank, _ = init_distributed()
    if rank == 0 and not folder.is_dir():
        kind, sizes = config.built()
        draft = stage.work / "init.draft"
        shutil.rmtree(draft, ignore_errors=True)
        used = min(len(demos), 4000)  # for the tokenizer, spread evenly because rows are sorted by task
        with disk.checked(draft):
            kind.build(draft, sizes, (demos.messages(i * len(demos) // used) for i in range(used)), config.seed)
            draft.rename(folder)
    barrier()
    return folder


def _train(
    config: Config, stage: StageRun, family: Family, learnt: DemoSet, held_out: DemoSet, images: ImageStore
) -> Artifact:
    """Runs every training step. Rows of ``held_out`` are only measured."""
    from vtcli.engines.hf import load_model
    from vtcli.engines.learner.deepspeed import DeepSpeedLearner
    from vtcli.engines.learner.distributed import barrier, rank_alive
    from vtcli.engines.learner.saving import Saver, export_complete

    train, too_long = _within(config, DemoRows(learnt, family.chat), "train", _ranks())
    held, _ = _within(config, DemoRows(held_out, family.chat), "validation", _ranks())
    schedule = Schedule.of(train.ids, config)
    steps = schedule.steps
    model = load_model(family, config.backend.dtype)
    learner = DeepSpeedLearner(
        model, family, images.view, optim=config.optim, backend=config.backend, total_steps=steps
    )
    log = stage.work / "metrics.jsonl"
    checkpoints = Checkpoints(stage.work / "checkpoints", [log], config.checkpoint_keep, config.checkpoint_best_mode)
    done = 0
    barrier()  # the first rank makes the work folder
    if (checkpoint := checkpoints.resume() if learner.rank == 0 else checkpoints.latest()) is not None:
        done = checkpoint[0]  # only the first rank writes logs, and it has cut them back to this step
        learner.load_checkpoint(checkpoint[1])
    own = slice(learner.rank, None, learner.world)  # this rank's part of any list

    def begin(step: int) -> list[Future[TrainRow]]:
        """Reads and encodes this rank's rows of a step, in threads."""
        return [submit(partial(train.__getitem__, i)) for i in schedule.batch(step)[own]] if step < steps else []

    coming = begin(done)  # one step ahead: threads decode images while the model learns from the step before
    every = checkpoint_interval(config.checkpoint_every, config.checkpoint_best, config.checkpoint_best_mode)
    saver = Saver(learner, checkpoints, every, beside=config.checkpoint_beside)
    known = len(held) > 0 and config.checkpoint_best == "validation_nll"  # not in every step's metrics
    with StepBar("sft", steps, done, quiet=learner.rank != 0, work=stage.work) as bar:
        for step in range(done, steps):
            here, coming = [row.result() for row in coming], begin(step + 1)
            metrics = learner.update([here])  # the learner shares rows out by computed tokens
            last, due = step + 1 == steps, saver.due(step + 1)
            if len(held) and (last or (due and config.checkpoint_best == "validation_nll")):
                metrics["validation_nll"] = learner.evaluate([held[i] for i in range(len(held))[own]])
            if learner.rank == 0:
                log_step(stage.tracker, log, metrics, step, "sft")
            # Checked in the first step, because a misspelled metric would otherwise end the run at its first
            # checkpoint.
            known = known or require(metrics, config.checkpoint_best)
            if (due and not last) or (last and config.checkpoint_best):
                saver.save(step + 1, metrics.get(config.checkpoint_best or ""))
            saver.check()
            bar.advance(f"loss {metrics['loss']:.3f}")
    saver.finish()
    folder = stage.work / "model"
    export_complete(learner, family.folder, folder)
    if (best := checkpoints.best()) is not None:
        learner.load_checkpoint(best)
        export_complete(learner, family.folder, folder / "best")
    # Every rank returns the same artifact, and only the first may commit it.
    if learner.rank != 0:
        return wait_for_commit(stage, RunSettings.of(config.job, NAME).name, rank_alive(0, "the artifact"))
    with disk.checked(folder, "copy the log to"):
        shutil.copyfile(log, folder / "metrics.jsonl")
    counts = {"steps": steps, "rows": schedule.rows, "phase": "sft"} | too_long
    demos = stage.store.resolve(config.data, "demos", verify=False)
    return stage.commit(folder, counts | recorded(config.job, demos))


def _within(config: Config, rows: DemoRows, split: str, ranks: Ranks) -> tuple[DemoRows, dict[str, int]]:
    """Returns the rows of at most ``max_tokens``, the same in all ranks and attempts, and the number of the others.

    Raises:
        InputError: turns in a wrong order, longer rows with ``too_long=error``, no row that is short enough, or a row
            that fits no micro-batch.
    """
    rows.check()
    most, budget = config.max_tokens, config.backend.batch_tokens
    # Training rows are measured only for max_tokens, because that takes as long as encoding an epoch; a row beyond the
    # budget then ends its step on all ranks. Held-out rows come at the last step, which is too late for such an error.
    if not len(rows) or (most is None and split == "train"):
        return rows, {}
    lengths = rows.lengths(ranks)
    fitting = [(length, name) for length, name in zip(lengths, rows.ids, strict=True) if most is None or length <= most]
    longest, name = max(fitting, default=(0, ""))
    if longest > budget:
        raise InputError(
            f"row {name} of {config.data} ({split}) has {longest} tokens, more than sft.backend.batch_tokens={budget}. "
            f"Raise it, or leave such rows out: sft.max_tokens={budget}."
        )
    if most is None:
        return rows, {}
    kept = [index for index, length in enumerate(lengths) if length <= most]
    gone = sorted((index for index, length in enumerate(lengths) if length > most), key=lambda i: -lengths[i])
    if gone:
        first = ", ".join(f"{rows.ids[index]} ({lengths[index]})" for index in gone[:3])
        message = (
            f"{len(gone)} of {len(rows)} rows of {config.data} ({split}) have more than {most} tokens, most {first}"
        )
        if config.too_long == "error":
            raise InputError(f"{message}. Raise sft.max_tokens, or set sft.too_long=skip to leave them out.")
        if not kept and split == "train":
            raise InputError(
                f"{message}: none is left. Raise sft.max_tokens, or shrink the images (images.max_pixels)."
            )
        if ranks.rank == 0:
            print_line(f"left out: {message}")
    return rows.only(kept), {"too_long": len(gone)}


@dataclass(frozen=True)
class Schedule:
    """Chooses the rows of each step, by their places in the data. The choice is a pure function of the step, so that a
    resumed run continues with the same rows."""

    used: Sequence[int]  # all places, or those that ``rows`` draws
    alone: Sequence[int]  # places of the kind that comes first
    alone_steps: int
    config: Config

    @classmethod
    def of(cls, ids: Sequence[str], config: Config) -> Schedule:
        """Makes a schedule. Raises ``ConfigError`` for more rows than exist, or a first kind that no row has."""
        first, used = config.first, range(len(ids))
        if config.rows is not None:
            if config.rows > len(ids):
                raise ConfigError(f"sft.rows={config.rows}: {config.data} has {len(ids)} rows; null takes all")
            # A prefix of one permutation, so that a run with fewer rows learns from a subset of a run with more.
            used = sorted(np.random.default_rng(config.seed).permutation(len(ids))[: config.rows].tolist())
        alone = [i for i in used if ids[i].endswith(f"-{first.kind}")] if first.epochs else []
        if first.epochs and not alone:
            raise ConfigError(f"sft.first.kind={first.kind!r}: no row's id in {config.data} ends with -{first.kind}")
        if config.rows_per_step > len(used) and first_rank():
            print_line(
                f"sft: sft.rows_per_step={config.rows_per_step} exceeds the {len(used)} rows: each step repeats rows. "
                f"Lower it to {len(used)} at most"
            )
        steps = max(1, round(first.epochs * len(alone) / first.rows_per_step)) if alone else 0
        return cls(used, alone, steps, config)

    @property
    def rows(self) -> int:
        """Number of rows to learn from."""
        return len(self.used)

    @property
    def steps(self) -> int:
        return self.alone_steps + max(1, round(self.config.epochs * self.rows / self.config.rows_per_step))

    def batch(self, step: int) -> list[int]:
        rows: Sequence[int]
        if step < self.alone_steps:
            rows, size = self.alone, self.config.first.rows_per_step
        else:
            rows, size, step = self.used, self.config.rows_per_step, step - self.alone_steps
        return [rows[i] for i in batch_indices(len(rows), size, step, self.config.seed)]
