"""The only file formats between stages: JSONL of schema types, and Parquet of samples and demonstrations.

A JSONL line is ``{"schema_version": 1, "type": "Scored", "value": {...}}``; logs may be compressed. Parquet files
follow what other trainers read (verl's RL columns; ``messages`` + ``images`` for SFT). They carry the features metadata
with which ``datasets.load_dataset("parquet", data_files=...)`` decodes the images, and are equal byte by byte for equal
rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from vtcli.errors import InputError
from vtcli.foreign import load_json
from vtcli.protocols import ALONE, Ranks
from vtcli.schema import SCHEMA_VERSION, ImageRef, Sample, VideoRef
from vtcli.store import codec, compressed, disk, encoded, parquet, videos
from vtcli.store.encoded import EncodedImage
from vtcli.store.images import ImageStore
from vtcli.store.manifest import Artifact

T = TypeVar("T")


def append(path: Path, objects: Iterable[Any], *, durable: bool = True) -> int:
    """Adds one line per object and returns the file's size, which ``truncate`` takes to undo later lines. ``durable``
    waits for the disk. A file that ends with ``.zst`` gets them as one compressed frame (``vtcli.store.compressed``).

    A torn last line (the writer was killed) is cut off first. Raises ``InputError`` for disk trouble; then, as far as
    the disk lets us, the file is as it was.
    """
    data = "".join(_line(item) for item in objects).encode()
    if path.suffix == compressed.ENDING:
        data = compressed.packed(data)
    with disk.checked(path, "append to"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:  # no buffer, which `close` would write after the cut below
            start = _complete_size(file, path)
            file.truncate(start)
            try:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                if durable:
                    os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), start)
                raise
    return start + len(data)


def truncate(path: Path, size: int) -> None:
    """Drops every line after the first ``size`` bytes: what a resumed run wrote after its checkpoint."""
    with disk.checked(path, "cut"):
        if not path.exists():
            if size:
                raise InputError(f"{path} is missing; by the checkpoint it has {size} bytes. Start the run anew.")
            return
        if path.stat().st_size < size:
            raise InputError(f"{path} is shorter than the {size} bytes of the checkpoint. Start the run anew.")
        os.truncate(path, size)


def read(path: Path, *kinds: type[T]) -> Iterator[T]:
    """The objects of a file that ``append`` wrote, one after the other; each of one of ``kinds``.

    A last line without its end (the writer was killed) is left out. Raises ``InputError``, with the line's number, for
    anything else that is none of ``kinds`` in this schema version.
    """
    with disk.checked(path, "read"), path.open("rb") as file:
        for number, line in enumerate(_lines(file, path), start=1):
            if line.endswith(b"\n"):
                yield parse(line, kinds, f"{path}, line {number}")


def torn(path: Path) -> bool:
    """True if the last line lacks its end; ``read`` leaves such a line out."""
    with disk.checked(path, "read"), path.open("rb") as file:
        return _complete_size(file, path) < file.seek(0, os.SEEK_END)


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    if path.suffix != compressed.ENDING:
        yield from file
        return
    for content in compressed.unpacked(file, path):
        yield from content.splitlines(keepends=True)


def _line(item: Any) -> str:
    value = codec.encode(item)
    return json.dumps({"schema_version": SCHEMA_VERSION, "type": type(item).__name__, "value": value}) + "\n"


def parse(line: bytes, kinds: Sequence[type[T]], where: str) -> T:
    """The object of one line, of one of ``kinds``. Raises ``InputError`` with ``where`` for any other."""
    wanted = " or ".join(each.__name__ for each in kinds)
    try:
        envelope = json.loads(line)
        version, kind, value = envelope["schema_version"], envelope["type"], envelope["value"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"it has no key {error}; a {wanted} was expected" if isinstance(error, KeyError) else error
        raise InputError(
            f"{where} is not a record of vtcli ({reason}): the file is damaged or of another kind."
        ) from error
    if version != SCHEMA_VERSION:
        raise InputError(f"{where} has schema version {version}; this vtcli reads {SCHEMA_VERSION}. Make it anew.")
    cls = next((each for each in kinds if each.__name__ == kind), None)
    if cls is None:
        raise InputError(f"{where} holds a {kind}; a {wanted} was expected. Give the right file.")
    try:
        return codec.decode(cls, value)
    except ValueError as error:
        raise InputError(f"{where}: {error}. The file is damaged or was written by another version.") from error


def _complete_size(file: BinaryIO, path: Path) -> int:
    """Position of the end of the last complete line or frame; seeks backwards in steps."""
    if path.suffix == compressed.ENDING:
        return compressed.complete_size(file, path)
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


@dataclass(frozen=True, slots=True)
class Demo:
    """One demonstration: ``messages`` are ``{"role", "content"}`` with one ``<image>`` per image, in order; tool
    observations have the role "tool"; ``tools`` are OpenAI function schemas."""

    id: str
    messages: tuple[Mapping[str, str], ...]
    tools: tuple[Mapping[str, Any], ...]
    images: tuple[ImageRef, ...] = ()  # filled in by ``DemoSet.load``
    unlearnt: tuple[int, ...] = ()  # indices of assistant messages that are shown and not imitated: failed calls


Media = Sequence[bytes | EncodedImage]
"""The images of a row, and then its videos."""


def write_samples(
    path: Path, samples: Iterable[tuple[Sample, Media]], data_source: str = "vtcli", as_they_came: bool = False
) -> int:
    """Writes samples, each with the bytes of its images (``Sample.images`` is not looked at) and then of its videos;
    returns their number. With ``as_they_came`` images may be files (``vtcli.store.encoded``). Videos become files of
    their own beside ``path`` (``vtcli.store.videos``), which only the sandbox decodes: a prompt's text on them is
    taken from ``Sample.videos``.

    The file is complete or absent, and the same rows give the same bytes. Raises ``InputError`` for a sample that
    ``SampleSet`` would refuse, for a repeated id, and for disk trouble.
    """
    schema = parquet.SAMPLE_SCHEMA.append(parquet.IMAGE_FILES) if as_they_came else parquet.SAMPLE_SCHEMA
    return parquet.write(
        path,
        schema,
        (
            _sample_row(i, sample, media, path.parent, as_they_came) | {"data_source": data_source}
            for i, (sample, media) in enumerate(samples)
        ),
    )


def write_demos(
    path: Path, demos: Iterable[tuple[Demo, Media]], unlearnt: bool = False, as_they_came: bool = False
) -> int:
    """As ``write_samples``, for demonstrations. ``unlearnt``: the file has a column for such turns."""
    schema = parquet.UNLEARNT_SCHEMA if unlearnt else parquet.DEMO_SCHEMA
    schema = schema.append(parquet.IMAGE_FILES) if as_they_came else schema
    return parquet.write(path, schema, (_demo_row(demo, shown, unlearnt, as_they_came) for demo, shown in demos))


def _sample_row(index: int, sample: Sample, media: Media, folder: Path, as_they_came: bool) -> dict[str, Any]:
    count = len(media) - len(sample.videos)
    if count < 0:
        raise InputError(f"sample {sample.id} has {len(sample.videos)} videos, but the bytes of {len(media)} are given")
    pictures, clips = media[:count], [clip for clip in media[count:] if isinstance(clip, bytes)]
    return {
        "id": sample.id,
        "ability": sample.task,
        "prompt": [{"role": "user", "content": "<image>" * count + "<video>" * len(clips) + sample.question}],
        **_image_columns(pictures, as_they_came, f"of {sample.id}"),
        "videos": [videos.keep(folder, ref, data) for ref, data in zip(sample.videos, clips, strict=True)],
        "reward_model": {"style": "rule", "ground_truth": sample.answer},
        "extra_info": {
            "index": index,
            "split": sample.split,
            "form": sample.form,
            "question": sample.question,
            "answer": sample.answer,
            "truth": json.dumps(codec.encode(sample.truth)),
            "tools": list(sample.tools),
        },
    }


def _image_columns(pictures: Media, as_they_came: bool, where: str) -> dict[str, Any]:
    """``images``, and ``image_files`` where images are as they came."""
    if not as_they_came:
        return {"images": [{"bytes": picture, "path": None} for picture in pictures]}
    found = [p if isinstance(p, EncodedImage) else EncodedImage.of(p, where) for p in pictures]
    return {"images": [one.image for one in found], encoded.COLUMN: [one.facts for one in found]}


def _demo_row(demo: Demo, shown: Media, unlearnt: bool, as_they_came: bool) -> dict[str, Any]:
    return {
        "id": demo.id,
        "messages": [dict(message) for message in demo.messages],
        **_image_columns(shown, as_they_came, f"of {demo.id}"),
        "tools": json.dumps(codec.encode(demo.tools)),
    } | ({"unlearnt": list(demo.unlearnt)} if unlearnt else {})


def in_training(bad_rows: Literal["error", "skip"]) -> parquet.BadRows:
    """The reading of rows in training. Images are checked when their step reads them. Where bad rows are left out, they
    are checked first, as it must be known which ones."""
    return "when_read" if bad_rows == "error" else bad_rows


class SampleSet:
    """The samples of one form ("tool" | "answer") and split of a dataset artifact, read when asked for.

    Every row is checked at the start. ``InputError`` is raised for a missing or truncated file, and for a bad row.
    That is one without image or video, with a damaged image, a missing or shortened video, or chat markers in its
    text. An image of a shape that ``store`` refuses is bad as well. With ``bad_rows="skip"`` such rows are left out and
    listed in ``bad``. Several ranks share the check. With ``bad_rows="when_read"`` such an image is an error of the
    ``load`` that reads it. Pixels go to ``store`` when a sample is loaded; a video's content is compared with its name
    then.
    """

    checks_shapes = True

    def __init__(
        self,
        artifact: Artifact | Path,
        form: str,
        split: str,
        store: ImageStore,
        bad_rows: parquet.BadRows = "error",
        ranks: Ranks = ALONE,
    ) -> None:
        folder = artifact if isinstance(artifact, Path) else artifact.path
        path, outline = _part(folder, f"{form}-{split}"), store.outline_of if self.checks_shapes else None
        self._table = parquet.ParquetTable(path, parquet.SAMPLE_SCHEMA, bad_rows, ranks, outline)
        self._store = store
        self.ids: tuple[str, ...] = tuple(self._table.ids)
        self.bad = self._table.bad
        self._load = lru_cache(maxsize=65536)(self._load_row)

    def __len__(self) -> int:
        return len(self.ids)

    def load(self, index: int) -> Sample:
        """Sample ``index``; asked for again it is the same object, and images that went meanwhile are stored again.
        Raises ``InputError`` for an undecodable image."""
        sample = self._load(index)
        if not self._store.has(sample.images):
            _store_images(self._table.row(index), self._store, self._table)
        return sample

    def tasks(self) -> list[str]:
        """The task of every sample; no image is read."""
        return [str(task) for task in self._table.column("ability")]

    def _load_row(self, index: int) -> Sample:
        row = self._table.row(index)
        images = _store_images(row, self._store, self._table)
        return sample_of(row, images, videos.load(self._table.path.parent, row.get("videos")))


class SamplesOfAnyShape(SampleSet):
    """As ``SampleSet``; an image's shape is looked at when it is read, for where a rule drops such rows."""

    checks_shapes = False


class DemoSet:
    """The demonstrations of one split ("train" | "validation") of a demos artifact, checked like ``SampleSet``."""

    def __init__(
        self,
        artifact: Artifact | Path,
        split: str,
        store: ImageStore,
        bad_rows: parquet.BadRows = "error",
        ranks: Ranks = ALONE,
    ) -> None:
        folder = artifact if isinstance(artifact, Path) else artifact.path
        path = _part(folder, split)
        self._table = parquet.ParquetTable(path, parquet.DEMO_SCHEMA, bad_rows, ranks, store.outline_of)
        self._store = store
        self.ids: tuple[str, ...] = tuple(self._table.ids)
        self.bad = self._table.bad
        self._load = lru_cache(maxsize=65536)(self._load_row)

    def __len__(self) -> int:
        return len(self.ids)

    def messages(self, index: int) -> tuple[Mapping[str, str], ...]:
        """The messages alone; no image is read."""
        return tuple(self._table.row(index, "messages")["messages"])

    def every_messages(self) -> Iterator[Sequence[Mapping[str, str]]]:
        """The messages of all demonstrations, one after the other; no image is read."""
        return self._table.column("messages")

    def load(self, index: int) -> Demo:
        """Demonstration ``index`` with its images in the store; asked for again it is the same object."""
        return self._load(index)

    def outline(self, index: int) -> Demo:
        """As ``load``, with the sizes of its images alone: nothing is decoded or stored."""
        if encoded.COLUMN not in self._table.columns:
            row = self._table.row(index)
            return demo_of(row, _each_image(row, self._store.outline, self._table))
        row = self._table.row(index, *(name for name in self._table.columns if name != "images"))  # no file is read
        where = f"of row {row['id']!r} in {self._table.path}"
        sides = [(image["width"], image["height"]) for image in row[encoded.COLUMN] or ()]
        return demo_of(row, tuple(self._store.outline_of(*each, f"{n} {where}") for n, each in enumerate(sides)))

    def _load_row(self, index: int) -> Demo:
        row = self._table.row(index)
        return demo_of(row, _store_images(row, self._store, self._table))


def sample_of(row: Mapping[str, Any], images: tuple[ImageRef, ...] = (), clips: tuple[VideoRef, ...] = ()) -> Sample:
    """The question of a dataset's row."""
    info = row["extra_info"]
    return Sample(
        id=row["id"],
        task=row["ability"],
        form=info["form"],
        split=info["split"],
        question=info["question"],
        answer=info["answer"],
        images=images,
        tools=tuple(info["tools"] or ()),
        truth=load_json(info["truth"]),
        videos=clips,
    )


def demo_of(row: Mapping[str, Any], images: tuple[ImageRef, ...] = ()) -> Demo:
    """The demonstration of a row."""
    unlearnt = tuple(row.get("unlearnt") or ())
    return Demo(row["id"], tuple(row["messages"]), tuple(load_json(row["tools"])), images, unlearnt)


def _store_images(row: Mapping[str, Any], store: ImageStore, table: parquet.ParquetTable) -> tuple[ImageRef, ...]:
    return _each_image(row, lambda data, where: store.add_encoded(table.image(data, where), where), table)


def _each_image(
    row: Mapping[str, Any], take: Callable[[bytes, str], ImageRef], table: parquet.ParquetTable
) -> tuple[ImageRef, ...]:
    return tuple(
        take((image or {}).get("bytes") or b"", f"{number} of row {row['id']!r} in {table.path}")
        for number, image in enumerate(row["images"] or ())
    )


def _part(folder: Path, name: str) -> Path:
    path = folder / f"{name}.parquet"
    if not path.exists():
        have = sorted(p.stem for p in folder.glob("*.parquet"))
        raise InputError(f"{folder} has no {name}.parquet; it has {', '.join(have) or 'no Parquet file'}. Choose one.")
    return path
