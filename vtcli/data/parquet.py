"""Your own data in place of a generator: rows of (question, answer, image, optional boxes) from Parquet or JSONL.

ToolsRL trains on DocVQA, SealVQA, VisualProbe, ChartQA and ArxivQA (4.1), which are not generated but brought along::

    docvqa:
      train: 3000
      validation: 200
      generate:
        _target_: vtcli.data.parquet.generate
        path: /data/docvqa/{split}.parquet
        name: docvqa
        turn: true

Columns: ``question``, ``answer``, ``image`` (bytes, a struct with ``bytes``, or a path relative to the file), and
``boxes``, a list of ``{label, box: [x1, y1, x2, y2]}`` in pixels. Documents (``turn: true``) are rotated and flipped as
in C.1; rows with boxes are zoom targets, and an empty list says that there is nothing to search; rows with neither
have no tool-supervised form (give the task ``forms: [answer]``, as ToolsRL does with ChartQA and ArxivQA).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vtcli import images
from vtcli.data.item import FLIP, ROTATE, ZOOM, Item, item_id, stream
from vtcli.data.rotflip import TRANSFORMS
from vtcli.errors import InputError
from vtcli.protocols import Pixels
from vtcli.schema import Json


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

    Raises ``InputError`` for a missing or damaged file, too few rows, a column or image that cannot be used, and for
    the tool-supervised form of a row that has no supervision.
    """
    file = Path(path.format(split=split))
    row, where = _row(file, item), f"row {item} of {file}"
    for column in ("question", "answer", "image"):
        if row.get(column) in (None, ""):
            raise InputError(f"{where} has no {column}. Every row needs question, answer and image.")
    pixels = images.decode(_image_bytes(row["image"], file, where), f"the image of {where}")
    boxes = _boxes(row.get("boxes"), pixels, where)
    rng = stream(seed, "rotflip", split, item, purpose=2)
    coin, kind = rng.random(), 1 + int(rng.integers(5))
    limit = tool_train_augment if (form, split) == ("tool", "train") else augment
    transform = list(TRANSFORMS)[kind] if turn and coin < limit else "none"
    said = boxes or row.get("boxes") == []  # an empty list says that there is nothing to find
    truth: dict[str, Json] = {"transform": transform, "kind": "field"} if turn else {"boxes": boxes} if said else {}
    if form == "tool" and not (turn or boxes):
        raise InputError(
            f"{where} has neither boxes nor turn: true, so it has no tool-supervised form: forms: [answer]."
        )
    names = " and the ".join(box["label"] for box in boxes)
    found = ", ".join(f'"{box["label"]}": {k}' for k, box in enumerate(boxes, start=1))
    return Item(
        id=item_id(name, split, item),
        task="rotflip" if turn else "zoom" if boxes else name,
        pixels=np.ascontiguousarray(TRANSFORMS[transform](pixels)),
        question=str(row["question"]),
        tool_question="Turn the page upright. Which image is it?" if turn else f"Zoom in on the {names}.",
        answer=str(row["answer"]),
        tool_answer=str(int(transform != "none")) if turn else found,
        truth=truth,
        tools=(ROTATE, FLIP) if turn else (ZOOM,),
    )


def _row(file: Path, item: int) -> Mapping[str, Any]:
    rows, read = _opened(file)
    if item >= rows:
        raise InputError(
            f"{file} has {rows} rows, and row {item} is asked for. Lower the number of items of this split."
        )
    return read(item)


@functools.lru_cache(maxsize=8)
def _opened(file: Path) -> tuple[int, Any]:
    """The number of rows of a file and a function that reads one."""
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


def _image_bytes(image: Any, file: Path, where: str) -> bytes:
    """From bytes, a struct of `datasets` with bytes or path, or a path beside the file."""
    if isinstance(image, Mapping):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, bytes):
        return image
    if not isinstance(image, str):
        raise InputError(f"{where}: image is a {type(image).__name__}; expected bytes, a struct with bytes, or a path.")
    try:
        return (file.parent / image).read_bytes()
    except OSError as error:
        raise InputError(
            f"{where}: the image {file.parent / image} cannot be read ({error.strerror or error})."
        ) from error


def _boxes(given: Any, pixels: Pixels, where: str) -> list[dict[str, Json]]:
    """Boxes with a label, four numbers in order, and inside the image."""
    height, width = pixels.shape[:2]
    boxes: list[dict[str, Json]] = []
    for entry in given or ():
        label, box = entry.get("label"), entry.get("box")
        numbers = [v for v in box or () if isinstance(v, int | float) and not isinstance(v, bool)]
        if not label or len(numbers) != 4 or len(box) != 4:
            raise InputError(f"{where}: a box needs a label and four numbers [x1, y1, x2, y2], got {entry}.")
        x1, y1, x2, y2 = numbers
        if not (0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height):
            raise InputError(f"{where}: the box {box} is not inside the image of {width} x {height} pixels.")
        boxes.append({"label": str(label), "box": numbers})
    return boxes
