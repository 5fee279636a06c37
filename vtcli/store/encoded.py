"""Images that a row holds as they came: their encoded bytes, or the path of a file of this machine.

The pixels of such an image are what ``images.decode`` gives for its bytes. Beside ``images`` a row then has
``image_files``: sha256, size and upright sides of each image. The artifact's digest covers them, so it covers the
content of files that it only names. Each image that is read is compared with its sha256; the start compares sizes
alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from vtcli.errors import InputError
from vtcli.store import disk, images

COLUMN = "image_files"
"""The column, which only files with such images have."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image as it came. Without ``data`` it is the file at ``path``, an absolute path of this machine."""

    data: bytes | None
    path: str | None
    sha256: str  # of the encoded bytes
    size: int  # bytes
    width: int  # pixels, upright
    height: int

    @classmethod
    def of(cls, data: bytes, where: str, file: Path | None = None) -> EncodedImage:
        """The image of some bytes. With ``file`` it is named, not held. Raises ``InputError`` for bytes that are no
        image, or are cut off (``images.check_ends``)."""
        width, height = images.check_ends(data, where)
        sha = hashlib.sha256(data).hexdigest()
        return cls(None if file else data, str(file.absolute()) if file else None, sha, len(data), width, height)

    @classmethod
    def stored(cls, image: Mapping[str, Any], facts: Mapping[str, Any]) -> EncodedImage:
        """The inverse of ``image`` and ``facts``."""
        return cls(image["bytes"], image["path"], facts["sha256"], facts["size"], facts["width"], facts["height"])

    @property
    def image(self) -> dict[str, Any]:
        """The entry in ``images``, as ``datasets`` reads it."""
        return {"bytes": self.data, "path": self.path}

    @property
    def facts(self) -> dict[str, Any]:
        """The entry in ``image_files``."""
        return {"sha256": self.sha256, "size": self.size, "width": self.width, "height": self.height}


def of_row(row: Mapping[str, Any]) -> list[EncodedImage] | None:
    """The images of a stored row; None where its file has no such images."""
    if (facts := row.get(COLUMN)) is None:
        return None
    return [EncodedImage.stored(image, fact) for image, fact in zip(row["images"] or (), facts, strict=True)]


def problem(shown: Sequence[Mapping[str, Any] | None], facts: Sequence[Mapping[str, Any]]) -> str | None:
    """The reason why the images of a row cannot be used, in words; None when they can. Files are looked for and their
    sizes compared, and nothing is read. ``shown`` are the entries of ``images``, also without their bytes."""
    if len(shown) != len(facts):
        return f"it has {len(shown)} images and {len(facts)} entries in {COLUMN}"
    for number, (image, fact) in enumerate(zip(shown, facts, strict=True)):
        if image is None or (path := image.get("path")) is None:
            continue
        try:
            size = Path(path).stat().st_size
        except OSError as error:
            return f"its image {number} is the file {path}, which cannot be read ({error.strerror}). {_MEND}"
        if size != fact["size"]:
            return f"its image {number} is the file {path}, which has {size} bytes instead of {fact['size']}. {_MEND}"
    return None


_MEND = "Put it back as it was, or import again, with synth.keep_images=original for a copy of all images"


def changes(folder: Path) -> list[str]:
    """The images that the rows of an artifact name and that are not what they were: a line for each file, read once."""
    found: list[str] = []
    known: set[tuple[str, str]] = set()
    for table in sorted(folder.glob("*.parquet")):
        file = pq.ParquetFile(table)
        if COLUMN not in file.schema_arrow.names:
            continue
        for batch in file.iter_batches(columns=["id", "images.list.element.path", COLUMN]):
            for row in batch.to_pylist():
                for image, fact in zip(row["images"] or (), row[COLUMN], strict=True):
                    path, sha = image["path"], fact["sha256"]
                    if path is None or (path, sha) in known:
                        continue
                    known.add((path, sha))
                    try:
                        with Path(path).open("rb") as opened:
                            same = hashlib.file_digest(opened, "sha256").hexdigest() == sha
                    except OSError as error:
                        found.append(f"{path}, of row {row['id']!r} in {table.name}: {error.strerror}")
                        continue
                    if not same:
                        found.append(f"{path}, of row {row['id']!r} in {table.name}: changed")
    return found


def filled(row: dict[str, Any], where: str) -> dict[str, Any]:
    """The row with the bytes of all its images, as if it held them itself. ``where`` names its file.

    Raises:
        InputError: a file that is missing or has changed.
    """
    if (found := of_row(row)) is not None:
        where = f"of row {row['id']!r} in {where}" if "id" in row else f"of a row in {where}"
        row["images"] = [{"bytes": _bytes(image, f"{n} {where}"), "path": None} for n, image in enumerate(found)]
    return row


def _bytes(image: EncodedImage, where: str) -> bytes:
    """The encoded bytes, read from the image's file where they are not held."""
    if image.data is not None:
        return image.data
    path = Path(image.path or "")
    if not path.is_file():
        raise InputError(f"The image {where} is the file {path}, which is missing. {_MEND}.")
    with disk.checked(path, "read the image"):
        data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != image.sha256:
        raise InputError(f"The image {where} is the file {path}, which has changed since it was imported. {_MEND}.")
    return data
