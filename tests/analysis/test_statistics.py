"""Intervals against values worked out by hand and against their properties."""

from __future__ import annotations

import numpy as np
import pytest

from river_llm.analysis.statistics import bootstrap_ratio, wilson_interval

# z = 1.959964, z^2 = 3.841459. For 3 of 10: centre (0.3 + 3.841459/20) / 1.3841459 = 0.355506,
# half width 1.959964 * sqrt(0.021 + 3.841459/400) / 1.3841459 = 0.247716. For 0 of 5 the upper
# end is z^2 / (5 + z^2). At 90 %, z = 1.644854.
WILSON = [
    (3, 10, 0.95, 0.107790, 0.603222),
    (0, 5, 0.95, 0.0, 3.841459 / 8.841459),
    (5, 5, 0.95, 5 / 8.841459, 1.0),
    (1, 1, 0.90, 1 / (1 + 1.644854**2), 1.0),
]


@pytest.mark.parametrize(("successes", "n", "confidence", "low", "high"), WILSON)
def test_wilson_interval_by_hand(
    successes: int, n: int, confidence: float, low: float, high: float
) -> None:
    assert wilson_interval(successes, n, confidence) == pytest.approx((low, high), abs=2e-6)


def test_wilson_interval_stays_a_share_at_its_ends() -> None:
    for n in range(1, 200):
        low, high = wilson_interval(0, n)
        assert low == 0 and 0 < high < 1
        low, high = wilson_interval(n, n)
        assert 0 < low < 1 and high == 1


def test_wilson_interval_of_no_trials_is_null() -> None:
    assert wilson_interval(0, 0) == (None, None)


@pytest.mark.parametrize(("successes", "n", "confidence"), [(4, 3, 0.95), (-1, 3, 0.95), (1, 3, 1)])
def test_wilson_interval_refuses_what_is_no_share(
    successes: int, n: int, confidence: float
) -> None:
    with pytest.raises(ValueError):
        wilson_interval(successes, n, confidence)


def test_bootstrap_of_a_constant_ratio_has_no_width() -> None:
    # Unpaired resampling of these would give ratios from 0.02 to 200.
    assert bootstrap_ratio([2, 20, 200], [1, 10, 100]) == (2, 2, 2)


def test_bootstrap_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    ratio, _, _ = bootstrap_ratio([10, 3], [10, 1])
    assert ratio == pytest.approx(13 / 11)


def test_bootstrap_of_two_items_by_hand() -> None:
    # Resamples give 1, 2, 3 with probabilities 1/4, 1/2, 1/4.
    assert bootstrap_ratio([1, 3], [1, 1]) == (2, 1, 3)
    assert bootstrap_ratio([1, 3], [1, 1], confidence=0.4) == (2, 2, 2)


def test_bootstrap_of_one_prompt_has_no_interval() -> None:
    assert bootstrap_ratio([3.0], [2.0]) == (1.5, None, None)


def test_bootstrap_of_nothing_is_null() -> None:
    assert bootstrap_ratio([], []) == (None, None, None)


def test_bootstrap_depends_on_its_seed_alone() -> None:
    items = np.random.default_rng(7).uniform(1, 2, size=(2, 12))
    first = bootstrap_ratio(*items, seed=1)
    assert bootstrap_ratio(*items, seed=1) == first
    assert bootstrap_ratio(*items, seed=2) != first


def test_bootstrap_width_agrees_with_the_delta_method() -> None:
    rng = np.random.default_rng(3)
    bottom = rng.uniform(1, 3, size=400)
    top = 1.8 * bottom + rng.normal(0, 0.3, size=400)
    ratio, low, high = bootstrap_ratio(top, bottom)
    assert ratio is not None and low is not None and high is not None
    spread = np.std(top - ratio * bottom, ddof=1) / (np.sqrt(400) * bottom.mean())
    assert high - low == pytest.approx(2 * 1.959964 * spread, rel=0.05)
    assert low < ratio < high


@pytest.mark.parametrize(
    ("numerators", "denominators"),
    [([1, 2], [1]), ([1, 2], [1, 0]), ([1, float("nan")], [1, 1]), ([[1]], [[1]])],
)
def test_bootstrap_refuses_what_has_no_ratio(numerators: list, denominators: list) -> None:
    with pytest.raises(ValueError):
        bootstrap_ratio(numerators, denominators)
