"""Several rollouts of one question: any right, all right, and the vote. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

SUBSETS = 1000
"""Subsets of rollouts whose votes are counted; of more, so many are drawn."""


def sizes(count: int) -> list[int]:
    """The values of k for ``count`` rollouts: 2, 4, 8, … and ``count``; none for fewer than two.

    Example: 6 rollouts give 2, 4, 6.
    """
    return [] if count < 2 else sorted({*(2**i for i in range(1, count.bit_length()) if 2**i <= count), count})


def pass_at(n: int, right: int, k: int) -> float:
    """pass@k: the chance that any of k rollouts is right, without bias from n of which ``right`` are.

    1 - C(n - right, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1).

    Example: 1 of 4 right gives pass@2 = 1 - 3 / 6 = 0.5.
    """
    _check(n, right, k)
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def pass_all(n: int, right: int, k: int) -> float:
    """pass^k: the chance that all of k rollouts are right, C(right, k) / C(n, k) (τ-bench, arXiv 2406.12045).

    Example: 3 of 4 right gives pass^2 = 3 / 6 = 0.5.
    """
    _check(n, right, k)
    return math.comb(right, k) / math.comb(n, k)


def _check(n: int, right: int, k: int) -> None:
    if not (0 <= right <= n and 1 <= k <= n):
        raise ValueError(f"expected 0 <= right <= n and 1 <= k <= n, got n={n}, right={right}, k={k}")


def majority_at(answers: Sequence[str | None], rights: Sequence[float], k: int, seed: int) -> float:
    """maj@k: the chance that the commonest of k answers is right, over the subsets of k rollouts.

    Answers are the same when they differ by case and spaces alone. None has no vote; without any vote it is 0. Answers
    with equally many votes share the point. Of more than ``SUBSETS`` subsets, so many are drawn with the seed.

    Example: answers A, A, B of which A is right: 1 for k = 3. For k = 2, AA, AB, AB give (1 + 0.5 + 0.5) / 3.
    """
    _check(len(answers), 0, k)
    keys = [None if answer is None else " ".join(answer.casefold().split()) for answer in answers]
    subsets: Iterable[Sequence[int]] = itertools.combinations(range(len(keys)), k)
    if math.comb(len(keys), k) > SUBSETS:
        rng = np.random.default_rng(seed)
        subsets = [rng.choice(len(keys), k, replace=False).tolist() for _ in range(SUBSETS)]
    points = [_vote([(keys[i], rights[i]) for i in subset]) for subset in subsets]
    return math.fsum(points) / len(points)


def _vote(found: Sequence[tuple[str | None, float]]) -> float:
    votes: dict[str, list[float]] = {}
    for key, right in found:
        if key is not None:
            votes.setdefault(key, []).append(right)
    most = max(map(len, votes.values()), default=0)
    first = [math.fsum(rights) / len(rights) for rights in votes.values() if len(rights) == most]
    return math.fsum(first) / len(first) if first else 0.0
