"""All hashes within a distance, without comparing all pairs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from vtcli.filters.image_hash import BITS

WORDS = BITS // 64

MOST_BITS = 63
"""Bands of four bits; with smaller ones nearly everything would be compared."""

Near = list[tuple[int, int]]
"""Positions and their distances, the lowest position first."""


class HammingIndex:
    """Hashes of 256 bits, each found by all that lie within ``max_bits`` of it: exact, by the pigeonhole principle.

    A hash is cut into ``max_bits + 1`` bands. Two hashes with at most ``max_bits`` different bits have one equal band
    at least. So only hashes that share a band are compared. With 16 bits a band has 15; among a million hashes about
    500 are compared with each, and a position takes 4 bytes a band.
    """

    def __init__(self, max_bits: int) -> None:
        if not 0 <= max_bits <= MOST_BITS:
            raise ValueError(f"max_bits={max_bits}: expected 0 to {MOST_BITS} of {BITS} bits (16 is usual)")
        self._max = max_bits
        edges = [BITS * n // (max_bits + 1) for n in range(max_bits + 2)]
        self._bands = [(low, (1 << (high - low)) - 1) for low, high in pairwise(edges)]
        self._buckets: list[dict[int, bytearray]] = [{} for _ in self._bands]  # band's value: positions, 4 bytes each
        self._hashes = np.zeros((WORDS, 64), np.uint64)  # a column of words each, one behind the other
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, value: bytes) -> int:
        """Returns the hash's position: hashes are numbered as they come, equal ones too."""
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
        """The hashes within ``max_bits``."""
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
        # A quarter of the bits, those of the finest details, rules out nearly all of them.
        likely = candidates[np.bitwise_count(self._hashes[WORDS - 1][candidates] ^ own[-1]) <= self._max]
        found = np.zeros(len(likely), np.int64)
        for column, word in zip(self._hashes, own, strict=True):
            found += np.bitwise_count(column[likely] ^ word)
        close = found <= self._max
        return sorted(set(zip(likely[close].tolist(), found[close].tolist(), strict=True)))
