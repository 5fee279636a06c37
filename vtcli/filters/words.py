"""Texts compared by their words: normal forms, n-grams, and all texts that another one holds, found by an index."""

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
    """Texts, each found by all that hold a share of ``min_share`` of its n-grams at least: exact.

    The search is prefix filtering (Bayardo, Ma and Srikant, WWW 2007). Of such a text, one of any
    ``size - ceil(min_share * size) + 1`` n-grams is in the other one. The rarest are taken, so few texts share them.
    """

    def __init__(self, texts: Sequence[str], min_share: float) -> None:
        if not 0 < min_share <= 1:
            raise ValueError(f"min_share={min_share}: expected more than 0 and at most 1")
        self._least = min_share
        self._sets = [grams(text) for text in texts]
        count = Counter(gram for one in self._sets for gram in one)
        self._having: dict[str, list[int]] = {}
        for position, one in enumerate(self._sets):
            size = len(one) - math.ceil(min_share * len(one) - 1e-9) + 1
            for gram in sorted(one, key=lambda gram: (count[gram], gram))[:size]:
                self._having.setdefault(gram, []).append(position)

    def within(self, text: str) -> list[tuple[int, float]]:
        """Positions of the texts that it holds, and the shares of them, the lowest position first."""
        own = grams(text)
        candidates = {position for gram in own for position in self._having.get(gram, ())}
        shares = ((n, len(own & self._sets[n]) / len(self._sets[n])) for n in sorted(candidates))
        return [(n, share) for n, share in shares if share >= self._least]
