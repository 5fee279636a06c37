"""Collecting the images of a run: figures, shown images, saved files, values."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vtcli.protocols import Pixels
from vtcli.sandbox.harness import figures, pixels
from vtcli.sandbox.provenance.recorder import Recorder
from vtcli.sandbox.provenance.trace import Trace, scaled
from vtcli.sandbox.types import Capture, Operation, RunLimits

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
_DEPTH = 4  # folders below the workspace that are searched
_ENTRIES = 8192  # directory entries that are looked at

FileStamps = dict[str, tuple[int, int, int]]
"""Image files of the workspace by name: inode, size, time of the last change."""


@dataclass(frozen=True, slots=True)
class GalleryImage:
    """An image that a run returns: (H, W, 3) contiguous uint8 RGB, its origin, and the file's or variable's name. It
    carries the chain of operations that the recorder claims for it."""

    pixels: Pixels
    origin: Capture
    name: str = ""
    operations: tuple[Operation, ...] = ()


class Gallery:
    """The images of one run, within its limits; further ones are counted in ``dropped`` and reported in a note."""

    def __init__(self, limits: RunLimits, recorder: Recorder) -> None:
        self.limits, self.recorder = limits, recorder
        self.images: list[GalleryImage] = []
        self.dropped = 0
        self._bytes = 0

    def add(self, value: object, origin: Capture, name: str = "") -> bool:
        """A PIL image or an array; False, and a note, when it cannot be returned."""
        if not self._room():
            return False
        too_large = self._refused(*_claimed(value))
        if too_large:
            return self._drop(name, too_large)
        try:
            trace = self.recorder.of(value)
            return self._keep(pixels.of_any(value), trace, origin, name)
        except pixels.NotAnImage as problem:
            return self._drop(name, str(problem))
        except (OSError, ValueError, SyntaxError, AttributeError, TypeError) as problem:
            return self._drop(name, f"it could not be read ({type(problem).__name__})")

    def add_figure(self, figure: Any, origin: Capture) -> bool:
        """A matplotlib figure as it would be drawn on a screen."""
        if not self._room():
            return False
        too_large = self._refused(*figures.size(figure))
        if too_large:
            return self._drop("the figure", too_large)
        try:
            drawn, trace = figures.rendered(figure, self.recorder)
        except MemoryError:
            return self._drop("the figure", "it does not fit into the memory")
        return self._keep(drawn, trace, origin, "")

    def add_file(self, name: str, origin: Capture) -> bool:
        """An image file of the workspace: regular, not a link, of a size that may be decoded."""
        if not self._room():
            return False
        path = str(Path(self.recorder.root, name))
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as problem:
            return self._drop(name, f"it could not be opened ({problem.strerror})")
        with os.fdopen(fd, "rb") as file:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode) or about.st_size > self.limits.file_mb * 2**20:
                return self._drop(name, "it is no regular file of an allowed size")
            trace = self.recorder.of_file(path)
            try:
                image = Image.open(file, formats=_FORMATS)
                too_large = self._refused(*image.size)
                if too_large:
                    return self._drop(name, too_large)
                return self._keep(pixels.of_pil(image), trace, origin, name)
            except MemoryError:
                return self._drop(name, "it does not fit into the memory")
            except Exception as problem:  # decoders raise anything
                return self._drop(name, f"it is no readable image ({type(problem).__name__})")

    def _room(self) -> bool:
        if len(self.images) < self.limits.images:
            return True
        self.dropped += 1
        self.recorder.note(f"more than {self.limits.images} images were shown: the others were left out")
        return False

    def _refused(self, width: float, height: float) -> str:
        """Reason why an image of this size is not returned; empty when it is."""
        if not (width >= 1 and height >= 1):
            return "it has no pixels"
        if max(width, height) > self.limits.image_side:
            return f"its size, {width:.0f} x {height:.0f}, is over {self.limits.image_side} pixels a side"
        if max(width, height) / min(width, height) > self.limits.image_aspect:
            return (
                f"its sides, {width:.0f} x {height:.0f}, differ by more than a factor of {self.limits.image_aspect:g}"
            )
        if self._bytes + width * height * 3 > self.limits.images_mb * 2**20:
            return f"all images of a run may have {self.limits.images_mb} MB of pixels together"
        return ""

    def _drop(self, name: str, why: str) -> bool:
        self.dropped += 1
        self.recorder.note(f"{name or 'an image'} is not shown: {why}")
        return False

    def _keep(self, found: Pixels, trace: Trace | None, origin: Capture, name: str) -> bool:
        height, width = found.shape[:2]
        too_large = self._refused(width, height)
        if too_large:
            return self._drop(name, too_large)
        least = self.limits.image_min_side
        if min(width, height) < least:
            larger = least / min(width, height)
            size = (max(least, round(width * larger)), max(least, round(height * larger)))
            too_large = self._refused(*size)
            if too_large:
                return self._drop(name, too_large)
            found = np.asarray(Image.fromarray(found).resize(size, Image.Resampling.BICUBIC))
            self.recorder.note(f"an image of {width} x {height} pixels was enlarged to {size[0]} x {size[1]}")
            if trace is not None:
                arguments = {"size": list(size), "resample": int(Image.Resampling.BICUBIC), "by": "sandbox"}
                step = scaled(size, (0, 0, width, height))
                trace = trace.then("resize", arguments, "pil", size, step)
        self._bytes += found.nbytes
        chain = trace.finished() if trace is not None else ()
        self.images.append(GalleryImage(np.ascontiguousarray(found), origin, name[:200], chain))
        return True


def _claimed(value: object) -> tuple[float, float]:
    """The size that an object claims, so that an honest giant is refused before it is converted."""
    if isinstance(value, np.ndarray) and value.ndim >= 2:
        return float(value.shape[1]), float(value.shape[0])
    size = getattr(value, "size", None)
    if isinstance(size, tuple) and len(size) == 2 and all(isinstance(v, int) for v in size):
        return float(size[0]), float(size[1])
    return 1.0, 1.0  # converted, and then measured


def image_files(root: str) -> FileStamps:
    """The image files below ``root``, links not followed."""
    found: FileStamps = {}
    looked = 0
    folders: list[tuple[str, int]] = [("", 0)]
    while folders and looked < _ENTRIES:
        folder, depth = folders.pop()
        try:
            entries = os.scandir(Path(root, folder))
        except OSError:
            continue
        with entries:
            for entry in entries:
                looked += 1
                if looked >= _ENTRIES:
                    break
                name = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEPTH:
                            folders.append((name, depth + 1))
                    elif Path(entry.name).suffix.lower() in SUFFIXES:
                        about = entry.stat(follow_symlinks=False)
                        found[name] = (about.st_ino, about.st_size, about.st_mtime_ns)
                except OSError:
                    continue
    return found


def changed(before: FileStamps, after: FileStamps) -> list[str]:
    """New and changed files, the oldest first."""
    names = [name for name, about in after.items() if before.get(name) != about]
    return sorted(names, key=lambda name: (after[name][2], name))


def printed(names: Sequence[str], text: str) -> list[str]:
    """Files whose names stand in the text, in the order of their last mention (Thyme and CodeV's released code return
    only these)."""
    places = {name: max(text.rfind(name), text.rfind(Path(name).name)) for name in names}
    return sorted((n for n in names if places[n] >= 0), key=lambda n: places[n])
