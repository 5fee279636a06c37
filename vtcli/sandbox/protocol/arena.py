"""Pixels in memory files: the pictures given to an episode, sealed and shared by all of a group's episodes,
and the arena into which a worker puts the images of a run.

An arena's first ``KEPT`` bytes are there for good: the file is sealed against shrinking, so who maps them gets no
SIGBUS, whatever the worker does to it. What lies beyond is never mapped by the host, which copies it with ``pread``.
The host looks at nothing but its copies: a worker that writes on while they are made changes pixels that it could have
chosen anyway.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from vtcli.protocols import Pixels
from vtcli.sandbox.protocol.frames import ProtocolError
from vtcli.sandbox.protocol.replies import Placed
from vtcli.sandbox.types import RunLimits

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
PAGE = mmap.PAGESIZE
PIECE = 1 << 20  # bytes that are written at a time
KEPT = 1 << 20  # bytes of an arena that stay between runs: new pages cost more than the pixels that go into them
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
PUNCH = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
EVERYTHING = 1 << 62  # bytes: more than any file has
BLOCK = 512  # bytes, of ``st_blocks``

Bytes = npt.NDArray[np.uint8]
"""(N,)."""


def sealed(data: bytes) -> int:
    """A descriptor of a memory file that holds ``data`` and can never be changed again."""
    view = memoryview(data)
    fd = os.memfd_create("vtcli-in", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], done)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sealed_picture(pixels: Pixels) -> int:
    """A descriptor of a sealed memory file with a picture (H, W, 3), four bytes a pixel: as PIL keeps RGB, so that an
    episode's PIL image can stand on it without a copy."""
    height, width, _ = pixels.shape
    fd = os.memfd_create("vtcli-in", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        encoder = Image._getencoder("RGB", "raw", "RGBX")  # pyright: ignore[reportPrivateUsage]
        encoder.setimage(Image.fromarray(pixels).im, (0, 0, width, height))
        encoder.encode_to_file(fd, PIECE)
        if os.fstat(fd).st_size != height * width * 4:
            raise OSError(errno.ENOSPC, "a picture does not fit into the shared memory")
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def placed(fd: int, height: int, width: int) -> int:
    """The address at which the picture in a file of ``sealed_picture`` is mapped from now on, for the life of the
    process and of its forks: no copy, shared by all that map it. ``fd`` may be closed. Raises ``OSError``.

    Not by ``mmap.mmap``, which keeps a descriptor of its own; private, because kernels before 6.7 refuse a shared
    mapping of a file sealed against writing; with the right to write, which changes the writer's own copy only,
    because some functions of PIL write to an image's memory without asking whether it is its own."""
    address = LIBC.mmap(None, height * width * 4, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "a picture could not be mapped")
    return int(address)


def seen(address: int, height: int, width: int) -> Pixels:
    """The picture (H, W, 3) that lies there, four bytes from pixel to pixel; not to be written to."""
    memory = (ctypes.c_ubyte * (height * width * 4)).from_address(address)
    pixels = np.ctypeslib.as_array(memory).reshape(height, width, 4)[:, :, :3]
    pixels.flags.writeable = False
    return pixels


@dataclass(slots=True)
class _Kept:
    fd: int
    alive: weakref.ref[Pixels]


class SealedPixels:
    """The sealed files of pictures that cannot change (``flags.writeable`` is False), so that the G episodes of a group
    share one copy. A file is closed when its array is gone. Not for use by several threads."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    def fd(self, pixels: Pixels) -> tuple[int, bool]:
        """The file's descriptor and whether the caller must close it."""
        if pixels.flags.writeable:
            return sealed_picture(pixels), True
        key = id(pixels)
        kept = self._kept.get(key)
        if kept is None or kept.alive() is not pixels:
            self._drop(key)
            kept = _Kept(sealed_picture(pixels), weakref.ref(pixels, lambda _: self._drop(key)))
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
    """An arena without images. It can grow, and be sealed no further."""
    fd = os.memfd_create("vtcli-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, KEPT)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


def printed() -> int:
    """An empty memory file for what a worker prints: written at its end, without seals, to which none can be added."""
    fd = os.memfd_create("vtcli-out", os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fd


def rewind(fd: int, flags: int = 0) -> None:
    """Start and flags of an open memory file as they were made: they are shared with all processes that have it open,
    so code of a run that was undone may have changed them."""
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    os.lseek(fd, 0, os.SEEK_SET)


def capacity(limits: RunLimits) -> int:
    """Bytes of all images of a run: a worker cannot write a file larger than ``file_mb``."""
    return min(limits.images_mb, limits.file_mb) * 2**20


def shared(fd: int, rights: int = mmap.PROT_READ | mmap.PROT_WRITE) -> Bytes:
    """The first ``KEPT`` bytes of an arena, mapped until ``unshared``. Half the cost of ``pwrite`` or ``pread``. Not by
    ``mmap.mmap``, see ``mapped``. Raises ``OSError``."""
    address = LIBC.mmap(None, KEPT, rights, mmap.MAP_SHARED, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "the arena could not be mapped")
    return np.ctypeslib.as_array((ctypes.c_ubyte * KEPT).from_address(address))


def unshared(kept: Bytes) -> None:
    """The end of such a mapping, which nobody may use from now on."""
    LIBC.munmap(kept.ctypes.data, KEPT)


def put(fd: int, images: Sequence[Pixels], room: int, kept: Bytes) -> list[int]:
    """Writes the images (H, W, 3) one after the other, each on a page of its own, as long as they fit into ``room``
    bytes; returns their offsets, fewer than images when some did not fit. ``kept``: of ``shared``; the first image may
    lie at its beginning already. Raises ``OSError``."""
    offsets: list[int] = []
    offset = 0
    for image in images:
        whole = np.ascontiguousarray(image)
        if offset + whole.nbytes > room:
            break
        done = max(min(KEPT - offset, whole.nbytes), 0)
        if done and _address(whole) != _address(kept) + offset:
            kept[offset : offset + done] = whole.reshape(-1)[:done]
        view = whole.data.cast("B")
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)
        offsets.append(offset)
        offset = -(-(offset + len(view)) // PAGE) * PAGE
    return offsets


def _address(array: npt.NDArray[np.uint8]) -> int:
    """Of its memory; ``array.ctypes`` makes an object of a class in Python."""
    return int(array.__array_interface__["data"][0])


def shrink(fd: int, length: int = KEPT) -> None:
    """Gives back what an arena holds beyond ``length`` bytes, beyond its end too: its size stays. What stays are pixels
    of the last run. Raises ``OSError``."""
    if os.fstat(fd).st_blocks * BLOCK > length and LIBC.fallocate(fd, PUNCH, length, EVERYTHING):
        raise OSError(ctypes.get_errno(), "an arena's memory could not be given back")


class Received:
    """The host's side of an arena, whose descriptor it owns."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._kept = np.empty(0, np.uint8)
        with contextlib.suppress(OSError):  # without a mapping everything is read
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK and os.fstat(fd).st_size >= KEPT:
                self._kept = shared(fd, mmap.PROT_READ)

    def take(self, placed: Sequence[Placed]) -> list[Pixels]:
        """As the function of that name."""
        copies: list[Pixels] = []
        for image in placed:
            kept = self._kept[image.offset : image.offset + image.bytes]
            if len(kept) == image.bytes:
                copies.append(kept.reshape(image.height, image.width, 3).copy())
            else:
                copies += take(self.fd, [image])
        return copies

    def close(self) -> None:
        """Nothing may be taken any more."""
        if len(self._kept):
            unshared(self._kept)
            self._kept = self._kept[:0]
        os.close(self.fd)


def check(placed: Sequence[Placed], limits: RunLimits) -> None:
    """Raises ``ProtocolError`` when an image or all of them break a limit that an honest worker keeps."""
    if len(placed) > limits.images:
        raise ProtocolError(f"{len(placed)} images; at most {limits.images} may be returned")
    total = 0
    for image in placed:
        long, short = max(image.width, image.height), min(image.width, image.height)
        if long > limits.image_side or long > limits.image_aspect * short:
            raise ProtocolError("an image beyond the limits of side or aspect")
        total += image.bytes
        if image.offset + image.bytes > capacity(limits):
            raise ProtocolError("an image outside the arena")
    if total > capacity(limits):
        raise ProtocolError("more image bytes than the arena holds")


def take(fd: int, placed: Sequence[Placed]) -> list[Pixels]:
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
