"""Content-addressed images, the one safe decoder, and the one place that resizes.

Every image has *full* pixels (as given, or as cut from a parent's full pixels) and a *view*, which policy and learner
see. The view is the full image, resized once to the size that the model's family asks for (``Sizing``).
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import ExifTags, Image, ImageOps

from vtcli.config.bounds import OutOfBounds, at_least
from vtcli.errors import InputError
from vtcli.protocols import Pixels
from vtcli.schema import ImageRef
from vtcli.store import disk

MAX_DECODED_PIXELS = 100_000_000
"""Larger images are refused before their pixels are decoded."""

MAX_ASPECT_RATIO = 200
"""The longer side over the shorter one, of an image that ``smart_resize`` takes."""

SAMPLED = "sampled.json"
"""A file in a folder of images, of a run that kept those of some trajectories. It lists their ids."""

Sizing = Callable[[int, int], tuple[int, int]]
"""A view's ``(height, width)`` from its image's: a model family's rule. Raises ``InputError`` for sizes it refuses."""

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Area of a view in pixels."""

    min_pixels: int = 3136  # Qwen2.5-VL preprocessor_config.json
    max_pixels: int = 12845056  # the same

    def __post_init__(self) -> None:
        at_least(1, self, "min_pixels", "max_pixels")
        if self.min_pixels > self.max_pixels:
            raise OutOfBounds("min_pixels", f"must be at most max_pixels={self.max_pixels}, got {self.min_pixels}.")


def as_given(height: int, width: int) -> tuple[int, int]:
    """The rule by which every image is its own view."""
    return height, width


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The view's ``(height, width)``: multiples of ``factor``, area within the limits, aspect kept where possible.

    The rule of Qwen2-VL's image processor (transformers, ``qwen2_vl``), reproduced value for value: sides are rounded
    half to even. Where the area leaves the limits, both sides are scaled by the square root of the excess. They are
    then rounded inwards (down when too large, up when too small), and a side is never 0.

    Raises ``InputError`` where the sides differ by more than a factor of 200, which that processor refuses as well.
    """
    require_aspect(height, width)
    # Python's ``round`` is half to even, as the processor's: rounding half up would change some views by ``factor``.
    rows, columns = round(height / factor), round(width / factor)
    area = rows * columns * factor * factor
    if area > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        rows = max(1, math.floor(height / shrink / factor))
        columns = max(1, math.floor(width / shrink / factor))
    elif area < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        rows = math.ceil(height * grow / factor)
        columns = math.ceil(width * grow / factor)
    return rows * factor, columns * factor


class ImageShapeError(InputError):
    """An image has a shape that no model can be shown. A tool's picture of such a shape fails the policy's call."""


def require_aspect(height: int, width: int) -> None:
    """Raises ``ImageShapeError`` for an empty side, and for sides that differ by more than a factor of 200."""
    if min(height, width) < 1 or max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise ImageShapeError(
            f"An image of {width} x {height} pixels cannot be shown to the model: "
            f"its longer side may be at most {MAX_ASPECT_RATIO} times the shorter one. Crop or pad it."
        )


def decode(data: bytes, where: str) -> Pixels:
    """Decodes image bytes to ``(H, W, 3)`` RGB: upright by EXIF, alpha over white, 16 bits scaled to 8.

    ``where``: the origin of the bytes, for the messages. Checks the size before it decodes any pixel.

    Raises:
        InputError: empty bytes, no image or a truncated one, more than 100 million pixels, or values of unknown range
            (floating-point TIFF).
    """
    image = _open(data, where)
    try:
        image.load()
        # Upright, as every viewer shows it: boxes of people refer to that.
        image = ImageOps.exif_transpose(image)
        return np.array(_to_rgb(image), dtype=np.uint8)
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, ... on broken data
        raise _undecodable(where, error) from error


def size(data: bytes, where: str) -> tuple[int, int]:
    """Width and height as ``decode`` gives them, upright; only the header is read. Raises ``InputError`` as it does."""
    return _upright(_open(data, where), data, where)


def _upright(image: Image.Image, data: bytes, where: str) -> tuple[int, int]:
    if image.format == "TIFF" or not _may_be_turned(image, data):  # Pillow gives the upright sizes of a TIFF itself
        return image.width, image.height
    try:
        described = _without_pixels(data) if image.format == "PNG" else image
        sideways = described.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
    except Exception as error:  # as in decode
        raise _undecodable(where, error) from error
    return (image.height, image.width) if sideways else (image.width, image.height)


def _may_be_turned(image: Image.Image, data: bytes) -> bool:
    """False for a PNG without any of the chunks that tell an orientation."""
    return image.format != "PNG" or any(chunk in data for chunk in _ORIENTED)


_ORIENTED = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
"""Names of a PNG's chunk and texts in which Pillow looks for an orientation."""


def _without_pixels(png: bytes) -> Image.Image:
    """One pixel with the orientation and the texts of a PNG. They may stand behind its pixels, all of which Pillow
    decodes on the way to them."""
    dot = encode_png(np.zeros((1, 1, 3), dtype=np.uint8))
    at, kept = 8, list[bytes]()  # behind the signature; a chunk is its length, its name, its data and a checksum
    while at + 12 <= len(png) and (name := png[at + 4 : at + 8]) != b"IEND":
        end = at + 12 + int.from_bytes(png[at : at + 4], "big")
        if name in (b"eXIf", b"tEXt", b"zTXt", b"iTXt"):
            kept.append(png[at:end])
        at = end
    begin = dot.index(b"IDAT") - 4
    return Image.open(io.BytesIO(dot[:begin] + b"".join(kept) + dot[begin:]), formats=("PNG",))


def check(data: bytes, where: str) -> None:
    """The checks of ``decode`` at a fraction of its time: PNG by its checksums, other formats decoded in full."""
    image = _open(data, where)
    try:
        if image.format == "PNG":
            image.verify()
        else:
            image.load()
    except Exception as error:  # as in decode
        raise _undecodable(where, error) from error


def check_ends(data: bytes, where: str) -> tuple[int, int]:
    """Width and height as ``size`` gives them, of an image that is whole. Mostly it is not decoded: PNG is checked by
    its checksums, JPEG by the marker at its end. A JPEG without it and other formats are decoded. A JPEG that is
    damaged inside is found when it is read, if at all.

    Raises:
        InputError: as ``decode``.
    """
    image = _open(data, where)
    if image.format != "JPEG" or b"\xff\xd9" not in data[-END_BYTES:]:
        check(data, where)
    return _upright(image, data, where)


END_BYTES = 64
"""Bytes in which a JPEG's end is looked for. Some writers add a few behind it."""


def ending(data: bytes, where: str) -> str:
    """The ending of a file with this image: png, jpg, webp. Raises ``InputError`` for other bytes."""
    name = (_open(data, where).format or "png").lower()
    return "jpg" if name in ("jpeg", "mpo") else name


def encode_png(pixels: Pixels) -> bytes:
    """``(H, W, 3)`` uint8 to PNG; the same pixels give the same bytes."""
    buffer = io.BytesIO()
    Image.fromarray(_require_rgb(pixels)).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()


def resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """Bicubic, as the processors of the Qwen-VL families do it; the same array when the size is right already."""
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC), dtype=np.uint8)


def image_file(root: Path, sha: str) -> Path:
    """The file of an image below a folder of images."""
    return root / sha[:2] / f"{sha}.png"


class ImageFolders(Protocol):
    """Folders of images that come and go (``vtcli.store.retention``)."""

    def place(self, sha: str) -> Path: ...  # where an image is written

    def find(self, sha: str) -> Path: ...  # where it is read

    def stays(self, sha: str) -> bool: ...  # as long as one that is written now


class ImageStore:
    """PNG files at ``root/ab/<sha256>.png``, named by the sha256 of the file, each written once. With ``folders`` they
    lie there instead.

    Safe for threads and for processes that share ``root``. Arrays that come out are read-only: copy before drawing.
    """

    def __init__(
        self,
        root: Path | str,
        sizing: Sizing = as_given,
        cache_mb: int = 64,
        folders: ImageFolders | None = None,
    ) -> None:
        self.root = Path(root)
        self._folders = folders
        self._sizing = sizing
        self._cache: OrderedDict[str, Pixels] = OrderedDict()
        self._cached_bytes = 0
        self._cache_limit = cache_mb * 1_000_000
        self._guard = threading.Lock()

    def add(self, pixels: Pixels, parent: int | None = None, transform: Mapping[str, Any] | None = None) -> ImageRef:
        """Stores ``(H, W, 3)`` pixels and their view.

        Raises:
            ImageShapeError: a shape that the model cannot be shown.
            InputError: no RGB pixels of 8 bits, or disk trouble.
        """
        height, width = _require_rgb(pixels).shape[:2]
        view_height, view_width = self._sizing(height, width)
        full = self._put(pixels)
        # The view of an image that has the right size is the image: no second file, and no second resize.
        view = full
        if (view_height, view_width) != (height, width):
            view = self._put(resize(pixels, view_height, view_width))
        return ImageRef(full, view, width, height, view_width, view_height, parent, transform)

    def add_encoded(self, data: bytes, where: str) -> ImageRef:
        """As ``add(decode(data, where))``, and errors say ``where``; a plain RGB PNG is kept as it is, undecoded when
        it is its own view."""
        image = _open(data, where)
        self.outline_of(*_upright(image, data, where), where)  # refuses its shape
        height, width = image.height, image.width
        # Such bytes do not show the pixels that ``decode`` gives, so they cannot be their own view.
        if image.mode != "RGB" or _may_be_turned(image, data) or b"tRNS" in data:
            return self.add(decode(data, where))
        view_height, view_width = self._sizing(height, width)
        if (view_height, view_width) == (height, width):
            full = view = self._keep(data)
        else:
            pixels = decode(data, where)  # before it is kept: it may be damaged
            full, view = self._keep(data), self._put(resize(pixels, view_height, view_width))
            self._remember(full, pixels)
        return ImageRef(full, view, width, height, view_width, view_height)

    def outline(self, data: bytes, where: str) -> ImageRef:
        """An image's sizes and those of its view, from its header; nothing is stored, and it has no content.

        Raises ``InputError`` for bytes that are not an image, or have a shape that the model cannot be shown."""
        return self.outline_of(*size(data, where), where)

    def outline_of(self, width: int, height: int, where: str) -> ImageRef:
        """As ``outline``, of an image whose sides are known."""
        try:
            view_height, view_width = self._sizing(height, width)
        except InputError as error:
            raise InputError(f"The image {where} is refused. {error}") from error
        return ImageRef("", "", width, height, view_width, view_height)

    def full(self, ref: ImageRef) -> Pixels:
        """``(H, W, 3)``, the original pixels."""
        return self._get(ref.full)

    def view(self, ref: ImageRef) -> Pixels:
        """``(H, W, 3)``, what the model sees."""
        return self._get(ref.view)

    def path(self, sha: str) -> Path:
        """The file of ``ImageRef.full`` or ``.view``."""
        return image_file(self.root, sha) if self._folders is None else self._folders.find(sha)

    def has(self, refs: Iterable[ImageRef]) -> bool:
        """Returns True if the files of all images are there, and stay as long as new ones."""
        stays = self._folders.stays if self._folders else lambda sha: image_file(self.root, sha).exists()
        return all(stays(sha) for ref in refs for sha in {ref.full, ref.view})

    def dropped(self, refs: Iterable[ImageRef]) -> bool:
        """Returns True if these images were not kept on purpose: the run kept a sample, and a file is missing."""
        return (self.root / SAMPLED).exists() and not self.has(refs)

    def _place(self, sha: str) -> Path:
        return image_file(self.root, sha) if self._folders is None else self._folders.place(sha)

    def _put(self, pixels: Pixels) -> str:
        sha = self._keep(encode_png(pixels))
        self._remember(sha, np.array(pixels, dtype=np.uint8))
        return sha

    def _keep(self, data: bytes) -> str:
        sha = hashlib.sha256(data).hexdigest()
        path = self._place(sha)
        if not path.exists():
            # No fsync for each image: the artifact's commit syncs all of them, and a torn file fails its sha256.
            disk.write_atomic(path, data, durable=False)
        return sha

    def _get(self, sha: str) -> Pixels:
        with self._guard:
            if sha in self._cache:
                self._cache.move_to_end(sha)
                return self._cache[sha]
        path = self.path(sha)
        with disk.checked(path, "read the image"):
            data = path.read_bytes()
        # On every read from the disk, because images of a run are not synced one by one and a kill may tear them.
        if hashlib.sha256(data).hexdigest() != sha:
            raise InputError(f"The image {path} lacks the sha256 it is named by: it is damaged. Remove it.")
        pixels = decode(data, str(path))
        self._remember(sha, pixels)
        return pixels

    def _remember(self, sha: str, pixels: Pixels) -> None:
        # The cache hands out one array to many rollouts, and a tool that draws on it would draw into all of them.
        pixels.flags.writeable = False
        with self._guard:
            if sha not in self._cache:
                self._cache[sha] = pixels
                self._cached_bytes += pixels.nbytes
            # One image always stays, even if it exceeds the limit alone: its caller is about to use it.
            while self._cached_bytes > self._cache_limit and len(self._cache) > 1:
                self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes


def _open(data: bytes, where: str) -> Image.Image:
    """Header only, size checked."""
    if not data:
        raise InputError(f"The image {where} has zero bytes. Give a PNG, JPEG, WEBP, BMP, TIFF or GIF image.")
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise _too_large(where, str(error)) from error
    except Exception as error:  # as in decode
        raise _undecodable(where, error) from error
    if image.width * image.height > MAX_DECODED_PIXELS:
        raise _too_large(where, f"{image.width} x {image.height}")
    if image.mode in ("F", "I"):  # of TIFF: floating-point, signed, or of 32 bits
        kind = "floating-point" if image.mode == "F" else "signed or 32-bit"
        raise InputError(
            f"The image {where} has {kind} values, so the value of white is unknown. Save it with 8 bits, or with 16 "
            "bits without a sign."
        )
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # grey
        grey = np.asarray(image).astype(np.int64)
        return Image.fromarray(((grey + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        paper = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, layer).convert("RGB")
    return image.convert("RGB")


def _require_rgb(pixels: Pixels) -> Pixels:
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise InputError(f"Pixels must be (H, W, 3) uint8 with H, W >= 1; got {pixels.shape} {pixels.dtype}.")
    if 0 in pixels.shape:
        raise ImageShapeError(f"An image of {pixels.shape[1]} x {pixels.shape[0]} pixels cannot be shown: it is empty.")
    return pixels


def _too_large(where: str, size: str) -> InputError:
    return InputError(
        f"The image {where} is too large ({size}); at most {MAX_DECODED_PIXELS // 1_000_000} million pixels "
        f"are decoded. Scale it down first."
    )


def _undecodable(where: str, error: Exception) -> InputError:
    said = re.sub(r" <_io\.BytesIO object at \w+>", "", str(error))  # an address would differ from run to run
    return InputError(
        f"The image {where} cannot be decoded ({type(error).__name__}: {said}). It is damaged, cut off, "
        f"or not one of {', '.join(FORMATS)}."
    )
