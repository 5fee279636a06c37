"""Rules: drop exact and near duplicates. The first of several stays, in the order of files and rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from vtcli.filters.facts import ImageHashes, Match, RowFacts
from vtcli.filters.hashing import BITS, HammingIndex, distance
from vtcli.filters.words import grams, similarity, words


def exact(rows: Sequence[RowFacts]) -> list[Match | None]:
    """Drops a row if an earlier row has the same images (byte by byte), videos and question (stripped).

    Answers may differ, because one of the two labels would be wrong and nothing here can tell which.
    """
    first: dict[tuple[tuple[str, ...], str], RowFacts] = {}
    found: list[Match | None] = []
    for row in rows:
        earlier = first.setdefault((row.media, row.question.strip()), row)
        found.append(None if earlier is row else Match(f"as {earlier.id} in {earlier.file}", earlier.file, earlier.id))
    return found


def near(
    rows: Sequence[RowFacts],
    *,
    image_hashes: ImageHashes,
    max_bits: int = 16,
    min_similarity: float = 1.0,
    same_answer: bool = True,
) -> list[Match | None]:
    """Drops a row that is near an earlier kept row, so that no two kept rows are near.

    Near rows have the same form, videos and number of images; the n-th images of both are within ``max_bits`` of 256.
    Their questions have the same words, or with ``min_similarity`` below 1 trigrams of that Jaccard similarity. Rows
    with different answers are not near, because the detail in question may be too small for a hash to show.
    ``same_answer=False`` drops them, too.
    """
    if not 0 < min_similarity <= 1:
        raise ValueError(f"min_similarity={min_similarity}: expected more than 0 and at most 1")
    HammingIndex(max_bits)  # raises for a bad max_bits, also if no two rows share a key
    found: list[Match | None] = [None] * len(rows)
    for members in _groups([_key(row, min_similarity == 1, same_answer) for row in rows]):
        # Compared with kept rows only: chains (a near b, b near c) would reduce a video's frames to one.
        kept = _Kept(max_bits, min_similarity, image_hashes)
        for n in members:
            found[n] = kept.match_or_keep(rows[n])
    return found


def _groups(keys: Sequence[bytes]) -> Iterator[list[int]]:
    """Yields the row numbers of each key that several rows have, in order. Uses arrays for a million rows."""
    halves = np.frombuffer(b"".join(keys), np.uint64).reshape(-1, 2)  # (rows, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable
    changes = np.flatnonzero((halves[order][1:] != halves[order][:-1]).any(axis=1)) + 1
    bounds = [0, *changes.tolist(), len(keys)]
    yield from (order[low:high].tolist() for low, high in pairwise(bounds) if high - low > 1)


def _key(row: RowFacts, same_question: bool, same_answer: bool) -> bytes:
    """Returns a 16-byte digest of the facts that near rows share."""
    question = words(row.question) if same_question else ()
    answer = words(row.answer) if same_answer else ()
    value = repr((row.form, len(row.sizes), row.media[len(row.sizes) :], question, answer))
    return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _Kept:
    """The kept rows of one group, found by their first image."""

    def __init__(self, max_bits: int, min_similarity: float, hashes: ImageHashes) -> None:
        self._index, self._max, self._least, self._hashes = HammingIndex(max_bits), max_bits, min_similarity, hashes
        self._rows: list[RowFacts] = []
        self._grams: list[frozenset[str]] = []  # of the questions of ``_rows``; empty where words must be equal

    def match_or_keep(self, row: RowFacts) -> Match | None:
        own = [self._hashes[sha] for sha in row.media[: len(row.sizes)]]
        first = own[0] if own else bytes(BITS // 8)  # rows without images all meet here, and only words are compared
        said_words = frozenset[str]() if self._least == 1 else grams(row.question)
        for position, _ in self._index.near(first):
            earlier = self._rows[position]
            bits = max((distance(a, self._hashes[b]) for a, b in zip(own, earlier.media, strict=False)), default=0)
            if bits > self._max:
                continue
            alike = 1.0 if self._least == 1 else similarity(said_words, self._grams[position])
            if alike >= self._least:
                said = f"near {earlier.id} in {earlier.file}: {bits} of {BITS} bits"
                return Match(said + (f", words {alike:.2f}" if alike < 1 else ""), earlier.file, earlier.id)
        self._index.add(first)
        self._rows.append(row)
        self._grams.append(said_words)
        return None
