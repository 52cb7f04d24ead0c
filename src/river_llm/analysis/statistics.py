"""Intervals for shares and for ratios of sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt


def wilson_interval(
    successes: int, n: int, confidence: float = 0.95
) -> tuple[float, float] | tuple[None, None]:
    """Wilson score interval of a share, fit for small n and for shares near 0 and 1.

    Args:
        successes: Number of successes, 0..n.
        n: Number of trials.
        confidence: Coverage, strictly between 0 and 1.

    Returns:
        (low, high) as shares in [0, 1], or (None, None) when n is 0.

    Raises:
        ValueError: Counts that are no counts of a share, or a confidence outside (0, 1).

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical
    inference", JASA 22 (1927).
    """
    _check_confidence(confidence)
    if not 0 <= successes <= n:
        raise ValueError(f"successes must lie in 0..n, not {successes} of {n}")
    if n == 0:
        return None, None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / n
    shrink = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / shrink
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / shrink
    # The ends are exactly 0 and 1 here; the difference of two rounded numbers is not.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return low, high


def bootstrap_ratio(
    numerators: Sequence[float] | npt.NDArray[np.float64],
    denominators: Sequence[float] | npt.NDArray[np.float64],
    *,
    seed: int = 0,
    resamples: int = 10_000,
    confidence: float = 0.95,
) -> tuple[float | None, float | None, float | None]:
    """Ratio of sums with a percentile bootstrap over paired items (prompts).

    A pair stays together when it is drawn, and each resample is a ratio of sums, not a mean of
    ratios: a long prompt weighs as much as it takes time.

    Args:
        numerators: One finite figure for each item, shape [n].
        denominators: Its partner, greater than 0, shape [n].
        seed: Seed of the resampling; the same seed gives the same interval.
        resamples: Number of bootstrap resamples.
        confidence: Coverage, strictly between 0 and 1.

    Returns:
        (ratio, low, high). The interval is (None, None) for a single item, since resampling one
        item says nothing about its spread; without items all three are None.

    Raises:
        ValueError: Unequal lengths, a figure that is not finite, a denominator that is not
            positive, or a confidence outside (0, 1).

    Source: B. Efron, "Bootstrap methods: another look at the jackknife", Ann. Statist. 7 (1979).
    """
    _check_confidence(confidence)
    top = np.asarray(numerators, dtype=np.float64)
    bottom = np.asarray(denominators, dtype=np.float64)
    if top.ndim != 1 or top.shape != bottom.shape:
        raise ValueError(f"numerators and denominators differ: {top.shape} and {bottom.shape}")
    if not (np.isfinite(top).all() and np.isfinite(bottom).all() and (bottom > 0).all()):
        raise ValueError("numerators must be finite and denominators finite and positive")
    n = top.size
    if n == 0:
        return None, None, None
    ratio = float(top.sum() / bottom.sum())
    if n == 1:
        return ratio, None, None
    drawn = np.random.default_rng(seed).integers(n, size=(resamples, n), dtype=np.int32)
    ratios = top[drawn].sum(axis=1) / bottom[drawn].sum(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return ratio, float(low), float(high)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie strictly between 0 and 1, not {confidence}")
