"""Estimates and comparisons with their denominator, interval and seed. Pure: numpy and scipy only.

Intervals: Wilson for shares of independent questions, bootstrap over questions for everything graded or repeated
(Miller, arXiv:2411.00640; Bowyer et al., arXiv:2503.01747). Two models are compared on the questions both answered:
exact McNemar for right/wrong, sign-flip permutation for graded scores. The interval of a difference holds 0 exactly
where the test beside it has p > 0.05. ``None`` is "not measured": it is counted, never averaged.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
RESAMPLES = 2000
"""Bootstrap resamples. With so many, the seed moves an end of the interval by a few per cent of its width."""

EXACT_FLIPS = 14
"""The largest number of non-zero differences for which all 2**n sign patterns are enumerated."""

FLIPS = 10_000
"""The number of sign patterns drawn where there are too many to enumerate."""

FLIP_BATCH = 1000

BCA_LIMIT = 1000
"""The largest n for BCa, which needs n jackknife means, O(n**2). Above it the percentile interval is as good."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over ``n`` questions. ``low`` and ``high`` are None where all values are equal: no spread was seen."""

    value: float
    low: float | None
    high: float | None
    n: int
    method: str
    seed: int | None  # None: closed form


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference after - before, over the ``n`` questions that both answered."""

    value: float
    low: float | None
    high: float | None
    n: int
    method: str
    seed: int | None
    p: float  # two-sided
    only_before: int  # questions without a partner: left out, and counted here
    only_after: int


def wilson(hits: int, n: int) -> Estimate:
    """Wilson score interval of a share (Wilson 1927), e.g. 162 of 191: 0.848 in [0.790, 0.892].

    Raises:
        ValueError: unless 0 <= hits <= n and n > 0.
    """
    if not 0 <= hits <= n or n == 0:
        raise ValueError(f"wilson needs 0 <= hits <= n and n > 0, got hits={hits}, n={n}")
    low, high = _wilson_bounds(hits / n, n)
    return Estimate(hits / n, low, high, n, "Wilson", None)


def _wilson_bounds(share: float, n: int) -> tuple[float, float]:
    from scipy.special import ndtri  # what scipy.stats.norm.ppf calls; scipy.stats takes a second to import

    z = float(ndtri((1 + CONFIDENCE) / 2))
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half) if share > 0 else 0.0, min(1.0, centre + half) if share < 1 else 1.0


def bootstrap(values: Sequence[float], seed: int) -> Estimate:
    """Interval of a mean by resampling ``values``, one value per independent question.

    BCa up to 1000 values, percentile above. One value has no interval, nor have equal ones: one of width zero would
    say that all other questions are like these.

    Raises:
        ValueError: for no values.
    """
    if not values:
        raise ValueError("bootstrap needs at least one value")
    x = np.asarray(values, dtype=np.float64)
    mean = float(x.mean())
    if len(x) == 1:
        return Estimate(mean, None, None, 1, "one value", None)
    if flat(float(x.min()), float(x.max())):
        return Estimate(mean, None, None, len(x), "no spread", None)
    low, high, method = _resample(x.tobytes(), seed)
    return Estimate(mean, low, high, len(x), method, seed)


@lru_cache(maxsize=4096)  # a report states the same means in tables, charts, files and the tracker
def _resample(values: bytes, seed: int) -> tuple[float, float, str]:
    from scipy import stats

    x = np.frombuffer(values, dtype=np.float64)
    method = "BCa" if len(x) <= BCA_LIMIT else "percentile"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # handled below: BCa answers nan
        ends = stats.bootstrap(
            (x,), np.mean, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method=method, rng=seed, batch=100
        ).confidence_interval
    if math.isfinite(ends.low) and math.isfinite(ends.high):
        return float(ends.low), float(ends.high), method
    means = np.random.default_rng(seed).choice(x, (RESAMPLES, len(x))).mean(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high), "percentile"


def flat(low: float, high: float) -> bool:
    """Returns True if two numbers, the smaller first, are equal but for rounding."""
    return high - low <= 1e-9 * max(1.0, abs(high))


def estimate(values: Sequence[float], seed: int) -> Estimate:
    """Wilson when every value is 0 or 1, the bootstrap otherwise."""
    if values and all(v in (0.0, 1.0) for v in values):
        return wilson(round(sum(values)), len(values))
    return bootstrap(values, seed)


def mcnemar(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Exact McNemar test on paired 0/1 values, and the interval of the difference.

    Returns:
        (p, low, high): p of the two-sided binomial test on the discordant pairs, and the interval of mean(after) -
        mean(before). It is Newcombe's hybrid score interval (1998, method 10). It is extended to 0 where the test does
        not exclude 0. For few discordant pairs the exact test is stricter than the score interval.

    Example: 36 both right, 2 and 12 discordant, 0 both wrong give p = 0.013 and [0.057, 0.340].
    """
    from scipy.stats import binomtest

    a, b = np.asarray(after) > 0.5, np.asarray(before) > 0.5  # (n,) each
    n, both, neither = len(a), int((a & b).sum()), int((~a & ~b).sum())
    won, lost = int((a & ~b).sum()), int((b & ~a).sum())
    # pairs that agree say nothing about which model is better, so the test looks at the others alone
    p = float(binomtest(won, won + lost, 0.5).pvalue) if won + lost else 1.0
    p_after, p_before = (both + won) / n, (both + lost) / n
    (l1, u1), (l2, u2) = _wilson_bounds(p_after, n), _wilson_bounds(p_before, n)
    spread = (both + won) * (lost + neither) * (both + lost) * (won + neither)
    cross = both * neither - won * lost
    cross = max(cross - n / 2, 0.0) if cross > 0 else float(cross)
    phi = cross / math.sqrt(spread) if spread else 0.0
    down, up = (p_after - l1, u2 - p_before), (p_before - l2, u1 - p_after)
    low = math.sqrt(max(down[0] ** 2 - 2 * phi * down[0] * down[1] + down[1] ** 2, 0.0))
    high = math.sqrt(max(up[0] ** 2 - 2 * phi * up[0] * up[1] + up[1] ** 2, 0.0))
    ends = p_after - p_before - low, p_after - p_before + high
    return (p, *ends) if p <= 1 - CONFIDENCE else (p, min(ends[0], 0.0), max(ends[1], 0.0))


@dataclass(frozen=True, slots=True)
class SignFlip:
    """A permutation test of paired differences, with its interval. ``low`` and ``high`` are None for too few
    differences to exclude any mean, and for equal ones, which show no spread."""

    p: float  # two-sided, of mean difference 0
    low: float | None
    high: float | None
    method: str
    seed: int | None  # None: every pattern was looked at


def sign_flip(differences: Sequence[float], seed: int) -> SignFlip:
    """Test that paired differences are symmetric about zero, and bound the mean by the same test.

    p(θ) is the share of sign patterns with |Σ ±(d - θ)| >= |Σ (d - θ)|. The interval holds every θ with p(θ) above
    0.05, so test and interval agree. A pattern is as extreme as the observation where the mean of its flipped, or of
    its kept, differences lies beyond θ (Hartigan 1969). So the ends are quantiles of such means.

    Simulated coverage is 0.93 to 0.98 (tests/statistics/test_metrics.py). Rare differences of one sign lower it: 0.91
    where 6 of 120 are expected, 0.78 for 3.

    Up to 14 differences all 2**n patterns are used. Above, patterns are drawn. Zeros do not count in p, so p stays
    exact for up to 14 others, and is (hits + 1) / (draws + 1) otherwise.

    Example: 1, 2, 3 give 2 of 8 patterns, p = 0.25.

    Raises:
        ValueError: for no differences.
    """
    if len(differences) == 0:
        raise ValueError("sign_flip needs at least one difference")
    d = np.asarray(differences, dtype=np.float64)
    if flat(0.0, float(np.abs(d).max())):
        return SignFlip(1.0, None, None, "sign-flip, no difference", None)
    found = _sign_flip(d.tobytes(), seed)
    return replace(found, low=None, high=None) if flat(float(d.min()), float(d.max())) else found


@lru_cache(maxsize=4096)  # a report states the same differences in tables and files
def _sign_flip(differences: bytes, seed: int) -> SignFlip:
    d = np.frombuffer(differences, dtype=np.float64)  # (n,)
    means, exact = _halves(d, seed)  # (N, 2)
    rounding = 1e-9 * np.abs(d).max()  # equal sums in another order of addition count as equal
    means[np.abs(means) < rounding] = 0.0
    lows, highs = np.sort(means.min(axis=1)), np.sort(means.max(axis=1))[::-1]
    drawn = len(means)
    hits = drawn if abs(d.mean()) < rounding else int((lows <= 0).sum() if d.mean() > 0 else (highs >= 0).sum())
    p = hits / drawn if exact else (hits + 1) / (drawn + 1)
    # The smallest number of hits that makes p larger than 0.05, and with it the ends.
    needed = math.floor((1 - CONFIDENCE) * drawn + 1e-9) + 1 if exact else math.floor((1 - CONFIDENCE) * (drawn + 1))
    low, high = float(lows[needed - 1]), float(highs[needed - 1])
    bounded = math.isfinite(low)
    every = len(d) <= EXACT_FLIPS
    method = "sign-flip, exact" if exact else f"sign-flip, {drawn} flips"
    return SignFlip(p, low if bounded else None, high if bounded else None, method, None if every else seed)


def _halves(d: Floats, seed: int) -> tuple[Floats, bool]:
    """Means (N, 2) of the flipped and of the kept differences in N sign patterns, infinite for an empty side. True
    where every pattern of the non-zero differences is among them equally often."""
    few = np.flatnonzero(d) if len(d) > EXACT_FLIPS else np.arange(len(d))
    exact = len(few) <= EXACT_FLIPS
    every = 2 ** len(few) if exact else 1
    times = 1 if len(few) == len(d) and exact else math.ceil(FLIPS / every)
    rng = np.random.default_rng(seed)
    parts: list[Floats] = []
    for start in range(0, every * times, FLIP_BATCH):
        at = np.arange(start, min(start + FLIP_BATCH, every * times))
        flipped = rng.integers(0, 2, (len(at), len(d)), dtype=np.int8).astype(np.float64)
        if exact:
            flipped[:, few] = (at[:, None] // times >> np.arange(len(few))) & 1
        sums, counts = flipped @ d, flipped.sum(axis=1)  # (batch,) each: of the flipped differences
        with np.errstate(invalid="ignore", divide="ignore"):
            gone, kept = sums / counts, (d.sum() - sums) / (len(d) - counts)
        whole = (counts == 0) | (counts == len(d))  # every mean is as extreme as one over no difference
        parts.append(np.where(whole[:, None], [-np.inf, np.inf], np.stack([gone, kept], axis=1)))
    return np.concatenate(parts), exact


def paired(
    before: Mapping[str, float | None], after: Mapping[str, float | None], seed: int, *, share: bool = True
) -> Comparison | None:
    """Compares two models on the questions that both have a value for; None without such a question.

    Args:
        before, after: one value per question id. A question with None has no partner.
        share: the values are shares, so 0 and 1 mean wrong and right. False for counts.
    """
    old, new = ({k: v for k, v in side.items() if v is not None} for side in (before, after))
    ids = sorted(old.keys() & new.keys())
    if not ids:
        return None
    x, y = [old[k] for k in ids], [new[k] for k in ids]
    if share and all(v in (0.0, 1.0) for v in x + y):
        p, low, high = mcnemar(x, y)
        test = SignFlip(p, low, high, "exact McNemar, Newcombe interval", None)
    else:
        test = sign_flip([b - a for a, b in zip(x, y, strict=True)], seed)
    return Comparison(
        value=float(np.mean(y) - np.mean(x)),
        low=test.low,
        high=test.high,
        n=len(ids),
        method=test.method,
        seed=test.seed,
        p=test.p,
        only_before=len(old) - len(ids),
        only_after=len(new) - len(ids),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment for several tests, e.g. 0.01, 0.04, 0.03 become 0.03, 0.06, 0.06."""
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = worst
    return adjusted
