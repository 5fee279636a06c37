"""Images of a row of others, decoded to pixels or left as they came."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from PIL import ExifTags, Image

from vtcli.data.importers import media
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.errors import InputError
from vtcli.protocols import Pixels
from vtcli.store import images
from vtcli.store.encoded import EncodedImage

KeepImages = Literal["png", "original", "reference"]
"""The form in which a dataset holds images of others: decoded and written as PNG; as they came; or by path, where they
have a file."""


@dataclass(frozen=True, slots=True)
class RowImage:
    """One image of a row."""

    data: bytes
    file: Path | None  # its own, where it has one
    place: Place
    where: str  # for messages

    def decoded(self) -> Pixels:
        """Returns the pixels, upright by EXIF and on white. Raises ``RowProblem`` for bytes that are not an image, are
        damaged, or give a picture too narrow for every model."""
        try:
            pixels = images.decode(self.data, self.where)
        except InputError as error:
            raise RowProblem(self.place, "an image that cannot be decoded", str(error)) from error
        self._require_aspect(*pixels.shape[:2])
        return pixels

    def encoded(self, keep: KeepImages) -> EncodedImage:
        """Returns the original bytes, or their path if ``keep`` is "reference". Raises ``RowProblem`` for bytes that
        are not an image, are cut off, or give a picture too narrow for every model."""
        try:
            image = EncodedImage.of(self.data, self.where, self.file if keep == "reference" else None)
        except InputError as error:
            raise RowProblem(self.place, "an image that cannot be decoded", str(error)) from error
        self._require_aspect(image.height, image.width)
        return image

    def _require_aspect(self, height: int, width: int) -> None:
        try:
            images.require_aspect(height, width)
        except InputError as error:
            said = f"The image {self.where} is refused. {error}"
            raise RowProblem(self.place, "an image that cannot be shown", said) from error


@dataclass(frozen=True, slots=True)
class Header:
    """Width and height of an image as it is stored, and the EXIF orientation by which it is turned upright."""

    width: int
    height: int
    orientation: int  # 1: as it is

    @classmethod
    def of(cls, value: Any, finder: media.Finder, place: Place) -> Header:
        """Reads the first bytes of an image that is known to be one."""
        data, _ = media.read_file(value, "image", finder, place)
        with Image.open(io.BytesIO(data)) as image:
            found = image.getexif().get(ExifTags.Base.Orientation, 1)
            return cls(image.width, image.height, found if found in UPRIGHT else 1)


UPRIGHT: Mapping[int, tuple[str, ...]] = {
    1: (),
    2: ("hflip",),
    3: ("rot180",),
    4: ("vflip",),
    5: ("rot90", "hflip"),
    6: ("rot90",),
    7: ("rot90", "vflip"),
    8: ("rot270",),
}
"""Transforms that turn an image of an EXIF orientation upright."""


class DecodedWhenRead(Sequence[Pixels]):
    """The pixels of images, each decoded when it is looked at. Raises ``RowProblem`` as ``RowImage.decoded``."""

    def __init__(self, images: Sequence[RowImage]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, index: int) -> Pixels: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Pixels]: ...
    def __getitem__(self, index: int | slice) -> Pixels | Sequence[Pixels]:
        return DecodedWhenRead(self._images[index]) if isinstance(index, slice) else self._images[index].decoded()


def held(
    given: Sequence[Any], keep: KeepImages, finder: media.Finder, place: Place
) -> tuple[Sequence[Pixels], tuple[EncodedImage, ...]]:
    """Returns the pixels of a row's images, in order, and their original encodings (empty if ``keep`` is "png").
    Unless ``keep`` is "png", an image is decoded only when its pixels are read.

    Raises:
        RowProblem: as ``media.read_file``, ``RowImage.decoded`` and ``RowImage.encoded``.
    """
    found: list[RowImage] = []
    for number, value in enumerate(given):
        data, file = media.read_file(value, f"image {number}" if number else "image", finder, place)
        found.append(RowImage(data, file, place, f"{number} of {place}" if number else f"of {place}"))
    if keep == "png":
        return tuple(image.decoded() for image in found), ()
    return DecodedWhenRead(found), tuple(image.encoded(keep) for image in found)
