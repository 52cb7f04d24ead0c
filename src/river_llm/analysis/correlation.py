"""Pearson's r with an interval that knows that the tokens of one text are not independent."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from river_llm.analysis.points import Estimate

RESAMPLES = 10_000


def pearson(
    x: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike, *, seed: int = 0
) -> Estimate:
    """Pearson's r of tokens, with a 95 % percentile bootstrap over the texts they belong to.

    Args:
        x, y: finite figures, one pair for each token.
        groups: the text of each token.
        seed: of the resampling.

    Returns:
        r and its ends; without an interval for a single text, and all None where x or y does not
        vary at all.

    Raises:
        ValueError: unequal lengths, or a figure that is not finite.
    """
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    texts = np.asarray(groups)
    if first.ndim != 1 or not first.shape == second.shape == texts.shape:
        raise ValueError(f"shapes differ: {first.shape}, {second.shape} and {texts.shape}")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("r needs finite figures")
    if len(first) == 0 or first.min() == first.max() or second.min() == second.max():
        return Estimate(None)
    # Centred and scaled before sums of squares are subtracted from one another.
    first = (first - first.mean()) / first.std()
    second = (second - second.mean()) / second.std()
    names, index = np.unique(texts, return_inverse=True)
    moments = np.stack(
        [np.ones_like(first), first, second, first**2, second**2, first * second], axis=1
    )
    sums = np.zeros((len(names), moments.shape[1]))
    np.add.at(sums, index, moments)
    r = float(_r(sums.sum(axis=0)))
    if len(names) == 1:
        return Estimate(r)
    drawn = np.random.default_rng(seed).integers(len(names), size=(RESAMPLES, len(names)))
    resampled = _r(sums[drawn].sum(axis=1))
    # A draw in which one of the two does not vary has no r.
    low, high = np.nanquantile(resampled, [0.025, 0.975])
    return Estimate(r, float(low), float(high))


def _r(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Pearson's r from n and the sums of x, y, x^2, y^2 and xy, on the last axis."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y))
    clipped: npt.NDArray[np.float64] = np.clip(r, -1.0, 1.0)
    return clipped
