"""HQQ against round to nearest, and against a second, slow implementation."""

from __future__ import annotations

import random

import pytest
import torch

from river_llm.quant import hqq, rtn_int4


def heavy_tailed(rows: int, seed: int = 5) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.distributions.StudentT(3.0).sample((rows, 4, 64)) * 0.05


def error_on_grid(groups: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Distance of every weight to the nearest of the 16 levels, in float64, by trying them all."""
    levels = torch.arange(-8.0, 8.0, dtype=torch.float64) * scale.double() + zero.double()
    return (groups.double()[..., None] - levels[:, :, None]).abs().amin(-1)


def test_no_group_is_worse_than_round_to_nearest_and_most_are_better():
    groups = heavy_tailed(64)
    scale, zero = rtn_int4.min_max(groups)
    before = error_on_grid(groups, scale, zero).mean(-1)
    after = error_on_grid(groups, scale, hqq.optimize_zero(groups, scale, zero)).mean(-1)
    assert (after <= before * (1 + 1e-6)).all()
    assert (after < before * 0.999).double().mean() > 0.5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_error_of_the_stored_weights_is_smaller_in_the_lp_sense(seed):
    groups = heavy_tailed(64, seed)

    def lp(quantizer):
        stored = quantizer.quantize(groups).dequantize(torch.float32).view_as(groups)
        return (groups - stored).abs().pow(0.7).sum().item()

    assert lp(hqq) < 0.99 * lp(rtn_int4)


def test_same_weights_give_the_same_codes_and_are_not_changed():
    groups = heavy_tailed(16)
    kept = groups.clone()
    first, second = hqq.quantize(groups), hqq.quantize(groups)
    assert torch.equal(groups, kept)
    for name in ("codes", "scale", "zero"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert (first.zero != rtn_int4.quantize(groups).zero).any()


def test_scale_stays_at_its_min_max_value():
    groups = heavy_tailed(16)
    assert torch.equal(hqq.quantize(groups).scale, rtn_int4.quantize(groups).scale)


def slow_zero(weights: list[float]) -> float:
    """The half-quadratic iteration for one group, in plain Python floats.

    In the published form a weight is (q - z) / s with q = clip(round(w * s + z)), so the zero
    lives among the codes 0..15. Each turn takes the error e = w - (q - z) / s, shrinks it by
    sign(e) * max(|e| - |e|^(p - 1) / beta, 0), averages z = mean(q - (w - e) * s), and raises
    beta; it ends when the mean error no longer falls.
    """
    low, high = min(weights), max(weights)
    s = 15 / (high - low)
    z = -low * s
    beta, best_error, best_z = 10.0, float("inf"), z
    for _ in range(20):
        codes = [min(15, max(0, round(w * s + z))) for w in weights]
        errors = [w - (q - z) / s for w, q in zip(weights, codes, strict=True)]
        size = sum(map(abs, errors)) / len(errors)
        if size >= best_error:
            break
        best_error, best_z = size, z
        shrunk = []
        for e in errors:
            kept = max(abs(e) - abs(e) ** (0.7 - 1) / beta, 0.0) if e else 0.0
            shrunk.append(kept if e > 0 else -kept)
        z = sum(q - (w - e) * s for q, w, e in zip(codes, weights, shrunk, strict=True)) / len(
            weights
        )
        beta *= 1.01
    # weight = (q - 8) / s + zero = (q - z) / s
    return (8 - best_z) / s


@pytest.mark.parametrize(
    ("spread", "seed"),
    [(0.05, seed) for seed in (2, 5, 6, 8, 10, 16)]
    + [(1.0, seed) for seed in (2, 6, 8, 10, 16, 17)]
    + [(20.0, seed) for seed in (6, 36, 284)],
)
def test_zero_equals_a_slow_implementation_of_the_published_iteration(spread, seed):
    """The spread decides how much the shrinking leaves: nothing at 0.05, most of it at 20."""
    rng = random.Random(seed)
    weights = [spread * rng.gauss(0, 1) * (1 + 4 * (rng.random() < 0.05)) for _ in range(64)]
    groups = torch.tensor(weights).view(1, 1, 64)
    scale, zero = rtn_int4.min_max(groups)
    step = scale.item()
    expected = slow_zero(groups.flatten().tolist())
    assert abs(expected - zero.item()) > 0.05 * step, "a zero that stays would prove nothing"
    assert hqq.optimize_zero(groups, scale, zero).item() == pytest.approx(expected, abs=1e-3 * step)
