"""Your own data in place of a generator: rows of questions about an image or a video, from Parquet or JSONL.

ToolsRL trains on DocVQA, SealVQA, VisualProbe, ChartQA and ArxivQA (4.1), which are not generated but brought along::

    docvqa:
      train: 3000
      validation: 200
      generate:
        _target_: vtcli.data.importers.rows.generate
        path: /data/docvqa/{split}.parquet
        name: docvqa
        turn: true

docs/data.md says which columns a row may have. Documents (``turn: true``) are rotated and flipped as in
C.1; rows with boxes are zoom targets, and an empty list says that there is nothing to search; rows with neither have no
tool-supervised form (give the task ``forms: [answer]``, as ToolsRL does with ChartQA and ArxivQA).
"""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vtcli.data.generators.film import NAME, Footage
from vtcli.data.generators.item import FLIP, NO_PIXELS, ROTATE, ZOOM, Item, Survey, item_id, stream, zoom_question
from vtcli.data.generators.rotflip import TRANSFORMS
from vtcli.errors import InputError
from vtcli.protocols import Pixels
from vtcli.schema import Json
from vtcli.signals.code import REQUIRABLE
from vtcli.signals.rules import RULES
from vtcli.store import images

NEEDED: Mapping[str, set[str]] = {"choices": {"choices"}, "mra": {"number"}, "values": {"axis"}, "counts": {"total"}}
"""Requirements of each rule on a row's truth. The last two rules score generated charts."""

COLUMNS = (
    "question",
    "answer",
    "image",
    "video",
    "boxes",
    "choices",
    "numeric",
    "required",
    "search",
    "rule",
    "tolerance",
)


def survey(split: str, *, path: str, **_: object) -> Survey:
    """Counts the rows in the file of a split, and lists the columns that ``generate`` does not read.

    Raises ``InputError`` for a missing or damaged file, and for a column whose name looks like a slip.
    """
    file = Path(path.format(split=split))
    rows, read = _rows(file)
    if file.suffix in (".jsonl", ".json"):
        columns = list(dict.fromkeys(name for i in range(rows) for name in read(i)))
    else:
        columns = list(pq.read_schema(file).names)
    _refuse_slips(columns, str(file))
    return Survey(str(file), rows, tuple(name for name in columns if name not in COLUMNS))


def generate(
    seed: int,
    item: int,
    split: str,
    *,
    path: str,
    name: str,
    turn: bool = False,
    augment: float = 0.7,
    tool_train_augment: float = 1.0,
    form: str = "answer",
) -> Item:
    """Row ``item`` of ``path``, in which ``{split}`` is replaced; ``name`` is the task's name in the configuration.

    Raises ``InputError`` for a missing or damaged file, too few rows, and a column or image that cannot be used. It
    also raises it for the tool-supervised form of a row without supervision.
    """
    file = Path(path.format(split=split))
    row, where = _row(file, item), f"row {item} of {file}"
    _refuse_slips(row, where)
    _check_text(row, where)
    truth = _said(row, where)
    if row.get("video") not in (None, ""):
        if turn or form == "tool":
            raise InputError(
                f"{where} has a video, which is not turned and has no tool-supervised form: forms: [answer]."
            )
        return _filmed(row, truth, name, item_id(name, split, item), file, where)
    if row.get("image") in (None, ""):
        raise InputError(f"{where} has no image. Every row needs question, answer and an image or a video.")
    pixels = images.decode(_bytes(row["image"], "image", file, where), f"of {where}")
    boxes = _boxes(row.get("boxes"), pixels, where)
    rng = stream(seed, "rotflip", split, item, purpose=2)
    coin, kind = rng.random(), 1 + int(rng.integers(5))
    limit = tool_train_augment if (form, split) == ("tool", "train") else augment
    transform = list(TRANSFORMS)[kind] if turn and coin < limit else "none"
    said = boxes or row.get("boxes") == []  # an empty list says that there is nothing to find
    truth |= {"transform": transform, "kind": "field"} if turn else {"boxes": boxes} if said else {}
    if form == "tool" and not (turn or boxes):
        raise _no_tool_form(where)
    found = ", ".join(f'"{box["label"]}": {k}' for k, box in enumerate(boxes, start=1))
    return Item(
        id=item_id(name, split, item),
        task=name,
        pixels=np.ascontiguousarray(TRANSFORMS[transform](pixels)),
        question=str(row["question"]),
        tool_question="Turn the page upright. Which image is it?" if turn else zoom_question(str(row["question"])),
        answer=str(row["answer"]),
        tool_answer=str(int(transform != "none")) if turn else found,
        truth=truth,
        tools=(ROTATE, FLIP) if turn else (ZOOM,),
    )


def reads(split: str, items: int, *, path: str, **_: Any) -> Iterator[Path]:
    """The file of rows, and the images and videos beside it that its first ``items`` rows name. What cannot be read is
    left to ``generate``, which says what is wrong."""
    file = Path(path.format(split=split))
    yield file
    if file.is_file():
        for value in itertools.islice(_media(file), items):
            named = [entry.get("path") if isinstance(entry, Mapping) else entry for entry in value.values()]
            yield from (file.parent / name for name in named if isinstance(name, str) and name)


def _media(file: Path) -> Iterator[Mapping[str, Any]]:
    """Image and video of every row, without the bytes that a Parquet file holds itself."""
    if file.suffix in (".jsonl", ".json"):
        for line in file.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            known = cast("Mapping[str, Any]", row) if isinstance(row, dict) else {}
            yield {name: known.get(name) for name in ("image", "video")}
        return
    try:
        table = pq.ParquetFile(file)
    except (OSError, pa.ArrowException):
        return
    leaves = [f"{name}{end}" for name in ("image", "video") for end in ("", ".path")]
    paths = table.schema.to_arrow_schema()
    texts = [leaf for leaf in leaves if _is_text(paths, leaf)]
    for batch in table.iter_batches(columns=texts) if texts else ():
        yield from batch.to_pylist()


def _is_text(schema: pa.Schema, leaf: str) -> bool:
    name, _, inside = leaf.partition(".")
    kind: Any = schema.field(name).type if name in schema.names else pa.null()
    if inside:
        kind = kind.field(inside).type if pa.types.is_struct(kind) and kind.get_field_index(inside) >= 0 else pa.null()
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _filmed(row: Mapping[str, Any], truth: dict[str, Json], name: str, key: str, file: Path, where: str) -> Item:
    """A row with a video: code fetches its frames, and the prompt shows none."""
    if row.get("boxes") or row.get("image") not in (None, ""):
        raise InputError(f"{where} has a video, so it can have neither image nor boxes.")
    given = row["video"]
    path = given.get("path") if isinstance(given, Mapping) else given
    ending = Path(path).name if isinstance(path, str) and Path(path).suffix else NAME
    return Item(
        id=key,
        task=name,
        pixels=NO_PIXELS,
        question=str(row["question"]),
        tool_question="",
        answer=str(row["answer"]),
        tool_answer="",
        truth=truth,
        tools=(),
        clip=Footage.read(_bytes(given, "video", file, where), ending, f"the video of {where}"),
    )


def _check_text(row: Mapping[str, Any], where: str) -> None:
    """One question and one answer, as text or a number."""
    for column, kinds in (("question", str), ("answer", str | int | float | Decimal)):
        value = row.get(column)
        if value in (None, ""):
            raise InputError(f"{where} has no {column}. Every row needs question, answer and an image or a video.")
        if isinstance(value, bool) or not isinstance(value, kinds):
            shown = json.dumps(value, default=str)[:100]
            advice = ""
            if column == "answer" and isinstance(value, list):
                advice = " A row has one reference answer: keep the best of them, or give each a row."
            elif column == "answer" and isinstance(value, bool):
                advice = ' Write what the model shall say, for example "yes" or "no".'
            expected = "text or a number" if column == "answer" else "text"
            raise InputError(f"{where}: its {column} is {shown}; expected {expected}.{advice}")


def _refuse_slips(columns: Iterable[str], where: str) -> None:
    """Raises ``InputError`` for an unknown column whose nearest known one is not there: ``questoin``, ``box``."""
    given = set(columns)
    for name in sorted(given - set(COLUMNS)):
        near = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=0.75)
        if near and near[0] not in given:
            raise InputError(
                f"{where} has a column {name!r}, which is not known. Did you mean {near[0]!r}? "
                f"Columns are {', '.join(COLUMNS)}."
            )


def _no_tool_form(where: str) -> InputError:
    return InputError(f"{where} has neither boxes nor turn: true, so it has no tool-supervised form: forms: [answer].")


def _said(row: Mapping[str, Any], where: str) -> dict[str, Json]:
    """Reads the answer of a row, and the way to it."""
    truth: dict[str, Json] = {}
    if (choices := row.get("choices")) is not None:
        texts = [str(choice) for choice in choices] if isinstance(choices, list | tuple) else []
        if str(row["answer"]).strip() not in [text.strip() for text in texts]:
            raise InputError(f"{where}: its choices are {choices}; expected a list with the answer {row['answer']!r}.")
        truth["choices"] = texts
    if row.get("numeric"):
        truth["number"] = _number(row["answer"], where)
    if (rule := row.get("rule")) is not None:
        alone = ", ".join(map(repr, sorted(RULES.keys() - NEEDED.keys())))
        if rule not in RULES or not NEEDED.get(rule, set()) <= truth.keys():
            raise InputError(
                f"{where}: the rule is {rule!r}; expected {alone}, 'choices' with choices, or 'mra' with numeric: true."
            )
        if (tolerance := row.get("tolerance")) is not None:
            truth["tolerance"] = _number(tolerance, where)
    truth["rule"] = rule or ("mra" if "number" in truth else "choices" if "choices" in truth else "judge")
    if (required := row.get("required")) is not None:
        unknown = set(required) - REQUIRABLE if isinstance(required, list | tuple) else {required}
        if unknown:
            raise InputError(
                f"{where}: required has {', '.join(map(repr, sorted(map(str, unknown))))}; expected a list of "
                f"{', '.join(sorted(REQUIRABLE))}, in the order in which they are needed."
            )
        truth["required"] = list(required)
    if (search := row.get("search")) is not None:
        if not isinstance(search, bool):
            raise InputError(f"{where}: search is {search!r}; expected true or false.")
        truth["search"] = search
    return truth


def _number(answer: Any, where: str) -> float:
    try:
        number = float(answer)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where} is numeric, but its answer is {answer!r}; expected a number such as 2.5.")
    return number


def _row(file: Path, item: int) -> Mapping[str, Any]:
    rows, read = _rows(file)
    if item >= rows:
        raise InputError(
            f"{file} has {rows} rows, and row {item} is asked for. Lower the number of items of this split, or give "
            "null for all rows."
        )
    return read(item)


def _rows(file: Path) -> tuple[int, Any]:
    """The number of rows of a file as it is now, and a function that reads one."""
    stat = file.stat() if file.exists() else None
    return _opened(file, stat and (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))


@functools.lru_cache(maxsize=8)
def _opened(file: Path, mark: object) -> tuple[int, Any]:
    """The number of rows of a file and a function that reads one; kept until its ``mark`` is another."""
    del mark
    try:
        if file.suffix in (".jsonl", ".json"):
            lines = file.read_bytes().splitlines()
            return len(lines), lambda i: _json_row(lines[i], f"row {i} of {file}")
        table = pq.ParquetFile(file)
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror or error}). Give the path of a Parquet or JSONL file."
        ) from error
    except pa.ArrowException as error:
        raise InputError(f"{file} is no Parquet file, or it is damaged or cut off ({error}).") from error
    starts = np.cumsum([0] + [table.metadata.row_group(g).num_rows for g in range(table.num_row_groups)])
    group = functools.lru_cache(maxsize=2)(table.read_row_group)

    def read(item: int) -> dict[str, Any]:
        at = int(np.searchsorted(starts, item, side="right")) - 1
        return group(at).slice(item - int(starts[at]), 1).to_pylist()[0]

    return int(starts[-1]), read


def _json_row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where} is not JSON ({error}). Give one object a line.") from error
    if not isinstance(row, dict):
        raise InputError(f"{where} is not a JSON object. Give one object a line.")
    return row


def _bytes(given: Any, what: str, file: Path, where: str) -> bytes:
    """Reads bytes from bytes, from a struct of `datasets` with bytes or path, or from a path beside the file."""
    if isinstance(given, Mapping):
        given = given.get("bytes") or given.get("path")
    if isinstance(given, bytes):
        return given
    if not isinstance(given, str):
        raise InputError(
            f"{where}: {what} is a {type(given).__name__}; expected bytes, a struct with bytes, or a path."
        )
    try:
        return (file.parent / given).read_bytes()
    except OSError as error:
        raise InputError(
            f"{where}: the {what} {file.parent / given} cannot be read ({error.strerror or error})."
        ) from error


def _boxes(given: Any, pixels: Pixels, where: str) -> list[dict[str, Json]]:
    """Boxes with a label, four numbers in order, and inside the image."""
    height, width = pixels.shape[:2]
    boxes: list[dict[str, Json]] = []
    if given is not None and not isinstance(given, list | tuple):
        raise InputError(f"{where}: its boxes are {given!r}; expected a list.")
    for entry in given or ():
        fields: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
        label, box = fields.get("label"), fields.get("box")
        values: list[Any] = list(box) if isinstance(box, list | tuple) else []
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        if not label or len(numbers) != 4 or len(values) != 4:
            raise InputError(
                f'{where}: a box needs a label and four numbers, {{"label": "sign", "box": [x1, y1, x2, y2]}}, '
                f"got {entry}."
            )
        x1, y1, x2, y2 = numbers
        if not (0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height):
            raise InputError(f"{where}: the box {box} is not inside the image of {width} x {height} pixels.")
        boxes.append({"label": str(label), "box": numbers})
    return boxes
