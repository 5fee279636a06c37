"""vtcli synth: the dataset of a paper's tasks, or (with ``synth.demos``) demonstrations, generated with exact truth."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vtcli.config.bounds import at_least
from vtcli.data import preview, sheet
from vtcli.data.generators import canvas
from vtcli.data.generators.item import Generate, Item
from vtcli.data.importers.problems import BadRow, BadRows, RowProblem, report_bad
from vtcli.data.parallel import ordered_map
from vtcli.envs.card import BoundCard, read_card
from vtcli.envs.counts import counted
from vtcli.envs.demonstrate import DemoEpisode, DemonstrationSetup
from vtcli.envs.parts import FORMS, Data, Demos, ParquetPart, demo_parts, inputs, sample_parts
from vtcli.envs.produce import Chunk, produce, sandbox_until_here
from vtcli.envs.prompts import read_prompt
from vtcli.errors import ConfigError, InputError
from vtcli.families.table import find_family
from vtcli.protocols import Pixels
from vtcli.runs.run import RunSettings, Scope, StageRun, open_run
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.schema import Sample
from vtcli.store import disk, parquet, records, shards
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageLimits
from vtcli.store.records import Demo

Row = tuple[Sample | Demo, list[bytes]]
RUNTIME_KEYS = ("synth.workers", "synth.merge")
"""Keys that do not change what is made."""


@dataclass(frozen=True, slots=True)
class Config:
    """``workers`` 0 means one per core; ``shard`` "3/16" makes the third of sixteen parts of every file, as an artifact
    of its own, NAME-shard-3-of-16; ``merge`` puts all of them together: 16, or a list of them."""

    job: dict[str, Any]
    data: Data
    images: ImageLimits  # the resize that demonstrations are shown with; coordinates refer to it
    prompt: dict[str, Any]
    model: dict[str, Any]  # conf/model: its family decides how large a demonstration's images are shown
    env: BoundCard  # conf/env: what demonstrations are played in
    tools: tuple[str, ...]  # that plain questions list
    families: dict[str, str] = field(default_factory=dict[str, str])  # from outside: model_type to its class
    seed: int = 0
    workers: int = 0
    forms: tuple[str, ...] = FORMS
    shard: str | None = None
    merge: int | tuple[str, ...] = ()
    demos: Demos | None = None
    sandbox: PoolConfig = field(default_factory=PoolConfig)
    sheet: int = 5  # samples per task on the contact sheet
    bad_rows: Literal["error", "skip"] = "error"  # imported rows that cannot be used
    preview: int = 0  # write a page of so many rows of every file, and nothing else

    def __post_init__(self) -> None:
        at_least(0, self, "workers", "sheet", "preview")
        if self.shard and self.merge:
            raise ConfigError(f"synth.shard={self.shard} and synth.merge={self.merge}: expected one of the two at most")
        card = read_card(self.env)
        if self.demos:
            _ = card.spoken  # or it is refused here


def run(config: Config) -> Artifact | None:
    """Makes the artifact; a run that was killed keeps the files that it had finished. A preview makes none."""
    kind = "demos" if config.demos else "dataset"
    data, notes = counted(config.data, config.merge) if config.demos is None else (config.data, [])
    sys.stderr.writelines(f"note: {note}\n" for note in notes)
    config = replace(config, data=data)
    whole = RunSettings.of(config.job, kind)
    settings = replace(whole, name=shards.name_of(whole.name, config.shard)) if config.shard else whole
    keys = (
        ("data", "synth", "scale", "images", "prompt", "env", "families")
        if config.demos
        else ("data", "synth", "scale")
    )
    made_from = {key: config.job.get(key) for key in keys}
    if config.demos:
        made_from["family"] = config.model.get("family")
    parts = _parts(config)
    if config.preview:
        with sandbox_until_here():
            _preview(config, parts, settings.home / f"preview-{settings.name}.html")
        return None
    store = ArtifactStore(settings.home)
    refs = config.merge
    if isinstance(refs, int):
        refs = shards.newest(store, whole.name, refs, made_from, config.seed)
    parents = shards.in_order([store.resolve(ref, kind) for ref in refs], made_from, config.seed)
    files = {} if parents else inputs(parts)  # shards were made from them
    with open_run(settings, "synth", kind, made_from, parents, Scope(RUNTIME_KEYS, files, "anew")) as stage:
        if stage.reused:
            return stage.reused
        with sandbox_until_here():
            return _make(config, parts, parents, stage)


def _parts(config: Config) -> list[ParquetPart]:
    if config.demos is None:
        return sample_parts(config.data, config.forms, config.seed, config.shard, config.tools)
    if not config.model.get("family"):
        raise ConfigError("model.family is not given: name the family that the demonstrations are for")
    sizing = find_family(str(config.model["family"]), config.families).sizing(config.images)
    wanted = config.demos
    card, prompt = read_card(config.env), read_prompt(config.prompt)
    setting = DemonstrationSetup(card, wanted.teacher, prompt, sizing, wanted.perceive_with_tools)
    sandbox = config.sandbox if card.runner else None
    return demo_parts(config.data, wanted, setting, config.seed, config.shard, sandbox)


def _make(config: Config, parts: Sequence[ParquetPart], parents: Sequence[Artifact], stage: StageRun) -> Artifact:
    folder = stage.work / "artifact"
    write: Any = records.write_demos if config.demos else records.write_samples
    held_out: dict[str, str] = {}
    dropped: dict[str, dict[str, str]] = {}
    columns = (TextColumn("{task.description:>18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        for part in parts:
            path = folder / f"{part.name}.parquet"
            shown = bar.add_task(part.name, total=part.rows)
            left_out = stage.work / f"{part.name}.dropped.json"  # written last: with it a part is finished
            if not (path.exists() and left_out.exists()):
                bad = BadRows(part.name, config.bad_rows, stage.work / f"{part.name}.bad.jsonl")
                made = _generated(part, config.workers or os.cpu_count() or 1, bad)
                rows = bar.track(_merged(part, parents, bad) if parents else made, total=part.rows, task_id=shown)
                seen: dict[str, str] = {}
                write(path, rows if part.held_out else _unseen(rows, held_out, seen))
                bad.finish()
                disk.write_atomic(left_out, json.dumps(seen).encode())
            bar.update(shown, completed=part.rows)
            dropped[part.name] = json.loads(left_out.read_text())
            if part.held_out:
                held_out |= _digests(path)
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
    """Says on standard error how many rows of a training part were left out and which; ``dropped.json`` has them all,
    with the held-out row that shows the same. Raises ``InputError`` where nothing of a part is left."""
    for part in parts:
        pairs = [f"{row} (as {held})" for row, held in dropped[part.name].items()]
        if not pairs:
            continue
        said = (
            f"{part.name}: {len(pairs)} of {part.rows} rows dropped, as their image or video is in a held-out split: "
            f"{', '.join(pairs[:3])}{' …' if len(pairs) > 3 else ''}"
        )
        if len(pairs) == part.rows:
            raise InputError(
                f"{said}. Nothing is left to train on: take such rows out of test and validation, or give others."
            )
        sys.stderr.write(f"vtcli: {said}; all are in dropped.json\n")
    if any(dropped.values()):
        disk.write_atomic(folder / "dropped.json", json.dumps(dropped, indent=1).encode())


def _generated(part: ParquetPart, workers: int, bad: BadRows) -> Iterator[Row]:
    for rows in ordered_map(produce, part.chunks, workers):
        for row in rows:
            if isinstance(row, BadRow):
                bad.add(row)
                continue
            made, pngs = row
            yield (Demo(made.id, made.messages, made.tools) if isinstance(made, DemoEpisode) else made), pngs
    bad.check()


def _merged(part: ParquetPart, parents: Sequence[Artifact], bad: BadRows) -> Iterator[Row]:
    bad.take_over([parent.path / "bad_rows.jsonl" for parent in parents])
    groups = list(dict.fromkeys((chunk.task, chunk.kind) for chunk in part.chunks))
    return shards.rows([parent.path / f"{part.name}.parquet" for parent in parents], groups)


def _unseen(rows: Iterable[Row], held_out: Mapping[str, str], dropped: dict[str, str]) -> Iterator[Row]:
    """The rows whose first image or video is not in ``held_out``; the ids of the others go into ``dropped``, with the
    id of the held-out row."""
    for row in rows:
        same = held_out.get(hashlib.sha256(row[1][0]).hexdigest()) if row[1] else None
        if same is None:
            yield row
        else:
            dropped[row[0].id] = same


def _digests(path: Path) -> dict[str, str]:
    """Returns the sha256 of each row's first image, with the row's id. Equal pixels have equal PNG bytes. A row
    without images has the digest of its first video, which is the video's name. A demonstration may have neither."""
    file = pq.ParquetFile(path)
    columns = [name for name in ("id", "images", "videos") if name in file.schema_arrow.names]
    found: dict[str, str] = {}
    for row in (row for batch in file.iter_batches(batch_size=32, columns=columns) for row in batch.to_pylist()):
        if row["images"]:
            found.setdefault(hashlib.sha256(row["images"][0]["bytes"]).hexdigest(), row["id"])
        elif row.get("videos"):
            found.setdefault(Path(row["videos"][0]["video"]).stem, row["id"])
    return found


def _counts(path: Path) -> Mapping[str, int]:
    """Rows per task, or per task and kind: ids are <task>-<split>-<number> or <task>-demo-<split>-<number>-<kind>, and
    a task's name may hold a hyphen."""
    ids = pq.read_table(path, columns=["id"]).column("id").to_pylist()
    return dict(Counter(re.sub(r"-(demo-)?(train|validation|test)-\d{6}(?=-\w+$|$)", "", i) for i in ids))


def _preview(config: Config, parts: Sequence[ParquetPart], path: Path) -> None:
    """Writes a page of the first rows of every task and file as they were understood, bad ones included."""
    cards: list[preview.PreviewCard] = []
    for part in parts:
        chunks: dict[tuple[str, str], list[Chunk]] = {}
        for chunk in part.chunks:
            chunks.setdefault((chunk.task, chunk.kind), []).append(chunk)
        for same in chunks.values():
            left = config.preview
            for chunk in same:
                cards += _previewed(replace(chunk, items=chunk.items[:left]))
                left -= len(chunk.items[:left])
    disk.write_atomic(path, preview.page(f"{path.stem.removeprefix('preview-')}: rows as understood", cards).encode())
    bad = sum(bool(card.problem) for card in cards)
    sys.stderr.write(f"vtcli: {path}: {len(cards)} rows, {bad} of them bad; nothing else was written\n")


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
        made = [row for c in chunks.values() for row in produce(replace(c, items=c.items[: config.sheet // 2 + 1]))]
        found = [row[0] for row in made if not isinstance(row, BadRow)]
        strips = [sheet.episode(e.id, e.messages, e.images) for e in found if isinstance(e, DemoEpisode)]
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
