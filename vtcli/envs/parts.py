"""Assignment of generators' items to the Parquet files of a synthetic artifact."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from vtcli.config.bounds import among, at_least, shares, within
from vtcli.data.generators.item import Generate
from vtcli.data.importers.hub_files import HubSet
from vtcli.data.importers.row_images import KeepImages
from vtcli.data.inputs import files, survey
from vtcli.data.teachers.scripted import Teacher
from vtcli.envs.demonstrate import IMPORTED, KINDS, DemonstrationSetup
from vtcli.envs.produce import Chunk
from vtcli.errors import ConfigError
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.store import shards
from vtcli.store.hashes import FileGroup

CHUNK = 32
"""Items that one process makes at a time."""

FORMS = ("tool", "answer")
HELD_OUT_FIRST = ("test", "validation", "train")


@dataclass(frozen=True, slots=True)
class Task:
    """A generator with its sizes, how many items each split has, and the forms in which they are asked."""

    generate: Generate
    train: int | None = 0  # None: all rows of a generator that has an end
    validation: int | None = 0
    test: int | None = 0
    forms: tuple[str, ...] = FORMS

    def __post_init__(self) -> None:
        at_least(0, self, *HELD_OUT_FIRST)
        among(FORMS, self, "forms")


@dataclass(frozen=True, slots=True)
class Data:
    """One file of conf/data. ``hub`` has the public sets that tasks import, by task: `vtcli benchmarks get` fetches
    them."""

    tasks: dict[str, Task]
    hub: dict[str, HubSet] = field(default_factory=dict[str, HubSet])

    def __post_init__(self) -> None:
        named: dict[tuple[str, str], str] = {}
        for key, task in self.tasks.items():
            name = getattr(task.generate, "keywords", {}).get("name")  # of rows of others; ids are made of it
            for split in HELD_OUT_FIRST if name is not None else ():
                if getattr(task, split) != 0 and (other := named.setdefault((str(name), split), key)) != key:
                    raise ConfigError(
                        f"data.tasks.{key}.generate.name={name} is also the name of data.tasks.{other}, and ids are "
                        "made of it. Give each task another name"
                    )


@dataclass(frozen=True, slots=True)
class Demos:
    """Rows of a demonstrations artifact: ``rows[task][kind]``, kinds are tool, answer, perceive and imported."""

    rows: dict[str, dict[str, int | None]]  # None: all imported rows
    validation: float = 0.05  # size of the validation file, as a share of the rows
    teacher: Teacher = field(default_factory=Teacher)
    perceive_with_tools: bool = False

    def __post_init__(self) -> None:
        shares(self, "validation")
        within(self.teacher.skill, "teacher.skill", 0, 1)
        for task, kinds in self.rows.items():
            for kind, count in kinds.items():
                if count is None and kind != IMPORTED:
                    raise ConfigError(f"synth.demos.rows.{task}.{kind}: null means all imported rows. Give a number.")
                within(count or 0, f"rows.{task}.{kind}", 0)


@dataclass(frozen=True, slots=True)
class ParquetPart:
    """One Parquet file. The items of a task follow each other, the tasks are in the configuration's order."""

    name: str
    split: str
    chunks: tuple[Chunk, ...]

    @property
    def rows(self) -> int:
        return sum(len(chunk.items) for chunk in self.chunks)

    @property
    def held_out(self) -> bool:
        return not self.split.endswith("train")


def keeping(data: Data, keep: KeepImages) -> Data:
    """The data with imported images held by ``keep``; drawn images and turned pages stay PNG.

    Raises:
        ConfigError: no task that imports rows.
    """
    if keep == "png":
        return data
    tasks = {
        name: replace(task, generate=partial(cast(Any, task.generate), keep_images=keep))
        for name, task in data.tasks.items()
        if "keep_images" in inspect.signature(task.generate).parameters
    }
    if not tasks:
        raise ConfigError(
            f"synth.keep_images={keep} is for rows of others, and no task of {', '.join(data.tasks)} imports rows: "
            "leave it out, or choose another data=NAME"
        )
    return replace(data, tasks=data.tasks | tasks)


NAMED_FILES = 1000
"""Files of one task and split that a run names one by one; more are one group with one digest."""


def inputs(parts: Sequence[ParquetPart]) -> dict[str, Path | FileGroup]:
    """The files that the parts' generators read, by their paths."""
    needed: dict[tuple[str, str], tuple[Generate, int]] = {}
    for chunk in (chunk for part in parts for chunk in part.chunks):
        _, items = needed.get((chunk.task, chunk.split), (chunk.generate, 0))
        needed[chunk.task, chunk.split] = chunk.generate, max(items, chunk.items.stop)
    found: dict[str, Path | FileGroup] = {}
    for (_, split), (generate, items) in needed.items():
        read = partial(files, generate, split, items)
        some = list(itertools.islice(read(), NAMED_FILES + 1))
        if len(some) <= NAMED_FILES:
            found |= {str(path): path for path in some}
        else:
            found[f"{some[0]}, or one of the files that its rows name,"] = FileGroup(read)
    return found


def sample_parts(
    data: Data, forms: Sequence[str], seed: int, shard: str | None = None, tools: tuple[str, ...] = ()
) -> list[ParquetPart]:
    """``<form>-<split>``, held-out splits first: a training image that equals one of theirs can then be dropped."""
    if not forms or set(forms) - set(FORMS):
        raise ConfigError(f"synth.forms: expected some of {', '.join(FORMS)}, got {list(forms)}")
    if not data.tasks:
        raise ConfigError(
            "data.tasks is empty: this data comes in by import; add a task with vtcli.data.importers.rows.generate, or "
            "choose another data=NAME of conf/data"
        )
    if not any(getattr(t, s) for t in data.tasks.values() if set(forms) & set(t.forms) for s in HELD_OUT_FIRST):
        raise ConfigError(
            f"data.tasks: nothing is to be made, as every count of the forms {list(forms)} is 0; give one of "
            f"{', '.join(data.tasks)} more, say data.tasks.{next(iter(data.tasks))}.train=100"
        )
    parts: list[ParquetPart] = []
    for split in HELD_OUT_FIRST:
        for form in forms:
            chunks = [
                Chunk(task.generate, name, split, form, items, seed, tools=tools)
                for name, task in data.tasks.items()
                if form in task.forms
                for items in _pieces(shards.part(getattr(task, split) or 0, shard))
            ]
            parts.append(ParquetPart(f"{form}-{split}", split, tuple(chunks)))
    return parts


def demo_parts(
    data: Data,
    demos: Demos,
    setting: DemonstrationSetup,
    seed: int,
    shard: str | None = None,
    sandbox: PoolConfig | None = None,
) -> list[ParquetPart]:
    """``validation`` and ``train``; every row has another item, from splits that no dataset uses."""
    for task, kinds in demos.rows.items():
        if task not in data.tasks or set(kinds) - set(KINDS):
            raise ConfigError(
                f"synth.demos.rows.{task}: {kinds} is not possible; expected tasks of the data configuration "
                f"({', '.join(data.tasks)}) with numbers of rows for {', '.join(KINDS)}"
            )
    if not any(count != 0 for kinds in demos.rows.values() for count in kinds.values()):
        raise ConfigError(f"synth.demos.rows: nothing is to be made, as every number of rows is 0; got {demos.rows}")
    parts: list[ParquetPart] = []
    for name, share in (("validation", demos.validation), ("train", 1.0)):
        chunks: list[Chunk] = []
        for task, kinds in demos.rows.items():
            start = 0
            for kind, count in kinds.items():
                if kind == IMPORTED or count is None:
                    rows = _rows_of(task, data.tasks[task].generate, count)
                    held = range(round(len(rows) * demos.validation))
                    here = held if name == "validation" else rows[len(held) :]
                    mine = shards.part(len(here), shard)
                    for items in _pieces(here[mine.start : mine.stop]):
                        generate = data.tasks[task].generate
                        chunks.append(Chunk(generate, task, "demo-train", kind, items, seed, setting))
                    continue
                mine = shards.part(round(count * share), shard)
                for items in _pieces(range(start + mine.start, start + mine.stop)):
                    generate, split = data.tasks[task].generate, f"demo-{name}"
                    chunks.append(Chunk(generate, task, split, kind, items, seed, setting, sandbox))
                start += round(count * share)
        parts.append(ParquetPart(name, f"demo-{name}", tuple(chunks)))
    return parts


def _rows_of(task: str, generate: Generate, count: int | None) -> range:
    """The imported rows that are demonstrations: the first so many, or all. Both files are of the training split's
    rows, and the first of them are held out.

    Raises:
        ConfigError: more rows than there are, or all of a generator without an end.
    """
    key = f"synth.demos.rows.{task}.{IMPORTED}"
    found = survey(generate, "demo-train")
    if found is None or (count is None and found.rows is None):
        raise ConfigError(f"{key}: the task {task} imports no rows, or a stream of unknown length. Give a number.")
    if found.rows is not None and (count or 0) > found.rows:
        raise ConfigError(f"{key}={count}: {found.source} has {found.rows} rows. Lower it, or give null for all rows.")
    return range(count if count is not None else found.rows or 0)


def _pieces(items: range) -> Iterator[range]:
    for start in range(items.start, items.stop, CHUNK):
        yield range(start, min(start + CHUNK, items.stop))
