"""Rule: drops rows that are near a question that must stay unseen, of a benchmark or of held-out data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vtcli.filters.facts import ImageHashes, Match, Reference, References, RowFacts
from vtcli.filters.hashing import BITS, HammingIndex
from vtcli.filters.words import TextIndex, words


def against(
    rows: Sequence[RowFacts],
    *,
    image_hashes: ImageHashes,
    references: References,
    match: Literal["image", "question", "both", "either"] = "image",
    max_bits: int = 16,
    min_share: float = 0.8,
    min_words: int = 8,
) -> list[Match | None]:
    """Drops rows that are near a reference.

    An image is near if it is within ``max_bits`` of 256 of a reference's image, upright, turned by quarters or
    mirrored. A question is near if it holds a share of ``min_share`` of the reference's word trigrams. A reference
    question of fewer than ``min_words`` words is near nothing, because sets repeat such questions (What colour is the
    car). With ``match="both"`` the length does not matter, but a question of fewer than three words must be held whole.
    """
    if match not in ("image", "question", "both", "either"):
        raise ValueError(f"match={match!r}: expected image, question, both or either")
    held = list(references.values())
    pictures = _Pictures(held, max_bits)
    texts = TextIndex([reference.question for reference in held], min_share)
    alone = [len(words(reference.question)) >= min_words for reference in held]

    def found(row: RowFacts) -> Match | None:
        seen = pictures.near([image_hashes[sha] for sha in row.media[: len(row.sizes)]]) if match != "question" else {}
        asked = dict(texts.within(row.question)) if match != "image" else {}
        # A short question with the same image is the same question; alone it proves nothing.
        if match == "both":
            numbers = sorted(seen.keys() & asked.keys())
        else:
            numbers = sorted({*seen, *(n for n in asked if alone[n])})
        if not numbers:
            return None
        # The nearest image decides which reference the account names; a match by text alone counts as farthest.
        number = min(numbers, key=lambda n: (seen.get(n, BITS), n))
        one = held[number]
        said = [f"the image is {seen[number]} of {BITS} bits away"] if number in seen else []
        said += [f"the question has {asked[number]:.0%} of its words"] if number in asked else []
        return Match(f"near {one.id} of {one.source}: {' and '.join(said)}", one.source, one.id)

    return [found(row) for row in rows]


class _Pictures:
    """The references' images in all turns and mirrorings."""

    def __init__(self, held: Sequence[Reference], max_bits: int) -> None:
        self._index = HammingIndex(max_bits)
        # Benchmarks ask several questions about one image, so a hash is indexed once and has several owners.
        owners: dict[bytes, dict[int, None]] = {}
        for number, reference in enumerate(held):
            for turns in reference.image_hashes:
                for value in turns:
                    owners.setdefault(value, {})[number] = None
        for value in owners:
            self._index.add(value)
        self._owners = [tuple(numbers) for numbers in owners.values()]

    def near(self, hashes: Sequence[bytes]) -> dict[int, int]:
        """Numbers of the references with a near image, and the smallest distance of each."""
        found: dict[int, int] = {}
        for value in hashes:
            for position, bits in self._index.near(value):
                for number in self._owners[position]:
                    found[number] = min(bits, found.get(number, bits))
        return found
