"""Files of a report artifact beside its pages, with which the next report compares question by question.

``trajectories.jsonl`` has every scored trajectory, ``images/`` their pictures by hash. ``series.json`` lists the
models, oldest first, with the file of each one's rows (``series/00.jsonl``, ...). ``metrics.json`` holds every mean and
comparison that follows from the rows. ``probe.jsonl`` has a probe's continuations, ``probe.json`` their figures.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vtcli.errors import InputError
from vtcli.foreign import load_json
from vtcli.probes import effects
from vtcli.probes.causal import Continuation
from vtcli.report.content import Evaluation, Training, read_training
from vtcli.report.tables import HEADLINES, summaries_of
from vtcli.schema import Scored, Trajectory
from vtcli.statistics.rows import Row, Summary, compare
from vtcli.store import codec, disk, records
from vtcli.store.images import SAMPLED, ImageStore


def save_trajectories(folder: Path, found: Sequence[Scored], images: ImageStore) -> None:
    """Writes all trajectories and copies every image that they refer to. Raises ``InputError`` for disk trouble."""
    records.append(folder / "trajectories.jsonl", found)
    save_images(folder, (s.trajectory for s in found), images)


def save_images(folder: Path, found: Iterable[Trajectory], images: ImageStore) -> None:
    """Copies every image that the trajectories refer to. Raises ``InputError`` for disk trouble."""
    for sha in sorted({sha for t in found for ref in t.images for sha in (ref.full, ref.view)}):
        source = images.path(sha)
        target = folder / "images" / source.relative_to(images.root)
        with disk.checked(target, "copy an image to"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def save_series(folder: Path, series: Sequence[Evaluation], seed: int) -> None:
    """Writes the rows of every model and the metrics. Raises ``InputError`` for disk trouble."""
    listed: list[dict[str, str]] = []
    for i, evaluation in enumerate(series):
        file = f"series/{i:02d}.jsonl"
        (folder / file).unlink(missing_ok=True)
        records.append(folder / file, evaluation.rows)
        listed.append({"label": evaluation.label, "source": evaluation.source, "file": file})
    disk.write_atomic(folder / "series.json", json.dumps(listed, indent=1).encode())
    disk.write_atomic(folder / "metrics.json", json.dumps(metrics(series, seed), indent=1).encode())


def load_series(folder: Path) -> tuple[Evaluation, ...]:
    """Loads the series that ``save_series`` wrote. Raises ``InputError`` for missing or damaged files."""
    path = folder / "series.json"
    with disk.checked(path, "read"):
        data = path.read_bytes()
    try:
        listed = [(str(e["label"]), str(e["source"]), str(e["file"])) for e in load_json(data)]
        if any(Path(file).parent.as_posix() != "series" for _, _, file in listed):
            raise ValueError("a file outside of the folder")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not a list of evaluations ({error}). Make the report again with vtcli eval."
        ) from error
    return tuple(Evaluation(label, source, tuple(records.read(folder / file, Row))) for label, source, file in listed)


def metrics(series: Sequence[Evaluation], seed: int) -> dict[str, Any]:
    """Returns every summary of every model, and each model against the first and against the one before it."""
    models = [{"label": e.label, "source": e.source, "summaries": codec.encode(summaries_of(e, seed))} for e in series]
    pairs = sorted({(i, i + 1) for i in range(len(series) - 1)} | {(0, i) for i in range(1, len(series))})
    comparisons: list[dict[str, Any]] = []
    for i, j in pairs:
        for _, form, measure in HEADLINES:
            tasks = sorted({r.task for r in series[j].rows if r.form == form})
            for task in ["all", *tasks]:
                found = compare(series[i].rows, series[j].rows, measure, form, task=task, seed=seed)
                if found is not None:
                    head = {"before": series[i].label, "after": series[j].label}
                    comparisons.append(
                        head | {"form": form, "task": task, "measure": measure, "result": codec.encode(found)}
                    )
    return {"seed": seed, "confidence": 0.95, "models": models, "comparisons": comparisons}


def flat(summaries: Sequence[Summary]) -> dict[str, float]:
    """Returns figures for a tracker: ``answer.zoom.accuracy``, ``answer.zoom.broken``, …; over all tasks
    (``answer.all.accuracy``) with the mean's ``.low``, ``.high`` and ``.n``."""
    values: dict[str, float] = {}
    for s in summaries:
        values[f"{s.form}.{s.task}.broken"] = float(s.broken)
        for name, found in s.measures.items():
            key = f"{s.form}.{s.task}.{name}"
            values[key] = found.value
            if s.task != "all":
                continue
            values[f"{key}.n"] = float(found.n)
            if found.low is not None and found.high is not None:
                values[f"{key}.low"], values[f"{key}.high"] = found.low, found.high
    return values


def save_probe(
    folder: Path, continued: Sequence[Continuation], found: effects.CausalResult, images: ImageStore
) -> None:
    """Writes the continuations, their images and the figures. Raises ``InputError`` for disk trouble."""
    records.append(folder / "probe.jsonl", continued)
    save_images(folder, (c.trajectory for c in continued), images)
    disk.write_atomic(folder / "probe.json", json.dumps(codec.encode(found), indent=1).encode())


def load_probe(folder: Path) -> effects.CausalResult | None:
    """Returns the figures of a report's probe, or None without one. Raises ``InputError`` for a damaged file."""
    path = folder / "probe.json"
    if not path.is_file():
        return None
    with disk.checked(path, "read"):
        data = path.read_bytes()
    try:
        return codec.decode(effects.CausalResult, load_json(data))
    except ValueError as error:
        raise InputError(f"{path} holds no figures of a probe ({error}). Make the report again.") from error


def load_training(model: Path) -> Training:
    """The training curves of a model artifact: its ``metrics.jsonl`` and ``validation.jsonl``, one JSON object a step;
    nothing without them."""
    points: list[dict[str, Any]] = []
    for path in (model / "metrics.jsonl", model / "validation.jsonl"):
        if not path.is_file():
            continue
        with disk.checked(path, "read"):
            lines = path.read_bytes().splitlines()
        try:
            points += [dict(load_json(line)) for line in lines if line.strip()]
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{path} is not a training log, one JSON object a line ({error}). Train the model again."
            ) from error
    return read_training(points)


def image_notes(model: Path) -> tuple[str, ...]:
    """Returns a note for a report on a model whose artifact has only some of its trajectories' images."""
    path = model / "images" / SAMPLED
    if not path.is_file():
        return ()
    with disk.checked(path, "read"):
        count = len(json.loads(path.read_text())["trajectories"])
    return (f"Of the trajectories that the model was trained on, it holds the images of {count} (rl.keep_images).",)
