"""Perceptual hashes of a run's images: computed once for each content, and kept beside the artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vtcli.filters.facts import RowFacts
from vtcli.filters.image_hash import BITS, image_hash
from vtcli.progress import RowBars
from vtcli.protocols import Pixels
from vtcli.store import disk, images

LOCK_S = 60.0
AT_ONCE = 256
"""Rows whose images are hashed before the next ones are read: what is in memory, and what a kill loses."""

Encoded = Callable[[RowFacts], Sequence[bytes]]
"""The images of a row, as they are stored."""


class StoredHashes:
    """A file of records of one size, an image's sha256 and its hash or hashes, shared by all runs."""

    def __init__(self, path: Path, hash_bytes: int = BITS // 8) -> None:
        self.path, self._size = path, 32 + hash_bytes

    def read(self, shas: Iterable[str]) -> dict[str, bytes]:
        """The hashes of some images that are known. Raises ``InputError`` for disk trouble."""
        wanted = {bytes.fromhex(sha): sha for sha in shas}
        found: dict[str, bytes] = {}
        if self.path.exists():
            with disk.checked(self.path, "read"), self.path.open("rb") as file:
                while len(record := file.read(self._size)) == self._size:
                    if (sha := wanted.get(record[:32])) is not None:
                        found[sha] = record[32:]
        return found

    def put(self, found: dict[str, bytes]) -> None:
        """Appends, behind what is there; the torn end of a killed run is cut off. Raises ``InputError`` for disk
        trouble."""
        new = {bytes.fromhex(sha): value for sha, value in found.items()}
        what = f"the image hashes in {self.path}"
        with disk.checked(self.path, "append to"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with disk.locked(self.path.with_suffix(".lock"), LOCK_S, what), self.path.open("ab") as file:
                file.truncate(file.tell() // self._size * self._size)
                file.write(b"".join(sha + value for sha, value in new.items()))


class HashMeter:
    """``image_hashes`` of rows. ``encoded`` reads a row's images; it is not called where all are known."""

    def __init__(self, stored: StoredHashes, encoded: Encoded, compute: Callable[[Pixels], bytes] = image_hash) -> None:
        self._stored, self._encoded, self._compute = stored, encoded, compute

    def __call__(self, rows: Sequence[RowFacts], decided: object = None) -> dict[str, bytes]:
        """By the sha256 of an image. Raises ``InputError`` for an image that cannot be decoded."""
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
                    values = pool.map(lambda one: self._compute(images.decode(*one)), new.values())
                    fresh = dict(zip(new, values, strict=True))
                    self._stored.put(fresh)
                    found |= fresh
                    bars.advance("image hashes", len(part))
        return found


def _shas(row: RowFacts) -> Sequence[str]:
    return row.media[: len(row.sizes)]
