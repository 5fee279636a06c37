"""vtcli synth: the dataset of a paper's tasks, or (with ``synth.demos``) demonstrations, generated with exact truth."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vtcli import disk, records
from vtcli.artifacts import Artifact
from vtcli.data import canvas, sheet
from vtcli.data.demos import Teacher
from vtcli.data.item import Generate
from vtcli.data.parallel import ordered_map
from vtcli.envs.demonstrate import KINDS, Episode, Setting
from vtcli.envs.produce import Chunk, produce
from vtcli.envs.prompts import read_prompt
from vtcli.errors import ConfigError
from vtcli.protocols import Pixels
from vtcli.records import Demo
from vtcli.stagerun import RunSettings, StageRun, open_run

CHUNK = 32
HELD_OUT_FIRST = ("test", "validation", "train")
FORMS = ("tool", "answer")
RUNTIME = ("synth.workers",)


@dataclass(frozen=True, slots=True)
class Task:
    """A generator with its sizes, and how many items each split has."""

    generate: Generate
    train: int = 0
    validation: int = 0
    test: int = 0


@dataclass(frozen=True, slots=True)
class Data:
    """One file of conf/data."""

    tasks: dict[str, Task]


@dataclass(frozen=True, slots=True)
class Images:
    """The resize that demonstrations are shown with; coordinates refer to it."""

    min_pixels: int
    max_pixels: int


@dataclass(frozen=True, slots=True)
class Demos:
    """Rows of a demonstrations artifact: ``rows[task][kind]``, kinds are tool, answer and perceive."""

    rows: dict[str, dict[str, int]]
    validation: float = 0.05  # size of the validation file, as a share of the rows
    teacher: Teacher = field(default_factory=Teacher)
    perceive_with_tools: bool = False


@dataclass(frozen=True, slots=True)
class SynthConfig:
    """``workers`` 0 means one per core; ``shard`` "3/16" makes the third of sixteen parts of every file."""

    job: dict[str, Any]
    data: Data
    images: Images
    prompt: dict[str, Any]
    seed: int = 0
    workers: int = 0
    forms: tuple[str, ...] = FORMS
    shard: str | None = None
    demos: Demos | None = None
    sheet: int = 5  # samples per task on the contact sheet


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file."""

    name: str
    split: str
    chunks: tuple[Chunk, ...]

    @property
    def rows(self) -> int:
        return sum(len(chunk.items) for chunk in self.chunks)


def run(config: SynthConfig) -> Artifact:
    """Makes the artifact; a run that was killed keeps the files that it had finished."""
    kind = "demos" if config.demos else "dataset"
    settings = RunSettings.of(config.job, kind)
    keys = ("data", "synth", "scale", "images", "prompt") if config.demos else ("data", "synth", "scale")
    made_from = {key: config.job.get(key) for key in keys}
    parts = demo_parts(config, config.demos) if config.demos else sample_parts(config)
    with open_run(settings, "synth", kind, made_from, [], runtime_keys=RUNTIME) as stage:
        if stage.reused:
            return stage.reused
        return _make(config, parts, stage)


def _make(config: SynthConfig, parts: Sequence[Part], stage: StageRun) -> Artifact:
    folder = stage.work / "artifact"
    workers = config.workers or os.cpu_count() or 1
    held_out: set[str] = set()
    dropped: dict[str, int] = {}
    columns = (TextColumn("{task.description:>18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    with bar:
        for part in parts:
            path = folder / f"{part.name}.parquet"
            seen = bar.add_task(part.name, total=part.rows)
            if not path.exists():
                rows = bar.track(_rows(part, workers), total=part.rows, task_id=seen)
                write = records.write_demos if config.demos else records.write_samples
                write(path, _unseen(rows, held_out if part.split.endswith("train") else set()))
            bar.update(seen, completed=part.rows)
            dropped[part.name] = part.rows - pq.read_metadata(path).num_rows
            if not part.split.endswith("train"):
                held_out |= _digests(path)
    disk.write_atomic(folder / "contact_sheet.png", canvas.png(_contact_sheet(config, parts)))
    rows = {part.name: _counts(folder / f"{part.name}.parquet") for part in parts}
    stage.tracker.metrics({f"rows/{name}": float(sum(count.values())) for name, count in rows.items()}, 0)
    return stage.commit(folder, {"rows": rows, "dropped as seen in a held-out split": dropped})


# ---------------------------------------------------------------- what goes into which file


def sample_parts(config: SynthConfig) -> list[Part]:
    """Held-out splits first: a training image that equals one of theirs is dropped."""
    unknown = set(config.forms) - set(FORMS)
    if unknown or not config.forms:
        raise ConfigError(f"synth.forms: expected some of {', '.join(FORMS)}, got {list(config.forms)}")
    parts: list[Part] = []
    for split in HELD_OUT_FIRST:
        for form in config.forms:
            chunks = [
                Chunk(task.generate, name, split, form, items, config.seed)
                for name, task in config.data.tasks.items()
                for items in _pieces(_shard(getattr(task, split), config.shard))
            ]
            parts.append(Part(f"{form}-{split}", split, tuple(chunks)))
    return parts


def demo_parts(config: SynthConfig, wanted: Demos) -> list[Part]:
    """``validation.parquet`` and ``train.parquet``; every row has an item of its own."""
    prompt = read_prompt(config.prompt)
    least, most = config.images.min_pixels, config.images.max_pixels
    setting = Setting(wanted.teacher, prompt, least, most, wanted.perceive_with_tools)
    parts: list[Part] = []
    for name, share in (("validation", wanted.validation), ("train", 1.0)):
        chunks: list[Chunk] = []
        for task, kinds in wanted.rows.items():
            if task not in config.data.tasks or set(kinds) - set(KINDS):
                raise ConfigError(
                    f"synth.demos.rows: {task}: {kinds} is not possible; expected tasks of the data configuration "
                    f"({', '.join(config.data.tasks)}) with rows for {', '.join(KINDS)}"
                )
            start = 0
            for kind, count in kinds.items():
                mine = _shard(round(count * share), config.shard)
                for items in _pieces(range(start + mine.start, start + mine.stop)):
                    generate = config.data.tasks[task].generate
                    chunks.append(Chunk(generate, task, f"demo-{name}", kind, items, config.seed, setting))
                start += round(count * share)
        parts.append(Part(name, f"demo-{name}", tuple(chunks)))
    return parts


def _shard(count: int, shard: str | None) -> range:
    """The items of one shard: all of them, or for "3/16" the third of sixteen equal parts."""
    number, _, total = (shard or "1/1").partition("/")
    if not (number.isdigit() and total.isdigit() and 1 <= int(number) <= int(total)):
        raise ConfigError(f"synth.shard: expected a text such as 3/16 (the third of sixteen), got {shard!r}")
    return range(count * (int(number) - 1) // int(total), count * int(number) // int(total))


def _pieces(items: range) -> Iterator[range]:
    for start in range(items.start, items.stop, CHUNK):
        yield range(start, min(start + CHUNK, items.stop))


# ---------------------------------------------------------------- rows


def _rows(part: Part, workers: int) -> Iterator[tuple[Any, list[bytes]]]:
    for rows in ordered_map(produce, part.chunks, workers):
        for made, pngs in rows:
            yield (Demo(made.id, made.messages, made.tools) if isinstance(made, Episode) else made), pngs


def _unseen(rows: Iterable[tuple[Any, list[bytes]]], held_out: set[str]) -> Iterator[tuple[Any, list[bytes]]]:
    return (row for row in rows if hashlib.sha256(row[1][0]).hexdigest() not in held_out)


def _digests(path: Path) -> set[str]:
    """sha256 of the first image of every row: equal pixels have equal PNG bytes."""
    table = pq.read_table(path, columns=["images"])
    return {hashlib.sha256(row[0]["bytes"]).hexdigest() for row in table.column("images").to_pylist()}


def _counts(path: Path) -> Mapping[str, int]:
    """Rows per task, or per task and kind: ids are <task>-<split>-<number> or <task>-demo-<split>-<number>-<kind>."""
    ids = pq.read_table(path, columns=["id"]).column("id").to_pylist()
    return dict(Counter("-".join([i.split("-")[0], *i.split("-")[4:]]) for i in ids))


def _contact_sheet(config: SynthConfig, parts: Sequence[Part]) -> Pixels:
    """The first items of every task; of demonstrations the first of every task and kind, a row each."""
    if config.demos:
        chunks = {(chunk.task, chunk.kind): chunk for part in parts for chunk in part.chunks}
        made = [row for c in chunks.values() for row, _ in produce(replace(c, items=c.items[: config.sheet // 2 + 1]))]
        return sheet.sheet([sheet.episode(e.id, e.messages, e.images) for e in made if isinstance(e, Episode)])
    tasks = config.data.tasks.values()
    rows = [[task.generate(seed=config.seed, item=i, split="train") for i in range(config.sheet)] for task in tasks]
    return sheet.sheet([[sheet.cell(item) for item in row] for row in rows])
