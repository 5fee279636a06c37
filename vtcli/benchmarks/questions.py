"""A benchmark's local copy as rows of ``synth``: a dataset of its questions, turned or shrunken by the benchmark's
file.

The papers build sets from public ones: DocVQA-RF, InfoVQA-RF and InfoVQA-Res (ToolsRL 4.1), OCRBench and ChartQAPro in
six orientations (CodeVision 4.1). As datasets they are filtered, given to teachers and trained on like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtcli.benchmarks import files, samples
from vtcli.benchmarks.benchmark import Benchmark
from vtcli.data.generators.item import FLIP, ROTATE, Item, Survey, item_id
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.errors import InputError
from vtcli.protocols import Pixels
from vtcli.schema import Json
from vtcli.store import images


@dataclass(slots=True)
class RowCursor:
    """Reads a copy's rows in ascending order, and again from the start for an earlier one: files of tables have no
    other access. Pictures that later rows point to are held, encoded."""

    benchmark: Benchmark
    folder: Path
    name: str
    asked: list[int] = field(default_factory=list[int])  # numbers of the rows that are questions of the benchmark
    held: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])
    _rows: Iterator[tuple[str, Path, Mapping[str, Any], bool]] | None = None
    _next: int = 0

    def __post_init__(self) -> None:
        """Reads the copy once: the numbers of its rows, and which of them others point to. Raises ``InputError``."""
        form, paths = files.locate(self.folder, self.name, self.benchmark)
        change, large, pointed = self.benchmark.change, dict[str, bool](), set[str]()
        for number, (where, at, row, _) in enumerate(samples.walk(paths, form, None)):
            wanted = True
            if (pointer := samples.pointer_of(row, form)) is not None:
                pointed.add(pointer)
                wanted = large.get(pointer, True)
            elif change is not None and change.only_large and change.above is not None:
                try:
                    sizes = [images.size(data, where) for data in samples.pictures(row, form, at.parent, where)]
                    wanted = any(max(size) > change.above for size in sizes)
                except InputError:
                    wanted = True  # asked, where it is a bad row
                large[str(row.get(form.id))] = wanted
            if wanted:
                self.asked.append(number)
        self.held = {key: [] for key in pointed}

    def read(self, number: int, seed: int) -> tuple[samples.RowText, str, Sequence[bytes]]:
        """Text, place and encoded images of a row, as ``vtcli eval`` asks it with the same seed. Raises ``InputError``
        for a row that cannot be asked."""
        form, paths = files.locate(self.folder, self.name, self.benchmark)
        if self._rows is None or number < self._next:
            self._rows, self._next = samples.walk(paths, form, None), 0
        for where, at, row, _ in self._rows:
            self._next += 1
            key, last = str(row.get(form.id)), self._next == number + 1
            own = samples.pointer_of(row, form) is None
            if own and key in self.held and not (self.held[key] or last):
                self.held[key] = samples.pictures(row, form, at.parent, where)
            if last:
                text = samples.read_row(row, form, self.benchmark, where, seed)
                pictures = samples.pictures(row, form, at.parent, where) if own else self.held.get(text.pointer or "")
                if not pictures:
                    raise InputError(f"{where}: its image is that of row {text.pointer!r}, which is not before it.")
                if key in self.held:
                    self.held[key] = list(pictures)
                return text, where, pictures
        raise InputError(f"{self.folder} has fewer rows of {self.name} than before: it was changed meanwhile.")


_CURSORS: dict[tuple[str, str], RowCursor] = {}


def _cursor(benchmark: Mapping[str, Benchmark], path: str, name: str) -> RowCursor:
    if name not in benchmark:
        raise InputError(f"there is no benchmark {name!r} in the file of the task; it has {', '.join(benchmark)}.")
    if (path, name) not in _CURSORS:
        _CURSORS[path, name] = RowCursor(benchmark[name], Path(path), name)
    return _CURSORS[path, name]


def survey(split: str, *, benchmark: Mapping[str, Benchmark], path: str, name: str) -> Survey:
    """Counts the questions of a copy. Raises ``InputError`` for missing or damaged files."""
    del split
    return Survey(f"{path} ({name})", len(_cursor(benchmark, path, name).asked))


def reads(split: str, items: int, *, benchmark: Mapping[str, Benchmark], path: str, name: str) -> Iterator[Path]:
    """The files of the copy."""
    del split, items
    yield from files.locate(Path(path), name, benchmark[name])[1] if name in benchmark else ()


def generate(
    seed: int,
    item: int,
    split: str,
    *,
    benchmark: Mapping[str, Benchmark],
    path: str,
    name: str,
    form: str = "answer",
) -> Item:
    """Question ``item`` of the benchmark ``name``, of the copy in the folder ``path``, whatever the split. Its turn is
    that of ``vtcli eval``, drawn with the same seed. The tool-supervised form asks for the upright page.

    Raises:
        RowProblem: a row without question, answer or image that can be read.
        InputError: missing files, or too few rows.
    """
    del form
    cursor = _cursor(benchmark, path, name)
    if item >= len(cursor.asked):
        raise InputError(f"{path} has {len(cursor.asked)} questions of {name}, and question {item} is asked for.")
    place = Place(f"{path} ({name})", cursor.asked[item])
    change = cursor.benchmark.change
    try:
        text, where, data = cursor.read(cursor.asked[item], seed)
        turn = samples.drawn_turn(change, text.pointer or text.key, seed)
        pixels: tuple[Pixels, ...] = samples.changed(data, change, turn, where)
    except samples.BrokenRow as problem:
        raise RowProblem(place, "a row that cannot be asked", str(problem)) from problem
    except InputError as problem:
        raise RowProblem(place, "an image that cannot be decoded", str(problem)) from problem
    truth: dict[str, Json] = {**text.truth, "rule": cursor.benchmark.scores[0], "source": text.key}
    turned = change is not None and bool(change.turns)
    return Item(
        id=item_id(name, split, item),
        task=name,
        pixels=pixels[0],
        more=pixels[1:],
        question=text.question,
        tool_question="Turn the page upright. Which image is it?" if turned else "",
        answer=text.answers[0],
        tool_answer=str(int(turn != "none")) if turned else "",
        truth=truth | ({"transform": turn, "kind": "field"} if turned else {}),
        tools=(ROTATE, FLIP) if turned else (),
    )
