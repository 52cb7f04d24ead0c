"""Intervals against values worked out by hand and against their properties."""

from __future__ import annotations

import numpy as np
import pytest

from river_llm.analysis.statistics import (
    bootstrap_ratio,
    paired_difference_interval,
    pairs_to_prove,
    provable_margin,
    wilson_interval,
)

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


# Published intervals, all at 95 % but the second: 4, 9, 3, 16 and the crossover trial 43, 0, 1, 0
# at 90 % of Tango (1998); airway reactivity 1, 1, 7, 12 of Fagerland, Lydersen, Laake (2014).
TANGO = [
    (9, 3, 32, 0.95, -0.027, 0.390),
    (0, 1, 44, 0.90, -0.096, 0.037),
    (1, 7, 21, 0.95, -0.517, -0.026),
]


@pytest.mark.parametrize(("gained", "lost", "n", "confidence", "low", "high"), TANGO)
def test_paired_interval_of_published_examples(
    gained: int, lost: int, n: int, confidence: float, low: float, high: float
) -> None:
    found = paired_difference_interval(gained, lost, n, confidence)
    assert found == pytest.approx((low, high), abs=5e-4)


def rejected(gained: int, lost: int, n: int, difference: float) -> bool:
    """The score test at 95 %, its nuisance share found by looking at very many of them."""
    q = np.linspace(max(0.0, -difference), (1 - difference) / 2, 200_001)[1:-1]
    same = n - gained - lost
    likelihood = gained * np.log(q + difference) + lost * np.log(q)
    likelihood = likelihood + same * np.log(1 - 2 * q - difference)
    best = q[np.argmax(likelihood)]
    variance = (2 * best + difference - difference**2) / n
    return bool(((gained - lost) / n - difference) ** 2 > 1.959964**2 * variance)


@pytest.mark.parametrize(
    ("gained", "lost", "n"), [(3, 1, 10), (0, 2, 8), (12, 30, 200), (5, 5, 40)]
)
def test_paired_interval_holds_what_the_score_test_does_not_reject(
    gained: int, lost: int, n: int
) -> None:
    low, high = paired_difference_interval(gained, lost, n)
    assert low is not None and high is not None
    for difference in (low + 1e-3, (low + high) / 2 + 1e-4, high - 1e-3):
        assert not rejected(gained, lost, n, difference)
    for difference in (low - 1e-3, high + 1e-3):
        assert rejected(gained, lost, n, difference)


def test_paired_interval_holds_no_difference_where_mcnemar_does_not_reject() -> None:
    for gained in range(0, 12):
        for lost in range(0, 12):
            low, high = paired_difference_interval(gained, lost, 60)
            assert low is not None and high is not None
            assert -1 <= low <= (gained - lost) / 60 <= high <= 1
            statistic = (gained - lost) ** 2 / max(gained + lost, 1)
            assert (low <= 0 <= high) == (statistic <= 1.959964**2)
            assert paired_difference_interval(lost, gained, 60) == (-high, -low)


def test_paired_interval_ends() -> None:
    assert paired_difference_interval(0, 0, 0) == (None, None)
    assert paired_difference_interval(7, 0, 7)[1] == 1
    assert paired_difference_interval(0, 7, 7)[0] == -1


@pytest.mark.parametrize(("gained", "lost", "n"), [(2, 2, 3), (-1, 0, 3), (0, -1, 3)])
def test_paired_interval_refuses_what_are_no_counts(gained: int, lost: int, n: int) -> None:
    with pytest.raises(ValueError):
        paired_difference_interval(gained, lost, n)


def test_what_unchanged_pairs_prove_by_hand() -> None:
    # z^2 / (n + z^2) with z^2 = 3.841459.
    assert provable_margin(4) == pytest.approx(3.841459 / 7.841459, abs=1e-6)
    assert provable_margin(1319) == pytest.approx(3.841459 / 1322.841459, abs=1e-6)
    assert provable_margin(0) is None
    assert pairs_to_prove(0.01) == 381  # 3.841459 * 99 = 380.3
    assert pairs_to_prove(0.05) == 73  # 3.841459 * 19 = 72.99


@pytest.mark.parametrize("margin", [0.001, 0.01, 0.02, 0.05, 0.3])
def test_one_pair_fewer_proves_less_than_the_margin(margin: float) -> None:
    n = pairs_to_prove(margin)
    enough, too_few = provable_margin(n), provable_margin(n - 1)
    assert enough is not None and too_few is not None
    assert enough <= margin < too_few


@pytest.mark.parametrize("margin", [0, 1, -0.1])
def test_a_margin_that_is_no_share_is_refused(margin: float) -> None:
    with pytest.raises(ValueError):
        pairs_to_prove(margin)
