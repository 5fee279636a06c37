"""Pixels in memory files: the sealed input pictures, which all episodes of a group share, and the arena. A worker
writes the images of a run into the arena.

The host copies an arena's images with ``pread`` and reads only the copies. A worker that keeps writing changes pixels
that it could have chosen anyway.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vtcli.protocols import Pixels
from vtcli.sandbox.protocol.frames import ProtocolError
from vtcli.sandbox.protocol.replies import ArenaImage
from vtcli.sandbox.types import RunLimits

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
PAGE = mmap.PAGESIZE


def sealed(data: bytes | memoryview) -> int:
    """A descriptor of a memory file that holds ``data`` and can never be changed again."""
    fd = os.memfd_create("vtcli-in", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _write(fd, memoryview(data).cast("B"), 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sealed_picture(pixels: Pixels) -> int:
    """``sealed`` of a picture (H, W, 3)."""
    return sealed(np.ascontiguousarray(pixels).data)


def mapped(fd: int, height: int, width: int) -> Pixels:
    """The picture (H, W, 3) in a file of ``sealed_picture``, read-only and without a copy. ``fd`` may be closed.

    The mapping is private: kernels before 6.7 refuse a shared one of a file that is sealed against writing."""
    memory = mmap.mmap(fd, height * width * 3, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    _MAPPED.append(memory)
    return np.frombuffer(memory, np.uint8).reshape(height, width, 3)


_MAPPED: list[mmap.mmap] = []
"""Never freed. Python closes a mapping's own descriptor when it frees it; a worker has closed all of its guard's, so
the number may be another file's by then."""


@dataclass(slots=True)
class _SealedFile:
    fd: int
    alive: weakref.ref[Pixels]


class SealedPixels:
    """The sealed files of pictures that cannot change (``flags.writeable`` is False), so that the G episodes of a group
    share one copy. A file is closed when its array is gone. Not for use by several threads."""

    def __init__(self) -> None:
        self._kept: dict[int, _SealedFile] = {}

    def fd(self, pixels: Pixels) -> tuple[int, bool]:
        """The file's descriptor and whether the caller must close it."""
        # Its content may change while the file is shared, so it gets a file that only this caller uses.
        if pixels.flags.writeable:
            return sealed_picture(pixels), True
        key = id(pixels)
        kept = self._kept.get(key)
        if kept is None or kept.alive() is not pixels:
            self._drop(key)
            kept = _SealedFile(sealed_picture(pixels), weakref.ref(pixels, lambda _: self._drop(key)))
            self._kept[key] = kept
        return kept.fd, False

    def _drop(self, key: int) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            os.close(kept.fd)

    def close(self) -> None:
        for key in list(self._kept):
            self._drop(key)


def create() -> int:
    """Creates an empty arena that cannot be sealed."""
    # Without MFD_ALLOW_SEALING: code could seal the file against the harness of the next run.
    return os.memfd_create("vtcli-arena", os.MFD_CLOEXEC)


def create_output() -> int:
    """Creates an empty memory file for a worker's output, in append mode, that cannot be sealed."""
    fd = os.memfd_create("vtcli-out", os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fd


def rewind(fd: int, flags: int = 0) -> None:
    """Resets position and flags of an open file. All processes that have it open share them, so code of a run that was
    undone may have changed them."""
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    os.lseek(fd, 0, os.SEEK_SET)


def empty(fd: int) -> None:
    """Gives an arena's memory back."""
    os.ftruncate(fd, 0)


def capacity(limits: RunLimits) -> int:
    """Bytes of all images of a run: a worker cannot write a file larger than ``file_mb``."""
    return min(limits.images_mb, limits.file_mb) * 2**20


def put(fd: int, images: Sequence[Pixels], room: int) -> list[int]:
    """Writes the images (H, W, 3) one after the other, each on a new page, as long as they fit into ``room``
    bytes. Returns their offsets, fewer than images when some did not fit. Raises ``OSError``."""
    offsets: list[int] = []
    offset = 0
    for image in images:
        if offset + image.nbytes > room:
            break
        _write(fd, np.ascontiguousarray(image).data.cast("B"), offset)
        offsets.append(offset)
        offset = -(-(offset + image.nbytes) // PAGE) * PAGE
    return offsets


def _write(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


def check(placed: Sequence[ArenaImage], limits: RunLimits) -> None:
    """Raises ``ProtocolError`` when an image or all of them break a limit that an honest worker keeps."""
    if len(placed) > limits.images:
        raise ProtocolError(f"{len(placed)} images; at most {limits.images} may be returned")
    for image in placed:
        long, short = max(image.width, image.height), min(image.width, image.height)
        if long > limits.image_side or long > limits.image_aspect * short:
            raise ProtocolError("an image beyond the limits of side or aspect")
        if image.offset + image.bytes > capacity(limits):
            raise ProtocolError("an image outside the arena")
    if sum(image.bytes for image in placed) > capacity(limits):
        raise ProtocolError("more image bytes than the arena holds")


def take(fd: int, placed: Sequence[ArenaImage]) -> list[Pixels]:
    """Copies of the images that lie in the arena. Raises ``ProtocolError`` when it is shorter than they say."""
    copies: list[Pixels] = []
    for image in placed:
        pixels = np.empty((image.height, image.width, 3), np.uint8)
        view = pixels.data.cast("B")
        done = 0
        while done < len(view):
            got = os.preadv(fd, [view[done:]], image.offset + done)
            if got <= 0:
                raise ProtocolError("an image beyond the end of the arena")
            done += got
        copies.append(pixels)
    return copies
