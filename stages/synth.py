"""vtcli synth: the dataset of a paper's tasks, or (with ``synth.demos``) demonstrations, generated with exact truth."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vtcli import disk, records, shards
from vtcli.artifacts import Artifact, ArtifactStore
from vtcli.bounds import at_least
from vtcli.data import canvas, sheet
from vtcli.data.parallel import ordered_map
from vtcli.envs.demonstrate import Episode, Setting
from vtcli.envs.parts import FORMS, Data, Demos, Part, demo_parts, sample_parts
from vtcli.envs.produce import produce, sandbox_until_here
from vtcli.envs.prompts import read_prompt
from vtcli.errors import ConfigError
from vtcli.images import ImageLimits
from vtcli.protocols import Env, Pixels
from vtcli.records import Demo
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.schema import Sample
from vtcli.stagerun import RunSettings, StageRun, open_run

Row = tuple[Sample | Demo, list[bytes]]
RUNTIME = ("synth.workers", "synth.merge", "sandbox.active", "sandbox.live")
"""Keys that do not change what is made."""


@dataclass(frozen=True, slots=True)
class SynthConfig:
    """``workers`` 0 means one per core; ``shard`` "3/16" makes the third of sixteen parts of every file, as an artifact
    of its own, NAME-shard-3-of-16; ``merge`` puts all of them together: 16, or a list of them."""

    job: dict[str, Any]
    data: Data
    images: ImageLimits  # the resize that demonstrations are shown with; coordinates refer to it
    prompt: dict[str, Any]
    seed: int = 0
    workers: int = 0
    forms: tuple[str, ...] = FORMS
    shard: str | None = None
    merge: int | tuple[str, ...] = ()
    demos: Demos | None = None
    env: partial[Env] | None = None  # conf/env: demonstrations write code; None: they call native tools
    sandbox: PoolConfig = field(default_factory=PoolConfig)
    sheet: int = 5  # samples per task on the contact sheet

    def __post_init__(self) -> None:
        at_least(0, self, "workers", "sheet")


def run(config: SynthConfig) -> Artifact:
    """Makes the artifact; a run that was killed keeps the files that it had finished."""
    if config.shard and config.merge:
        raise ConfigError(f"synth.shard={config.shard} and synth.merge={config.merge}: expected one of the two at most")
    kind = "demos" if config.demos else "dataset"
    whole = RunSettings.of(config.job, kind)
    settings = replace(whole, name=shards.name_of(whole.name, config.shard)) if config.shard else whole
    keys = ("data", "synth", "scale", "images", "prompt") if config.demos else ("data", "synth", "scale")
    keys = (*keys, "env") if config.demos and config.env else keys
    made_from = {key: config.job.get(key) for key in keys}
    parts = _parts(config)
    store = ArtifactStore(settings.home)
    refs = config.merge
    if isinstance(refs, int):
        refs = shards.newest(store, whole.name, refs, made_from, config.seed)
    parents = shards.in_order([store.resolve(ref, kind) for ref in refs], made_from, config.seed)
    with open_run(settings, "synth", kind, made_from, parents, runtime_keys=RUNTIME) as stage:
        if stage.reused:
            return stage.reused
        with sandbox_until_here():
            return _make(config, parts, parents, stage)


def _parts(config: SynthConfig) -> list[Part]:
    if config.demos is None:
        return sample_parts(config.data, config.forms, config.seed, config.shard)
    least, most, wanted = config.images.min_pixels, config.images.max_pixels, config.demos
    setting = Setting(wanted.teacher, read_prompt(config.prompt), least, most, wanted.perceive_with_tools, config.env)
    # Nobody lies in a demonstration: what its code did need not be checked.
    sandbox = replace(config.sandbox, verify=False) if config.env else None
    return demo_parts(config.data, wanted, setting, config.seed, config.shard, sandbox)


def _make(config: SynthConfig, parts: Sequence[Part], parents: Sequence[Artifact], stage: StageRun) -> Artifact:
    folder = stage.work / "artifact"
    write: Any = records.write_demos if config.demos else records.write_samples
    held_out: set[str] = set()
    dropped: dict[str, int] = {}
    columns = (TextColumn("{task.description:>18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        for part in parts:
            path = folder / f"{part.name}.parquet"
            shown = bar.add_task(part.name, total=part.rows)
            if not path.exists():
                made = _merged(part, parents) if parents else _generated(part, config.workers or os.cpu_count() or 1)
                rows = bar.track(made, total=part.rows, task_id=shown)
                write(path, rows if part.held_out else _unseen(rows, held_out))
            bar.update(shown, completed=part.rows)
            dropped[part.name] = part.rows - pq.read_metadata(path).num_rows
            if part.held_out:
                held_out |= _digests(path)
    disk.write_atomic(folder / "contact_sheet.png", canvas.png(_contact_sheet(config, parts)))
    counts = {part.name: _counts(folder / f"{part.name}.parquet") for part in parts}
    stage.tracker.metrics({f"rows/{name}": float(sum(count.values())) for name, count in counts.items()}, 0)
    return stage.commit(folder, {"rows": counts, "dropped_as_seen_in_a_held_out_split": dropped})


def _generated(part: Part, workers: int) -> Iterator[Row]:
    for rows in ordered_map(produce, part.chunks, workers):
        for made, pngs in rows:
            yield (Demo(made.id, made.messages, made.tools) if isinstance(made, Episode) else made), pngs


def _merged(part: Part, parents: Sequence[Artifact]) -> Iterator[Row]:
    groups = list(dict.fromkeys((chunk.task, chunk.kind) for chunk in part.chunks))
    return shards.rows([parent.path / f"{part.name}.parquet" for parent in parents], groups)


def _unseen(rows: Iterable[Row], held_out: set[str]) -> Iterator[Row]:
    return (row for row in rows if not row[1] or hashlib.sha256(row[1][0]).hexdigest() not in held_out)


def _digests(path: Path) -> set[str]:
    """sha256 of the first image of every row: equal pixels have equal PNG bytes. Where there is none it is the first
    video's, which is its name; a demonstration may have neither."""
    file = pq.ParquetFile(path)
    columns = [name for name in ("images", "videos") if name in file.schema_arrow.names]
    found: set[str] = set()
    for row in (row for batch in file.iter_batches(batch_size=32, columns=columns) for row in batch.to_pylist()):
        if row["images"]:
            found.add(hashlib.sha256(row["images"][0]["bytes"]).hexdigest())
        elif row.get("videos"):
            found.add(Path(row["videos"][0]["video"]).stem)
    return found


def _counts(path: Path) -> Mapping[str, int]:
    """Rows per task, or per task and kind: ids are <task>-<split>-<number> or <task>-demo-<split>-<number>-<kind>."""
    ids = pq.read_table(path, columns=["id"]).column("id").to_pylist()
    return dict(Counter("-".join([i.split("-")[0], *i.split("-")[4:]]) for i in ids))


def _contact_sheet(config: SynthConfig, parts: Sequence[Part]) -> Pixels:
    """The first items of every task; of demonstrations the first of every task and kind."""
    if config.demos:
        chunks = {(chunk.task, chunk.kind): chunk for part in parts for chunk in part.chunks}
        made = [row for c in chunks.values() for row, _ in produce(replace(c, items=c.items[: config.sheet // 2 + 1]))]
        strips = [sheet.episode(e.id, e.messages, e.images) for e in made if isinstance(e, Episode)]
        return sheet.sheet(sheet.packed(strips))
    rows = [
        [task.generate(seed=config.seed, item=i, split="train") for i in range(min(config.sheet, task.train))]
        for task in config.data.tasks.values()
    ]
    return sheet.sheet([[sheet.cell(item) for item in row] for row in rows if row])
