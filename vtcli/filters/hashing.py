"""Perceptual hashes of images: 256 bits that re-encoding and resizing hardly change. They are stored beside the
artifacts, and near ones are found without comparing all pairs.

They equal imagehash's ``phash(hash_size=16)`` on images with structure. Hamming distances of 256: re-encoded or half as
large at most 12, distinct photographs, charts and pages at least 72 (of 64 bits, distinct pages begin where copies
end, at 8). Crops of a tenth or more are not found."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vtcli.filters.facts import RowFacts
from vtcli.progress import RowBars
from vtcli.protocols import Pixels
from vtcli.store import disk, images

SIDE = 16
"""Frequencies in each direction: ``SIDE * SIDE`` bits."""

BITS = SIDE * SIDE

NOISE = 1.0
"""Smaller coefficients are rounding: a grey level off by half at every pixel gives 0.3."""

STRUCTURE = 64
"""An image with fewer coefficients above the noise has too little structure to be compared by them."""


def image_hash(pixels: Pixels) -> bytes:
    """Returns 32 bytes. An image with too little structure (flat, stripes) gets the sha256 of its pixels, so that it
    is near only its exact copies."""
    return _bits(_grey(pixels)) or _own(pixels)


def turned_hashes(pixels: Pixels) -> bytes:
    """Returns the hashes of an image and of its mirror image, each turned by 0, 90, 180 and 270 degrees: 256 bytes, one
    hash after the other."""
    grey = _grey(pixels)
    turned = (np.rot90(side, quarter) for side in (grey, grey[:, ::-1]) for quarter in range(4))
    return b"".join(_bits(side) or _own(pixels) for side in turned)


def split_hashes(turned: bytes) -> list[bytes]:
    """Returns the distinct hashes of ``turned_hashes``."""
    return list(dict.fromkeys(turned[n : n + BITS // 8] for n in range(0, len(turned), BITS // 8)))


def distance(one: bytes, other: bytes) -> int:
    """Returns the number of bits that differ."""
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


def _grey(pixels: Pixels) -> NDArray[np.uint8]:
    side = 4 * SIDE  # (H, W, 3) -> (64, 64): four samples for each frequency that is kept
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


WORDS = BITS // 64

MOST_BITS = 63
"""With more, bands would have under four bits, and nearly all hashes would be compared with each other."""

Near = list[tuple[int, int]]
"""Positions and their distances, the lowest position first."""


class HammingIndex:
    """Hashes of 256 bits; finds all within ``max_bits`` of one, exactly, by the pigeonhole principle.

    A hash is cut into ``max_bits + 1`` bands. Two hashes with at most ``max_bits`` different bits agree in at least one
    band, so only hashes that share a band are compared. With 16 bits a band has 15; of a million hashes about 500 are
    compared with each, and a position takes 4 bytes a band.
    """

    def __init__(self, max_bits: int) -> None:
        if not 0 <= max_bits <= MOST_BITS:
            raise ValueError(f"max_bits={max_bits}: expected 0 to {MOST_BITS} of {BITS} bits (16 is usual)")
        self._max = max_bits
        edges = [BITS * n // (max_bits + 1) for n in range(max_bits + 2)]
        self._bands = [(low, (1 << (high - low)) - 1) for low, high in pairwise(edges)]
        self._buckets: list[dict[int, bytearray]] = [{} for _ in self._bands]  # band's value: positions, 4 bytes each
        self._hashes = np.zeros((WORDS, 64), np.uint64)  # (WORDS, capacity): a column a hash; capacity doubles
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, value: bytes) -> int:
        """Stores a hash and returns its position. Positions count up, also for equal hashes."""
        if self._size == self._hashes.shape[1]:
            self._hashes = np.concatenate([self._hashes, np.zeros_like(self._hashes)], axis=1)
        self._hashes[:, self._size] = np.frombuffer(value, np.uint64)
        mark, number = self._size.to_bytes(4, "little"), int.from_bytes(value)
        for bucket, (low, mask) in zip(self._buckets, self._bands, strict=True):
            band = (number >> low) & mask
            if (positions := bucket.get(band)) is None:
                bucket[band] = bytearray(mark)
            else:
                positions += mark
        self._size += 1
        return self._size - 1

    def near(self, value: bytes) -> Near:
        """Returns positions and distances of the hashes within ``max_bits``."""
        number = int.from_bytes(value)
        shared = [
            positions
            for bucket, (low, mask) in zip(self._buckets, self._bands, strict=True)
            if (positions := bucket.get((number >> low) & mask)) is not None
        ]
        if not shared:
            return []
        candidates = np.frombuffer(b"".join(shared), "<u4")  # a position once for each band that it shares
        own = np.frombuffer(value, np.uint64)
        # The last word has the finest details, which differ most: it rules out nearly all candidates.
        likely = candidates[np.bitwise_count(self._hashes[WORDS - 1][candidates] ^ own[-1]) <= self._max]
        found = np.zeros(len(likely), np.int64)
        for column, word in zip(self._hashes, own, strict=True):
            found += np.bitwise_count(column[likely] ^ word)
        close = found <= self._max
        return sorted(set(zip(likely[close].tolist(), found[close].tolist(), strict=True)))


LOCK_S = 60.0
AT_ONCE = 256
"""Rows whose images are hashed before the next ones are read: bounds memory, and the loss if the run is killed."""

Encoded = Callable[[RowFacts], Sequence[bytes]]
"""The images of a row, as they are stored."""


class StoredHashes:
    """A file of fixed-size records, an image's sha256 with its hash or hashes, shared by all runs."""

    def __init__(self, path: Path, hash_bytes: int = BITS // 8) -> None:
        self.path, self._size = path, 32 + hash_bytes

    def read(self, shas: Iterable[str]) -> dict[str, bytes]:
        """Returns the stored hashes among those of ``shas``. Raises ``InputError`` for disk trouble."""
        wanted = {bytes.fromhex(sha): sha for sha in shas}
        found: dict[str, bytes] = {}
        if self.path.exists():
            with disk.checked(self.path, "read"), self.path.open("rb") as file:
                while len(record := file.read(self._size)) == self._size:
                    if (sha := wanted.get(record[:32])) is not None:
                        found[sha] = record[32:]
        return found

    def put(self, found: dict[str, bytes]) -> None:
        """Appends records. Cuts off the torn last record of a killed run first. Raises ``InputError`` for disk
        trouble."""
        new = {bytes.fromhex(sha): value for sha, value in found.items()}
        what = f"the image hashes in {self.path}"
        with disk.checked(self.path, "append to"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with disk.locked(self.path.with_suffix(".lock"), LOCK_S, what), self.path.open("ab") as file:
                file.truncate(file.tell() // self._size * self._size)
                file.write(b"".join(sha + value for sha, value in new.items()))


class HashMeter:
    """Measures ``image_hashes`` of rows. Calls ``encoded`` for a row's images only if a hash is missing."""

    def __init__(self, stored: StoredHashes, encoded: Encoded, compute: Callable[[Pixels], bytes] = image_hash) -> None:
        self._stored, self._encoded, self._compute = stored, encoded, compute

    def __call__(self, rows: Sequence[RowFacts], decided: object = None) -> dict[str, bytes]:
        """Returns hashes by the sha256 of the image. Raises ``InputError`` for an image that cannot be decoded."""
        found = self._stored.read(sha for row in rows for sha in _shas(row))
        todo = [row for row in rows if not all(sha in found for sha in _shas(row))]
        if todo:
            with RowBars() as bars, ThreadPoolExecutor() as pool:
                bars.begin("image hashes", len(rows), len(rows) - len(todo))
                for start in range(0, len(todo), AT_ONCE):
                    part = todo[start : start + AT_ONCE]
                    new: dict[str, tuple[bytes, str]] = {}
                    for row in part:
                        if all(sha in found or sha in new for sha in _shas(row)):
                            continue  # several rows show one image
                        for number, (sha, data) in enumerate(zip(_shas(row), self._encoded(row), strict=True)):
                            if sha not in found:
                                new[sha] = data, f"{number} of row {row.id!r} in {row.file}"
                    values = pool.map(
                        lambda one: self._compute(images.decode(*one)), new.values()
                    )  # decoding releases the lock
                    fresh = dict(zip(new, values, strict=True))
                    self._stored.put(fresh)
                    found |= fresh
                    bars.advance("image hashes", len(part))
        return found


def _shas(row: RowFacts) -> Sequence[str]:
    return row.media[: len(row.sizes)]
