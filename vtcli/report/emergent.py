"""Recorded operations beside those of the demonstrations that a model learnt from: which of them emerged.

An operation is *emergent* if a model made it and no demonstration of its lineage does. It has *moved* to a task whose
demonstrations lack it where those of another task have it. CodeDance reports both (4.3).
Demonstrations of a teacher have what the sandbox recorded. Of others the texts of the calls are read, generously: a
name in the code is enough, and any turn stands for all turns. So nothing is called emergent that was shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from vtcli.families.calls import parse_calls
from vtcli.filters.facts import DemoSignals
from vtcli.filters.reading import TAUGHT_FILE
from vtcli.report.analyses import whole
from vtcli.report.cells import EMPTY, estimate_cell
from vtcli.report.content import Evaluation
from vtcli.report.printing import Cell, Table
from vtcli.statistics.metrics import estimate
from vtcli.statistics.rows import over_questions
from vtcli.store import disk, records
from vtcli.store.artifacts import Artifact, ArtifactStore, Lineage

OTHER = "other"
"""Operations without a name of their own: they are never called emergent."""

_WORDS: Mapping[str, str] = {
    "crop": r"\.(?:crop|crop_to|fit|imcrop)\b|\w\s*+\[[^\]\n:]{0,200}+:[^\]\n,]{0,200}+,[^\]\n:]{0,200}+:",
    "resize": r"\.(?:resize|thumbnail|reduce|scale|pyrUp|pyrDown|zoom)\b",
    "rotate": r"\.(?:rotate|rot90|transpose|warpAffine)\b",
    "flip": r"\.(?:flip|mirror|fliplr|flipud|transpose)\b",
    "enhance": r"ImageEnhance|\.(?:autocontrast|equalize|point|convertScaleAbs|equalizeHist|addWeighted|createCLAHE)\b"
    r"|\.(?:invert|bitwise_not|posterize|solarize|LUT)\b",
    "draw": r"ImageDraw|\.(?:rectangle|line|arrowedLine|circle|ellipse|putText|text|polygon|polylines|fillPoly|plot)\b"
    r"|\.(?:drawContours|drawMarker|scatter|axhline|axvline|add_patch|annotate|imshow)\b",
    "warp": r"\.(?:warpAffine|warpPerspective|transform|affine)\b",
    "colour": r"\.(?:convert|cvtColor|grayscale|getchannel|split|quantize|inRange|colorize)\b",
    "filter": r"ImageFilter|\.(?:filter|filter2D|GaussianBlur|blur|medianBlur|bilateralFilter|Canny|Laplacian|Sobel)\b"
    r"|\.(?:threshold|adaptiveThreshold|dilate|erode|morphologyEx|detailEnhance|fastNlMeansDenoising\w*)\b",
    "frames": r"fetch_frames|get_frames|show_frames|VideoCapture|VideoReader|video_clue",
}
_WRITTEN = {name: re.compile(pattern) for name, pattern in _WORDS.items()}
_TOOLS = {"crop": "zoom|crop", "rotate": "rotat", "flip": "flip|mirror", "draw": "mark|draw|line|point"}


@dataclass(frozen=True, slots=True)
class DemonstratedOperations:
    """Demonstrations, and how many of them have each operation; turns and flips count as one, ``rotate``, ``flip``."""

    sources: tuple[str, ...]
    rows: int
    counts: Mapping[str, int]
    of_task: Mapping[str, set[str]]  # the operations that its demonstrations have, by task


_TASK = re.compile(r"-(?:demo-)?(?:train|validation|test)-\d.*$")
"""The rest of a demonstration's id after its task, as generators and teachers write it."""


def kind_of(operation: str) -> str:
    """Returns an operation without its direction: ``rotate_90`` is ``rotate``."""
    return operation.partition("_")[0]


def written(text: str) -> set[str]:
    """Returns the operations in a turn's text, by the names of tools and of functions in code."""
    found = {name for name, pattern in _WRITTEN.items() if pattern.search(text)}
    for call in parse_calls(text):
        found |= {name for name, pattern in _TOOLS.items() if call.name and re.search(pattern, call.name)}
    return found


def demonstrated(lineage: Lineage) -> DemonstratedOperations | None:
    """Returns the operations of all demonstrations in an artifact's ancestry, or None without demonstrations.

    Raises:
        InputError: demonstrations whose files are damaged.
    """
    folders = dict(_demos(lineage))
    counts, rows, of_task = Counter[str](), 0, dict[str, set[str]]()
    for folder in folders.values():
        found = list(_operations(folder))
        rows += len(found)
        for demo, done in found:
            counts.update(done)
            of_task.setdefault(_TASK.sub("", demo), set()).update(done)
    return DemonstratedOperations(tuple(folders), rows, counts, of_task) if rows else None


def _demos(lineage: Lineage) -> Iterator[tuple[str, Path]]:
    if lineage.kind == "demos" and lineage.path is not None:
        yield lineage.ref, lineage.path
    for parent in lineage.parents if lineage.kind != "demos" else ():
        yield from _demos(parent)


def _operations(folder: Path) -> Iterator[tuple[str, set[str]]]:
    """Yields the id and the operations of each demonstration that is trained on."""
    taught = folder / TAUGHT_FILE
    recorded = {one.id: one.values for one in records.read(taught, DemoSignals)} if taught.is_file() else {}
    for path in sorted(folder.glob("*train*.parquet")):
        with disk.checked(path, "read"):
            batches = pq.ParquetFile(path).iter_batches(batch_size=256, columns=["id", "messages"])
            for row in (row for batch in batches for row in batch.to_pylist()):
                done = (recorded.get(str(row["id"])) or {}).get("operations")
                if done is not None:
                    yield str(row["id"]), {kind_of(str(entry["name"])) for entry in done}
                else:
                    said = (str(m["content"] or "") for m in row["messages"] or () if m["role"] == "assistant")
                    yield str(row["id"]), set[str]().union(*map(written, said))


def table(evaluation: Evaluation, demos: DemonstratedOperations | None, seed: int) -> Table | None:
    """Tabulates for each operation the share of demonstrations and of trajectories that have it, and the accuracy with
    it. None without demonstrations, or without a recorded operation."""
    rows = [row for form in ("answer", "tool") for row in whole(evaluation, form)]
    names = Counter(name for row in rows for name in set(row.operations) if name != OTHER)
    if demos is None or not names:
        return None

    def lines(shown: DemonstratedOperations = demos) -> Iterator[tuple[Cell, ...]]:
        for name, _ in sorted(names.items(), key=lambda item: (shown.counts.get(kind_of(item[0]), 0) > 0, -item[1])):
            count = shown.counts.get(kind_of(name), 0)
            with_it = [row for row in rows if name in row.operations]
            moved = {row.task for row in with_it if kind_of(name) not in shown.of_task.get(row.task, {kind_of(name)})}
            right = [(row.sample, row.accuracy) for row in with_it if row.accuracy is not None]
            accuracy = over_questions(right, seed)
            yield (
                Cell(name.replace("_", " "), head=True),
                Cell("emergent" if not count else f"moved to {', '.join(sorted(moved))}" if moved else "", words=True),
                estimate_cell(estimate([1.0] * count + [0.0] * (shown.rows - count), seed)),
                estimate_cell(over_questions(((row.sample, float(name in row.operations)) for row in rows), seed)),
                EMPTY if accuracy is None else estimate_cell(accuracy),
                Cell(str(len(with_it))),
            )

    note = (
        f"Emergent: recorded here, and in none of the {demos.rows} demonstrations of {', '.join(demos.sources)}. "
        "Moved: in demonstrations of other tasks alone. Shares are of demonstrations and of questions. Directions of "
        "turns and flips are not told apart in demonstrations; where the sandbox did not record them, a function's "
        "name in the code counts as its operation."
    )
    columns = ("operation", "", "demonstrations", "trajectories", "accuracy with it", "trajectories with it")
    return Table("Operations beside those of the demonstrations", note, columns, tuple(lines()))


def tables(series: Sequence[Evaluation], store: ArtifactStore, model: Artifact | None, seed: int) -> list[Table]:
    """The table of the newest evaluation, if its model descends from demonstrations."""
    found = table(series[-1], demonstrated(store.lineage(str(model.path))), seed) if model else None
    return [found] if found else []
