"""Parquet files of samples and demonstrations: their columns, the check of their rows, writing and reading.

Files are equal byte by byte for equal rows. They carry the features metadata with which
``datasets.load_dataset("parquet", data_files=...)`` decodes the images.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from vtcli.errors import InputError
from vtcli.foreign import load_json
from vtcli.protocols import ALONE, Ranks
from vtcli.store import disk, encoded, images, videos

Row = TypeVar("Row")

ROW_GROUP = 32
"""Number of rows that are read together, at most. Training reads rows at random."""

ROW_GROUP_BYTES = 4 * 2**20
"""Bytes of images in a row group of more than one row, at most: of large images a row is read alone."""

ROWS_WITHOUT_BYTES = 1024
"""Rows of a row group whose images are files. Groups of 32 of them would cost 3 kB of memory a row."""

CHAT_MARKER = re.compile(r"<\|[A-Za-z0-9_]+\|>")
"""Markers that chat templates reserve, for example ``<|im_end|>`` or ``<|image_pad|>``. Text from data must not contain
them."""

BadRows = Literal["error", "skip", "when_read"]
"""The effect of a row that cannot be used: it ends the run at the start, or is left out. ``when_read`` is as ``error``,
but an image is checked when it is read, so that the start reads none."""

ROLES = ("system", "user", "assistant", "tool")

_TEXT = pa.string()
_IMAGES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", _TEXT)]))
_VIDEOS = pa.list_(
    pa.struct(
        [
            ("video", _TEXT),  # see ``vtcli.store.videos``; verl reads a video under this key
            ("size", pa.int64()),  # bytes
            ("width", pa.int64()),
            ("height", pa.int64()),
            ("frames", pa.int64()),
            ("frames_per_s", pa.float64()),
        ]
    )
)
_MESSAGES = pa.list_(pa.struct([("role", _TEXT), ("content", _TEXT)]))

SAMPLE_SCHEMA = pa.schema(
    [
        ("id", _TEXT),
        ("data_source", _TEXT),
        ("ability", _TEXT),
        ("prompt", _MESSAGES),
        ("images", _IMAGES),
        ("videos", _VIDEOS),
        ("reward_model", pa.struct([("style", _TEXT), ("ground_truth", _TEXT)])),
        (
            "extra_info",
            pa.struct(
                [
                    ("index", pa.int64()),
                    ("split", _TEXT),
                    ("form", _TEXT),
                    ("question", _TEXT),
                    ("answer", _TEXT),
                    ("truth", _TEXT),  # JSON
                    ("tools", pa.list_(_TEXT)),
                ]
            ),
        ),
    ]
)

LATER = frozenset({"videos"})
"""Columns that older artifacts lack; their rows are read without them."""

IMAGE_FILES = pa.field(
    encoded.COLUMN,
    pa.list_(pa.struct([("sha256", _TEXT), ("size", pa.int64()), ("width", pa.int64()), ("height", pa.int64())])),
)
"""A column of files whose images are as they came (``vtcli.store.encoded``)."""

DEMO_SCHEMA = pa.schema([("id", _TEXT), ("messages", _MESSAGES), ("images", _IMAGES), ("tools", _TEXT)])

UNLEARNT_SCHEMA = DEMO_SCHEMA.append(pa.field("unlearnt", pa.list_(pa.int64())))
"""Demonstrations of a teacher that makes mistakes: the messages of a row that are shown and not imitated."""


def write(path: Path, schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> int:
    """Checks and writes ``rows`` of ``SAMPLE_SCHEMA`` or ``DEMO_SCHEMA``; returns their number. The file is complete or
    absent.

    Raises:
        InputError: an unusable row, a repeated id, or disk trouble.
    """
    schema = with_features(schema)
    seen: set[str] = set()
    with disk.replaced(path) as temp, _writer(temp, schema) as writer:
        for batch in _row_groups(rows, _image_bytes, _group_rows(schema)):
            for row in batch:
                _require_row(row, seen, schema, path)
            writer.write_table(pa.Table.from_pylist(batch, schema=schema), row_group_size=len(batch))
    return len(seen)


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, version="2.6", compression="zstd", use_dictionary=False)


def _require_row(row: Mapping[str, Any], seen: set[str], schema: pa.Schema, path: Path) -> None:
    problem = f"the id {row['id']!r} occurs twice" if row["id"] in seen else row_problem(row, schema)
    if problem:
        raise InputError(f"Row {len(seen)} (id {row['id']!r}) cannot be written to {path}: {problem}.")
    seen.add(row["id"])


def _group_rows(schema: pa.Schema) -> int:
    """The most rows of a row group. Images that are held end a group by ``ROW_GROUP_BYTES``."""
    return ROWS_WITHOUT_BYTES if encoded.COLUMN in schema.names else ROW_GROUP


def _row_groups(rows: Iterable[Row], image_bytes: Callable[[Row], int], most: int) -> Iterator[list[Row]]:
    """The rows in row groups of ``most`` rows and ``ROW_GROUP_BYTES``: a function of the rows alone."""
    group: list[Row] = []
    size = 0
    for row in rows:
        added = image_bytes(row)
        if group and (len(group) == most or size + added > ROW_GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(row)
        size += added
    if group:
        yield group


def _image_bytes(row: Mapping[str, Any]) -> int:
    return sum(len(image["bytes"] or b"") for image in row["images"] or () if image)


def with_features(schema: pa.Schema) -> pa.Schema:
    """The schema with the metadata by which ``datasets`` decodes its images."""
    features = {field.name: _feature(field.type) for field in schema}
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def _feature(kind: pa.DataType) -> dict[str, Any]:
    """The metadata that `datasets` >= 4 stores and reads."""
    if kind == _IMAGES.value_type:
        return {"_type": "Image"}
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    if pa.types.is_struct(kind):
        return {field.name: _feature(field.type) for field in kind}
    return {"dtype": str(kind), "_type": "Value"}


def row_problem(row: Mapping[str, Any], schema: pa.Schema, pixels: bool = True) -> str | None:
    """The reason why a row cannot be used, in words; None when it can. PNG images are checked by their checksums, or
    only counted (``pixels=False``). Of images as they came, files are looked for. A demonstration with a video may have
    no images: code fetches its frames, and some demonstrations fetch none."""
    if not row["id"]:
        return "it has no id"
    facts = row.get(encoded.COLUMN)
    if facts is not None and (wrong := encoded.problem(row["images"] or (), facts)):
        return wrong
    pngs = [image.get("bytes") if image else None for image in row["images"] or ()]
    if not pngs and not row.get("videos") and "messages" not in schema.names:
        return "it has no image and no video"
    try:
        for number, png in enumerate(pngs if pixels and facts is None else ()):
            images.check(png or b"", f"{number}")
    except InputError as error:
        return str(error).rstrip(".")
    return _demo_problem(row, len(pngs)) if "messages" in schema.names else _text_problem(row)


def _unshown(row: Mapping[str, Any], outline: Callable[[int, int, str], object]) -> str | None:
    """The reason why ``outline`` refuses an image of a row that has no other problem; None where it takes all."""
    facts = row.get(encoded.COLUMN)
    try:
        for number, image in enumerate(row["images"] or ()):
            known = (facts[number]["width"], facts[number]["height"]) if facts else None
            width, height = known or images.size(image["bytes"], f"{number}")
            outline(width, height, f"{number}")
    except InputError as error:
        return str(error).rstrip(".")
    return None


def _text_problem(row: Mapping[str, Any]) -> str | None:
    info = row["extra_info"] or {}
    for name in ("split", "form", "question", "answer", "truth"):
        if not isinstance(info.get(name), str):
            return f"extra_info.{name} is missing"
    for name in ("question", "answer"):
        if marker := CHAT_MARKER.search(info[name]):
            return f"its {name} contains the chat marker {marker.group()}, which could forge a turn or an image"
        for medium in ("image", "video") if row.get("videos") else ("image",):
            if f"<{medium}>" in info[name]:
                return f"its {name} contains <{medium}>, which stands for the {medium}; take it out of the text"
    try:
        truth = load_json(info["truth"])
    except ValueError as error:
        return f"extra_info.truth is not JSON ({error})"
    return None if isinstance(truth, dict) else "extra_info.truth is not a JSON object"


def _demo_problem(row: Mapping[str, Any], image_count: int) -> str | None:
    messages = row["messages"] or []
    placeholders = sum((message["content"] or "").count("<image>") for message in messages)
    if placeholders != image_count:
        return f"it has {placeholders} <image> placeholders and {image_count} images; give one for each"
    for message in messages:
        if message["role"] not in ROLES or message["content"] is None:
            return f"it has a message with the role {message['role']!r}; roles are {', '.join(ROLES)}, content is text"
        if marker := CHAT_MARKER.search(message["content"]):
            return f"a message contains the chat marker {marker.group()}, which could forge a turn or an image"
    try:
        load_json(row["tools"] or "[]")
    except ValueError as error:
        return f"its tools are not JSON ({error})"
    turns = {number for number, message in enumerate(messages) if message["role"] == "assistant"}
    unlearnt = set(row.get("unlearnt") or ())
    if not unlearnt <= turns:
        return f"unlearnt is {sorted(unlearnt)}; its assistant messages are {sorted(turns)}"
    return None if turns - unlearnt else "it has no assistant message to learn from"


@contextmanager
def _readable(path: Path) -> Generator[None]:
    """Turns errors about damage into ``InputError``. pyarrow raises its own errors, ``ValueError``, and ``OSError``
    without a number."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise disk.io_error(error, path, "read") from error
        raise InputError(
            f"The Parquet file {path} cannot be read ({error}): it is cut off or damaged. Make the artifact again."
        ) from error


@dataclass(frozen=True, slots=True)
class _RowCheck:
    """Result of the check of one row; ``problem`` is None for a usable one."""

    group: int
    offset: int
    id: str
    problem: str | None


class ParquetTable:
    """Rows of one Parquet file. All are checked when it is opened, and then read at random by row group.

    Each of several ranks checks its share of the row groups; they open a table together. With ``when_read`` the
    check reads no image: ``image`` checks it when it is read. ``outline`` raises ``InputError`` for an image's width
    and height that the model cannot be shown.
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        bad_rows: BadRows,
        ranks: Ranks = ALONE,
        outline: Callable[[int, int, str], object] | None = None,
    ) -> None:
        self.path, self._schema, self._guard, self._outline = path, schema, threading.Lock(), outline
        self._lazy, self._whole = bad_rows == "when_read", bad_rows == "skip"
        with _readable(path):
            self._file = pq.ParquetFile(path)
            self._require_columns()
        self.columns: tuple[str, ...] = tuple(self._file.schema_arrow.names)
        self._read_group = lru_cache(maxsize=4)(self._read)
        self.bad = self._merge(self._checked_by_all(ranks))
        if self.bad and bad_rows != "skip":
            shown = "\n".join(f"  {line}" for line in self.bad[:5])
            raise InputError(
                f"{len(self.bad)} of {len(self.bad) + len(self.ids)} rows of {path} cannot be used:\n{shown}\n"
                "Fix them, or leave them out: filter.bad_rows=skip, likewise in synth, rl and eval."
            )

    def row(self, index: int, *columns: str) -> dict[str, Any]:
        """One row, or some columns of it; images are read only with their column. Raises ``InputError`` for an image
        whose file is missing or has changed."""
        group, offset = self._groups[index], self._offsets[index]
        if "images" in columns and encoded.COLUMN in self.columns:
            columns = (*columns, "id", encoded.COLUMN)
        with self._guard, _readable(self.path):
            row = self._read_group(group, *columns).slice(offset, 1).to_pylist()[0]
        return encoded.filled(row, str(self.path)) if "images" in row else row

    def images(self, index: int) -> list[bytes]:
        """The images of one row, encoded."""
        return [image["bytes"] for image in self.row(index, "images")["images"] or ()]

    def _read(self, group: int, *columns: str) -> pa.Table:
        return self._file.read_row_group(group, columns=list(columns) or None)

    def image(self, data: bytes, where: str) -> bytes:
        """The bytes of an image that was read. Raises ``InputError`` for a damaged image that was not checked
        before."""
        if self._lazy:
            images.check(data or b"", where)
        return data

    def rows(self, *columns: str, part: range | None = None) -> Iterator[dict[str, Any]]:
        """Some columns of all usable rows in order, or of a part of them, a row group at a time. Images come as they
        are held."""
        part = range(len(self.ids)) if part is None else part
        chosen = zip(self._groups[part.start : part.stop], self._offsets[part.start : part.stop], strict=True)
        for group, places in groupby(chosen, itemgetter(0)):
            with self._guard, _readable(self.path):
                found = self._read(group, *columns).to_pylist()
            yield from (found[offset] for _, offset in places)

    def column(self, name: str) -> Iterator[Any]:
        """One column of all usable rows, a row group at a time; nothing else is read."""
        return (row[name] for row in self.rows(name))

    def copy(self, path: Path, indices: Iterable[int]) -> None:
        """Writes some rows, in this file's order and with all its columns and metadata, to another file, which is
        complete or absent. Raises ``InputError`` for disk trouble."""
        by_group: dict[int, list[int]] = {}
        for index in sorted(set(indices)):  # rows are numbered in the file's order
            by_group.setdefault(self._groups[index], []).append(self._offsets[index])
        schema = self._file.schema_arrow
        with disk.replaced(path) as temp, _writer(temp, schema) as writer:
            for batch in _row_groups(self._rows(by_group), lambda row: row.nbytes, _group_rows(schema)):
                writer.write_table(pa.concat_tables(batch), row_group_size=len(batch))

    def _rows(self, by_group: Mapping[int, Sequence[int]]) -> Iterator[pa.Table]:
        """Tables of one row each."""
        for group, offsets in by_group.items():
            with self._guard, _readable(self.path):
                table = self._read_group(group)
            yield from (table.slice(offset, 1) for offset in offsets)

    def _require_columns(self) -> None:
        have = self._file.schema_arrow
        wrong = [
            f.name
            for f in self._schema
            if (have.field(f.name).type != f.type if f.name in have.names else f.name not in LATER)
        ]
        if wrong:
            raise InputError(
                f"The Parquet file {self.path} lacks the columns {', '.join(wrong)}, or has them with other types; "
                f"it needs {', '.join(self._schema.names)}. Make the artifact with this version of vtcli."
            )

    def _checked_by_all(self, ranks: Ranks) -> list[_RowCheck]:
        """The rows of the file in order. A rank that cannot read its share tells all."""
        share = range(ranks.rank, self._file.num_row_groups, ranks.world)
        own: list[_RowCheck] | str
        try:
            with _readable(self.path):
                own = [check for group in share for check in self._checked(group)]
        except InputError as error:
            own = str(error)
        everyone: list[list[_RowCheck] | str] = ranks.gather(own)
        if problem := next((part for part in everyone if isinstance(part, str)), None):
            raise InputError(problem)
        found = [check for part in everyone if not isinstance(part, str) for check in part]
        return sorted(found, key=lambda check: (check.group, check.offset))

    def _checked(self, group: int) -> Iterator[_RowCheck]:
        parts = self._file.schema  # of "images" without their bytes: the paths, which say how many there are
        paths = [parts.column(i).path for i in range(len(parts.names))]
        columns = [path for path in paths if not re.fullmatch(r"images\..*\.bytes", path)] if self._lazy else None
        # A group at a time: a data set of images does not fit into memory.
        for offset, row in enumerate(self._file.read_row_group(group, columns=columns).to_pylist()):
            problem = row_problem(row, self._schema, not self._lazy)
            problem = problem or videos.problem(self.path.parent, row.get("videos"))
            if not problem and self._whole and encoded.COLUMN in row:
                problem = self._undecodable(row)
            if not problem and self._outline is not None and not self._lazy:
                problem = _unshown(row, self._outline)
            yield _RowCheck(group, offset, row["id"], problem)

    def _undecodable(self, row: dict[str, Any]) -> str | None:
        """Reads and decodes the images of a row that came as they are."""
        try:
            for number, image in enumerate(encoded.filled(row, str(self.path))["images"]):
                images.check(image["bytes"], f"{number} of row {row['id']!r}")
        except InputError as error:
            return str(error).rstrip(".")
        return None

    def _merge(self, checks: Sequence[_RowCheck]) -> tuple[str, ...]:
        """Fills ``ids`` and the places of the usable rows; returns a line for every other row."""
        self.ids: list[str] = []
        self._groups, self._offsets = array("l"), array("l")  # of the usable rows: a million tuples take 100 MB
        bad: list[str] = []
        seen: set[str] = set()
        for number, check in enumerate(checks):
            # The second one is bad, not the first, so that a file appended to itself keeps its rows.
            problem = "its id occurs twice" if check.id in seen else check.problem
            if problem:
                bad.append(f"row {number} (id {check.id!r}): {problem}")
            else:
                seen.add(check.id)
                self.ids.append(check.id)
                self._groups.append(check.group)
                self._offsets.append(check.offset)
        return tuple(bad)


def write_card(folder: Path) -> None:
    """Writes ``README.md``, whose header names the folder's files by form and split for ``datasets.load_dataset``.

    The two forms of a dataset are configurations of their own, because they are of the same images. Demonstrations are
    one configuration.
    """
    forms: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*.parquet")):
        form, _, split = path.stem.rpartition("-")
        if pq.read_metadata(path).num_rows:  # the library refuses a split without rows
            forms.setdefault(form or "default", {})[split] = path.name
    configs = [
        {"config_name": form, "data_files": [{"split": split, "path": name} for split, name in splits.items()]}
        for form, splits in forms.items()
    ]
    names = ", ".join(f'`load_dataset(FOLDER, "{form}")`' for form in forms)
    header = yaml.safe_dump({"configs": configs}, sort_keys=False)
    text = f"---\n{header}---\n\nMade by vtcli. The library datasets loads it: {names}.\n"
    disk.write_atomic(folder / "README.md", text.encode())
