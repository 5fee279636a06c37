"""vtcli synth: the dataset of a paper's tasks, or demonstrations: of scripts that know the truth, or of a teacher."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from vtcli import judging
from vtcli.config.bounds import at_least
from vtcli.data import preview, sheet
from vtcli.data.generators import canvas
from vtcli.data.generators.item import Generate, Item
from vtcli.data.held_out import first_media, unseen
from vtcli.data.importers import hub
from vtcli.data.importers.problems import BadRow, BadRows, RowProblem, report_bad
from vtcli.data.importers.row_images import KeepImages
from vtcli.data.parallel import ordered_map
from vtcli.data.teachers.dialect import Calls
from vtcli.engines.openai.ledger import Ledger
from vtcli.engines.teachers import report
from vtcli.engines.teachers.card import (
    BoundTeacher,
    OpenTeacher,
    TeacherCard,
    TeacherInputs,
    WriteCall,
    read_teacher,
)
from vtcli.engines.teachers.demos import write_rows
from vtcli.engines.teachers.distil import Distillation, Distiller
from vtcli.engines.teachers.estimate import PROMPTS, estimate, prompt_lengths
from vtcli.envs.card import EnvCard, EnvInputs, read_card
from vtcli.envs.counts import counted
from vtcli.envs.demonstrate import IMPORTED, DemoEpisode, DemonstrationSetup
from vtcli.envs.imitate import NO_RUNNER
from vtcli.envs.parts import FORMS, Data, Demos, ParquetPart, demo_parts, inputs, keeping, sample_parts
from vtcli.envs.produce import Chunk, produce, sandbox_until_here, with_pixels
from vtcli.envs.prompts import read_prompt
from vtcli.errors import ConfigError, InputError
from vtcli.families.calls import format_call
from vtcli.families.family import Family
from vtcli.families.table import find_family, open_family
from vtcli.foreign import print_line, print_lines
from vtcli.progress import RowBars
from vtcli.protocols import Pixels
from vtcli.report import accounts
from vtcli.report.printing import print_all
from vtcli.rollout.loop import refuse_broken
from vtcli.rollout.threads import EventLoop
from vtcli.runs.run import RunSettings, Scope, StageRun, open_run
from vtcli.schema import Sample
from vtcli.session.agent import Agent
from vtcli.session.session import Session
from vtcli.store import disk, parquet, records, shards
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageStore, Sizing
from vtcli.store.models import source_model
from vtcli.store.records import Demo, Media, SampleSet

Row = tuple[Sample | Demo, Media]
RUNTIME_KEYS = ("synth.workers", "synth.merge")
"""Keys that do not change the artifact."""

TAUGHT_FROM = ("images", "prompt", "env", "families", "teacher", "signals", "judge", "judging")
"""Sections that demonstrations of a teacher depend on, beside ``synth.distil``."""

TAUGHT_RUNTIME = (
    *(f"synth.distil.{key}" for key in ("data", "concurrency", "dry_run", "expect", "max_broken", "max_unjudged")),
    *("synth.distil.limits.timeout_s", "engine", *judging.RUNTIME_KEYS),
    *(f"teacher.{key}" for key in ("url", "key_env", "cache", "patience", "device")),
)
"""The keys among them that do not change the artifact."""


@dataclass(frozen=True, slots=True)
class Config:
    """``workers`` 0 means one per core; ``shard`` "3/16" makes the third of sixteen parts of every file, as the
    artifact NAME-shard-3-of-16; ``merge`` puts all sixteen together."""

    job: dict[str, Any]
    data: Data
    agent: Agent  # what demonstrations are played and shown in, and who judges a teacher
    model: dict[str, Any]  # conf/model: its family decides how large a demonstration's images are shown
    tools: tuple[str, ...]  # that plain questions list
    seed: int = 0
    workers: int = 0  # processes; 0: one a core. The bytes do not depend on it
    forms: tuple[str, ...] = FORMS  # tool: tool-supervised questions; answer: plain ones
    shard: str | None = None  # "3/16": the third of sixteen parts, for job arrays
    merge: int | None = None  # 16: put that many shards together
    demos: Demos | None = None  # demonstrations instead of a dataset, see recipe/tiny_base.yaml
    sheet: int = 5  # samples per task on the contact sheet
    bad_rows: Literal["error", "skip"] = "error"  # imported rows that cannot be used
    keep_images: KeepImages = "png"  # how imported images are held: png, original (as they came), reference (by path)
    preview: int = 0  # write a page of so many rows of every file, and nothing else
    teacher: BoundTeacher | None = None  # conf/teacher: who plays the policy on the rows of synth.distil.data
    distil: Distillation = field(default_factory=Distillation)

    def __post_init__(self) -> None:
        at_least(0, self, "workers", "sheet", "preview")
        if self.shard and self.merge is not None:
            raise ConfigError(f"synth.shard={self.shard} and synth.merge={self.merge}: expected at most one of the two")
        card = read_card(self.agent.env)
        if self.teacher is not None:
            self._require_lesson()
            _ = self.distil.errors and card.spoken
        elif self.demos:
            _ = card.spoken  # or it is refused here

    def _require_lesson(self) -> None:
        """Raises ``ConfigError`` where a teacher has nothing to do, or more than it can."""
        if self.distil.data is None:
            raise ConfigError("teacher needs rows: give synth.distil.data=NAME@latest, a dataset artifact")
        if self.shard or self.merge or self.preview:
            raise ConfigError("a teacher works on whole datasets: leave out synth.shard, synth.merge and synth.preview")
        if self.distil.keep.right == "answer_correct" and "answer" not in self.agent.signals:
            raise ConfigError("a teacher needs the signal 'answer', which grades the answer: signals=all")


def run(config: Config) -> Artifact | None:
    """Makes the artifact; a run that was killed keeps the files that it had finished. A preview makes none."""
    if config.teacher is not None:
        return _distil(config, read_teacher(config.teacher))
    kind = "demos" if config.demos else "dataset"
    data, notes = counted(config.data, config.merge) if config.demos is None else (config.data, [])
    print_lines(f"note: {note}" for note in notes)
    config = replace(config, data=data)
    unsharded = RunSettings.of(config.job, kind)
    settings = replace(unsharded, name=shards.name_of(unsharded.name, config.shard)) if config.shard else unsharded
    keys = (
        ("data", "synth", "scale", "images", "prompt", "env", "families")
        if config.demos
        else ("data", "synth", "scale")
    )
    made_from = {key: config.job.get(key) for key in keys}
    made_from["synth"] = {key: value for key, value in (made_from["synth"] or {}).items() if key != "distil"}
    if config.demos:
        made_from["family"] = config.model.get("family")
    parts = _parts(config)
    if config.preview:
        with sandbox_until_here():
            _preview(config, parts, settings.home / f"preview-{settings.name}.html")
        return None
    store = ArtifactStore(settings.home)
    parents: list[Artifact] = []
    if config.merge is not None:
        fits = partial(shards.made_alike, kind=kind, made_from=made_from, seed=config.seed)
        of = f"this configuration and seed {config.seed}"
        newest = shards.newest(store, unsharded.name, config.merge, stage="synth", of=of, fits=fits)
        parents = [store.resolve(each.ref, kind) for each in newest]  # with its bytes verified
    files = {} if parents else inputs(parts)  # shards were made from them
    with open_run(settings, "synth", kind, made_from, parents, Scope(RUNTIME_KEYS, files, "anew")) as stage:
        if stage.reused:
            return stage.reused
        with sandbox_until_here():
            return _make(config, parts, parents, stage)


def _parts(config: Config) -> list[ParquetPart]:
    data = keeping(config.data, config.keep_images)
    if config.demos is None:
        return sample_parts(data, config.forms, config.seed, config.shard, config.tools)
    if not config.model.get("family"):
        raise ConfigError("model.family is not given: name the family that the demonstrations are for")
    sizing = find_family(str(config.model["family"]), config.agent.families).sizing(config.agent.images)
    wanted = config.demos
    card, prompt = read_card(config.agent.env), read_prompt(config.agent.prompt)
    setting = DemonstrationSetup(card, wanted.teacher, prompt, sizing, wanted.perceive_with_tools)
    sandbox = config.agent.sandbox if card.runner else None
    return demo_parts(data, wanted, setting, config.seed, config.shard, sandbox)


def _make(config: Config, parts: Sequence[ParquetPart], parents: Sequence[Artifact], stage: StageRun) -> Artifact:
    folder = stage.work / "artifact"
    writes: Any = records.write_demos if config.demos else records.write_samples
    write = partial(writes, as_they_came=config.keep_images != "png")
    held_out: dict[str, str] = {}
    dropped: dict[str, dict[str, str]] = {}
    with RowBars() as bars:
        for part in parts:
            path = folder / f"{part.name}.parquet"
            left_out = stage.work / f"{part.name}.dropped.json"  # written last: with it a part is finished
            known = path.exists() and left_out.exists()
            bars.begin(part.name, part.rows, part.rows if known else 0)
            if not known:
                bad = BadRows(part.name, config.bad_rows, stage.work / f"{part.name}.bad.jsonl")
                seen: dict[str, str] = {}
                # Sets of others say which turns are not to be imitated.
                column = {"unlearnt": True} if any(chunk.kind == IMPORTED for chunk in part.chunks) else {}
                # Closed after an error too: else the interpreter's end does it, when the pool has lost its pipes.
                with closing(_generated(part, config.workers or os.cpu_count() or 1, bad)) as made:
                    rows = bars.track(part.name, _merged(part, parents, bad) if parents else made)
                    write(path, rows if part.held_out else unseen(rows, held_out, seen), **column)
                bad.finish()
                disk.write_atomic(left_out, json.dumps(seen).encode())
            dropped[part.name] = json.loads(left_out.read_text())
            if part.held_out:
                held_out |= first_media(path)
    _report_dropped(parts, dropped, folder)
    reasons = report_bad(folder / "bad_rows.jsonl", [stage.work / f"{part.name}.bad.jsonl" for part in parts])
    parquet.write_card(folder)
    disk.write_atomic(folder / "contact_sheet.png", canvas.png(_contact_sheet(config, parts)))
    counts = {part.name: _counts(folder / f"{part.name}.parquet") for part in parts}
    if empty := [part.name for part in parts if part.rows and not counts[part.name]]:
        raise InputError(f"{', '.join(empty)}: no row is left, as all are bad or dropped. See above for the reasons.")
    stage.tracker.metrics({f"rows/{name}": float(sum(count.values())) for name, count in counts.items()}, 0)
    numbers = {name: len(rows) for name, rows in dropped.items()}
    summary: dict[str, Any] = {"rows": counts, "dropped_as_seen_in_a_held_out_split": numbers}
    return stage.commit(folder, summary | ({"bad_rows": reasons} if reasons else {}))


def _report_dropped(parts: Sequence[ParquetPart], dropped: Mapping[str, Mapping[str, str]], folder: Path) -> None:
    """Reports on standard error which rows of a training part were left out; ``dropped.json`` has them all,
    with the held-out row that shows the same. Raises ``InputError`` where nothing of a part is left."""
    for part in parts:
        pairs = [f"{row} (as {held})" for row, held in dropped[part.name].items()]
        if not pairs:
            continue
        message = (
            f"{part.name}: {len(pairs)} of {part.rows} rows dropped, as their image or video is in a held-out split: "
            f"{', '.join(pairs[:3])}{' …' if len(pairs) > 3 else ''}"
        )
        if len(pairs) == part.rows:
            raise InputError(
                f"{message}. Nothing is left to train on: take such rows out of test and validation, or give others."
            )
        print_line(f"vtcli: {message}; all are in dropped.json")
    if any(dropped.values()):
        disk.write_atomic(folder / "dropped.json", json.dumps(dropped, indent=1).encode())


def _generated(part: ParquetPart, workers: int, bad: BadRows) -> Generator[Row]:
    # A stream is read in order from its start, so several processes would each download it.
    streamed = any(hub.is_stream(str(getattr(chunk.generate, "keywords", {}).get("path"))) for chunk in part.chunks)
    with closing(ordered_map(produce, part.chunks, 1 if streamed else workers)) as chunks:
        for row in itertools.chain.from_iterable(chunks):
            if isinstance(row, BadRow):
                bad.add(row)
                continue
            made, pngs = row
            demo = isinstance(made, DemoEpisode)
            yield (Demo(made.id, made.messages, made.tools, (), made.unlearnt) if demo else made), pngs
    bad.check()


def _merged(part: ParquetPart, parents: Sequence[Artifact], bad: BadRows) -> Iterator[Row]:
    bad.take_over([parent.path / "bad_rows.jsonl" for parent in parents])
    groups = list(dict.fromkeys((chunk.task, chunk.kind) for chunk in part.chunks))
    return shards.rows([parent.path / f"{part.name}.parquet" for parent in parents], groups)


def _counts(path: Path) -> Mapping[str, int]:
    """Rows per task, or per task and kind: ids are <task>-<split>-<number> or <task>-demo-<split>-<number>-<kind>, and
    a task's name may hold a hyphen."""
    ids = pq.read_table(path, columns=["id"]).column("id").to_pylist()
    return dict(Counter(re.sub(r"-(demo-)?(train|validation|test)-\d{6,}(?=-\w+$|$)", "", i) for i in ids))


PREVIEWED_REASONS = 10
"""Kinds of bad rows that the terminal names; the page has them all."""


def _preview(config: Config, parts: Sequence[ParquetPart], path: Path) -> None:
    """Writes a page of the first rows of every task and file as they were understood, bad ones included."""
    cards: list[preview.PreviewCard] = []
    for part in parts:
        chunks: dict[tuple[str, str], list[Chunk]] = {}
        for chunk in part.chunks:
            chunks.setdefault((chunk.task, chunk.kind), []).append(chunk)
        for same in chunks.values():
            remaining = config.preview
            for chunk in same:
                cards += _previewed(with_pixels(chunk, chunk.items[:remaining]))
                remaining -= len(chunk.items[:remaining])
    disk.write_atomic(path, preview.page(f"{path.stem.removeprefix('preview-')}: rows as understood", cards).encode())
    bad = [card for card in cards if card.problem]
    for reason, count in Counter(card.reason for card in bad).most_common(PREVIEWED_REASONS):
        example = next(card.problem for card in bad if card.reason == reason)
        print_line(f"vtcli: {count} × {reason}, such as {example}")
    print_line(f"vtcli: {path}: {len(cards)} rows, {len(bad)} of them bad; nothing else was written")
    if bad and len(bad) == len(cards):
        raise InputError(f"all {len(cards)} rows are bad: {bad[0].problem} {path} shows them")


def _previewed(chunk: Chunk) -> Iterator[preview.PreviewCard]:
    if chunk.setting is not None:
        for row in produce(chunk):
            made = row if isinstance(row, BadRow) else row[0]
            if isinstance(made, DemoEpisode):
                yield preview.of_messages(made.id, made.messages, made.images)
            elif isinstance(made, BadRow):
                yield preview.of_bad(made)
        return
    for number in chunk.items:
        try:
            yield preview.of_item(chunk.generate(chunk.seed, number, chunk.split, form=chunk.kind))
        except RowProblem as problem:
            yield preview.of_bad(BadRow.of(problem))


def _contact_sheet(config: Config, parts: Sequence[ParquetPart]) -> Pixels:
    """The first items of every task; of demonstrations the first of every task and kind."""
    if config.demos:
        chunks = {(chunk.task, chunk.kind): chunk for part in parts for chunk in part.chunks}
        made = [row for c in chunks.values() for row in produce(with_pixels(c, c.items[: config.sheet // 2 + 1]))]
        episodes = [row[0] for row in made if not isinstance(row, BadRow)]
        strips = [sheet.episode(e.id, e.messages, e.images) for e in episodes if isinstance(e, DemoEpisode)]
        return sheet.sheet(sheet.packed(strips))
    rows = [
        list(_good(task.generate, config.seed, min(config.sheet, task.train or 0)))
        for task in config.data.tasks.values()
    ]
    return sheet.sheet([[sheet.cell(item) for item in row] for row in rows if row])


def _good(generate: Generate, seed: int, count: int) -> Iterator[Item]:
    for number in range(count):
        with suppress(RowProblem):
            yield generate(seed=seed, item=number, split="train")


# Demonstrations of a teacher


def _distil(config: Config, teacher: TeacherCard) -> Artifact | None:
    """Demonstrations that a teacher played on the rows of a dataset. A dry run prints the cost, and makes none.

    Raises:
        InputError: rows or a model that cannot be used, or nothing that is kept.
        EngineError: an endpoint that is gone, or too many broken tries.
    """
    config.distil.budget.require_prices(teacher.price, "synth.distil.budget", "teacher.price")
    settings = RunSettings.of(config.job, "demos")
    store = ArtifactStore(settings.home)
    data = store.resolve(config.distil.data or "", "dataset")
    source = source_model(store, teacher.weights) if teacher.weights else None
    family = open_family(source.path, config.agent.families) if source else None
    if config.distil.dry_run:
        _dry_run(config, teacher, data)
        return None
    made_from: dict[str, Any] = {key: config.job.get(key) for key in TAUGHT_FROM}
    made_from["synth"] = {"distil": (config.job.get("synth") or {}).get("distil")}
    made_from["family"] = config.model.get("family")
    parents = [data, *(source.parents if source else [])]
    scope = Scope(
        (*TAUGHT_RUNTIME, *(source.location_keys("teacher") if source else ())), source.files if source else {}
    )
    with open_run(settings, "synth", "demos", made_from, parents, scope) as stage:
        if stage.reused:
            print_all(accounts.distilled(json.loads((stage.reused.path / "distillation.json").read_text())))
            return stage.reused
        images = ImageStore(stage.work / "images", _sizing(config, family))
        samples = _lessons(config, data, images)
        session = Session(config.agent, "synth", images, settings.home, family=family)
        ledger = Ledger(teacher.price, config.distil.budget)
        distiller = Distiller(
            config.distil,
            config.seed,
            images,
            session.worlds,
            session.measure,
            session.claims,
            ledger,
            stage.work / "attempts.jsonl",
        )
        inputs = TeacherInputs(
            images,
            settings.home,
            config.distil.limits,
            ledger,
            _writer(session.worlds.card),
            config.agent.engine,
            config.agent.images,
            family,
        )
        samples = [session.worlds.offer(sample) for sample in samples]
        with EventLoop() as loop:
            loop.run(_play(distiller, session, samples, partial(teacher.open, inputs)))
        return _taught(config, source.name if source else teacher.name, data, distiller, samples, stage)


async def _play(
    distiller: Distiller,
    session: Session,
    samples: Sequence[Sample],
    open_teacher: Callable[[], Awaitable[OpenTeacher]],
) -> None:
    """Plays the rows; sandbox and judge are started with the teacher, if anything is left to be asked."""

    async def opened() -> OpenTeacher:
        await session.start()
        return await open_teacher()

    async with session:
        await distiller.play(samples, opened)


def _sizing(config: Config, family: Family | None) -> Sizing:
    """The resize that the demonstrations are shown with: that of the family which learns from them.

    Raises:
        ConfigError: a teacher of another family, to which coordinates would mean something else.
    """
    if not config.model.get("family"):
        raise ConfigError("model.family is not given: name the family that the demonstrations are for")
    learner = find_family(str(config.model["family"]), config.agent.families)
    if family is not None and not isinstance(family, learner):
        raise ConfigError(
            f"the teacher is a {family.name}, and the demonstrations are for model.family={config.model['family']}, "
            "which sees images in other sizes. Choose a teacher of that family, or serve it and give teacher=endpoint."
        )
    return learner.sizing(config.agent.images)


def _lessons(config: Config, data: Artifact, images: ImageStore) -> list[Sample]:
    samples = SampleSet(data, "answer", config.distil.split, images, config.bad_rows)
    print_lines(f"skipped: {line}" for line in samples.bad)
    count = min(len(samples), config.distil.rows or len(samples))
    if not count:
        raise InputError(f"{data.ref} has no row of answer-{config.distil.split}. Choose another synth.distil.split.")
    return [samples.load(index) for index in range(count)]


def _writer(card: EnvCard) -> WriteCall:
    """Writes a call in the environment's syntax, where it has one for native tools."""
    return card.dialect.write if isinstance(card.dialect, Calls) else format_call


def _dry_run(config: Config, teacher: TeacherCard, data: Artifact) -> None:
    """Prints the cost, from the length of some prompts. Nothing is asked, and no sandbox is started."""
    card, prompt = read_card(config.agent.env), read_prompt(config.agent.prompt)
    with tempfile.TemporaryDirectory() as folder:
        images = ImageStore(folder, _sizing(config, None))
        samples = SampleSet(data, "answer", config.distil.split, images, config.bad_rows)
        count = min(len(samples), config.distil.rows or len(samples))
        shown = [card.offer(samples.load(index)) for index in range(0, count, max(1, -(-count // PROMPTS)))]
        lengths = asyncio.run(prompt_lengths(shown, card, EnvInputs(images, prompt, NO_RUNNER)))
    if not lengths:
        raise InputError(f"{data.ref} has no row of answer-{config.distil.split}. Choose another synth.distil.split.")
    cost = estimate(config.distil, count, lengths)
    print_all(accounts.cost(cost, teacher.name, teacher.price, config.distil))


def _taught(
    config: Config, name: str, data: Artifact, distiller: Distiller, samples: Sequence[Sample], stage: StageRun
) -> Artifact:
    """Writes the artifact's files from the finished tries, commits them, and prints the tables."""
    settings = config.distil
    where = f"synth ({data.ref})"
    refuse_broken(
        distiller.broken.total() / max(distiller.tries, 1),
        settings.max_broken,
        distiller.examples,
        where,
        "synth.distil.max_broken",
    )
    unjudged = distiller.unjudged / distiller.judged if distiller.judged else None
    distiller.measure.check(unjudged, settings.max_unjudged, "synth.distil")
    outcomes = distiller.outcomes(samples)
    summary = report.account({"data": data.ref, "teacher": name}, outcomes, distiller)
    print_all(accounts.distilled(summary))
    if not summary["kept"]:
        raise InputError(
            f"no row of {data.ref} became a demonstration: see the counts above, and {distiller.path} for the "
            "teacher's turns. Loosen synth.distil.keep, raise synth.distil.tries, or choose another teacher."
        )
    folder = stage.work / "artifact"
    shutil.rmtree(folder, ignore_errors=True)
    counts = write_rows(folder, outcomes, distiller, _sizing(config, None), config.sheet)
    report.write(folder, summary, outcomes, distiller)
    parquet.write_card(folder)
    stage.tracker.metrics(
        {"kept": float(summary["kept"]), "money": summary["money"], "tries": float(summary["tries"])}, 0
    )
    kept = {key: summary[key] for key in ("types", "dropped_rows", "tries", "usage", "money", "teacher")}
    return stage.commit(folder, {"rows": counts} | kept)
