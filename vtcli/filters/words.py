"""Compares texts by their words: normal forms, n-grams, and an index that finds all texts which another one holds."""

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
"""A number, a Chinese, Japanese or Korean character, a word, or a sign with a meaning (+, -, %)."""


def words(text: str) -> tuple[str, ...]:
    """Returns a text's words: Unicode's compatibility form, lower case, without punctuation and space."""
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def grams(text: str) -> frozenset[str]:
    """Returns the n-grams of a text's words; all words as one if there are fewer."""
    found = words(text)
    return frozenset(" ".join(found[n : n + GRAM]) for n in range(max(1, len(found) - GRAM + 1)))


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Returns the Jaccard similarity: n-grams of both over n-grams of either."""
    both = len(one & other)
    return both / (len(one) + len(other) - both)


class TextIndex:
    """Texts; finds those of which another text holds at least a share of ``min_share`` of the n-grams, exactly.

    The search is prefix filtering (Bayardo, Ma and Srikant, WWW 2007): a text that holds that share must contain one of
    any ``size - ceil(min_share * size) + 1`` n-grams. The rarest are indexed, because few texts share them.
    """

    def __init__(self, texts: Sequence[str], min_share: float) -> None:
        if not 0 < min_share <= 1:
            raise ValueError(f"min_share={min_share}: expected more than 0 and at most 1")
        self._least = min_share
        self._sets = [grams(text) for text in texts]
        count = Counter(gram for one in self._sets for gram in one)
        self._having: dict[str, list[int]] = {}
        for position, one in enumerate(self._sets):
            size = len(one) - math.ceil(min_share * len(one) - 1e-9) + 1  # 1e-9: 0.55 * 100 is 55.00…01
            for gram in sorted(one, key=lambda gram: (count[gram], gram))[:size]:
                self._having.setdefault(gram, []).append(position)

    def within(self, text: str) -> list[tuple[int, float]]:
        """Returns positions of the texts that ``text`` holds, with the shares held, lowest position first."""
        own = grams(text)
        candidates = {position for gram in own for position in self._having.get(gram, ())}
        shares = ((n, len(own & self._sets[n]) / len(self._sets[n])) for n in sorted(candidates))
        return [(n, share) for n, share in shares if share >= self._least]
