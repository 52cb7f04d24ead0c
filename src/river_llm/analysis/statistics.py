"""Intervals for shares, for differences of paired shares and for ratios of sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

BISECTIONS = 60  # halvings of an interval of at most 2: below the resolution of a float


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


def paired_difference_interval(
    gained: int, lost: int, n: int, confidence: float = 0.95
) -> tuple[float, float] | tuple[None, None]:
    """Tango's score interval of a difference of shares over matched pairs.

    It holds every difference that the score test does not reject, so it stays inside [-1, 1] and
    keeps a width where no pair changed, which Wald's interval does not: with few changed pairs,
    as between a method and no_exit, that is the case that matters.

    Args:
        gained: Pairs that changed from failure to success.
        lost: Pairs that changed from success to failure.
        n: All pairs, the unchanged ones too.
        confidence: Coverage, strictly between 0 and 1.

    Returns:
        (low, high) of (gained - lost) / n, or (None, None) when n is 0.

    Raises:
        ValueError: Counts that are none of pairs, or a confidence outside (0, 1).

    Source: T. Tango, "Equivalence test and confidence interval for the difference in proportions
    for the paired-sample design", Stat. Med. 17 (1998); compared with others and recommended in
    M. W. Fagerland, S. Lydersen, P. Laake, Stat. Med. 33 (2014).
    """
    _check_confidence(confidence)
    if gained < 0 or lost < 0 or gained + lost > n:
        raise ValueError(f"{gained} gained and {lost} lost are no counts of {n} pairs")
    if n == 0:
        return None, None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    high = _upper_end(gained, lost, n, z)
    # The lower end of a difference is the upper end of its negative.
    return -_upper_end(lost, gained, n, z), high


def _upper_end(gained: int, lost: int, n: int, z: float) -> float:
    """The largest difference that the score test does not reject."""
    if gained == n:
        return 1.0
    low, high = (gained - lost) / n, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _score(gained, lost, n, middle) > -z:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _score(gained: int, lost: int, n: int, difference: float) -> float:
    """Tango's statistic: observed minus assumed difference, over its error under the latter."""
    # The likeliest share of losses q where that of gains is q + difference: a quadratic's root.
    linear = (2 * n - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    q = (sqrt(linear * linear - 8 * n * constant) - linear) / (4 * n)
    variance = n * (2 * q + difference * (1 - difference))
    return (gained - lost - n * difference) / sqrt(variance)


def provable_margin(n: int, confidence: float = 0.95) -> float | None:
    """How near to each other n pairs can prove two shares to be when not one of them changed.

    Args:
        n: Number of pairs.
        confidence: Coverage, strictly between 0 and 1.

    Returns:
        z^2 / (n + z^2), the width of :func:`paired_difference_interval` to either side; None when
        n is 0.
    """
    low, _ = paired_difference_interval(0, 0, n, confidence)
    return None if low is None else -low


def pairs_to_prove(margin: float, confidence: float = 0.95) -> int:
    """The number of pairs from which on :func:`provable_margin` is at most `margin`.

    Args:
        margin: A share, strictly between 0 and 1.
        confidence: Coverage, strictly between 0 and 1.

    Raises:
        ValueError: A margin or a confidence outside (0, 1).
    """
    _check_confidence(confidence)
    if not 0 < margin < 1:
        raise ValueError(f"margin must lie strictly between 0 and 1, not {margin}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return ceil(z * z * (1 - margin) / margin)


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
