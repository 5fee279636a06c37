"""Texts compared by their words: normal forms, n-grams, and all texts that are similar enough, found by an index."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

GRAM = 3
"""Words of an n-gram."""

_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"\d+(?:[.,]\d+)+|[{_CJK}]|(?:(?![{_CJK}])\w)+|[^\w\s.,;:!?\"'`()\[\]]")
"""A number, a Chinese, Japanese or Korean character, a word, or a sign that means something (+, -, %)."""


def words(text: str) -> tuple[str, ...]:
    """The text's words: Unicode's compatible form, lower case, without punctuation and space."""
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def grams(text: str) -> frozenset[str]:
    """The n-grams of its words; of fewer words, all of them as one."""
    found = words(text)
    return frozenset(" ".join(found[n : n + GRAM]) for n in range(max(1, len(found) - GRAM + 1)))


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard: n-grams of both over n-grams of either."""
    both = len(one & other)
    return both / (len(one) + len(other) - both)


class TextIndex:
    """Texts, each found by all whose n-grams have a Jaccard similarity of ``min_similarity`` at least: exact.

    Prefix filtering (Bayardo, Ma and Srikant, WWW 2007). Two sets that are so similar share an n-gram among the first
    ``size - ceil(min_similarity * size) + 1`` of each, in any one order. The rarest come first here, so few texts share
    them.
    """

    def __init__(self, texts: Sequence[str], min_similarity: float) -> None:
        if not 0 < min_similarity <= 1:
            raise ValueError(f"a similarity of {min_similarity}: expected more than 0 and at most 1")
        self._least = min_similarity
        self._sets = [grams(text) for text in texts]
        self._count = Counter(gram for one in self._sets for gram in one)
        self._having: dict[str, list[int]] = {}
        for position, one in enumerate(self._sets):
            for gram in self._prefix(one):
                self._having.setdefault(gram, []).append(position)

    def near(self, text: str) -> list[tuple[int, float]]:
        """Positions of the similar texts and their similarity, the lowest position first."""
        own = grams(text)
        candidates = {position for gram in self._prefix(own) for position in self._having.get(gram, ())}
        compared = ((position, similarity(own, self._sets[position])) for position in sorted(candidates))
        return [(position, value) for position, value in compared if value >= self._least]

    def _prefix(self, one: frozenset[str]) -> list[str]:
        size = len(one) - math.ceil(self._least * len(one) - 1e-9) + 1
        return sorted(one, key=lambda gram: (self._count[gram], gram))[:size]
