"""Round to nearest: how far a weight may move."""

from __future__ import annotations

import pytest
import torch

from river_llm.quant import rtn_int4
from river_llm.quant.grid import split_groups


def normal(shape):
    return torch.randn(shape)


def heavy_tailed(shape):
    return torch.distributions.StudentT(2.0).sample(shape) * 0.05


def shifted(shape):
    return torch.randn(shape) * 0.01 + 3.0


def tiny(shape):
    return torch.randn(shape) * 1e-4


def skewed(shape):
    return torch.rand(shape) ** 6


@pytest.mark.parametrize("group_size", [16, 64, 256])
@pytest.mark.parametrize("draw", [normal, heavy_tailed, shifted, tiny, skewed])
def test_error_is_at_most_half_a_step_and_the_rounding_of_the_grid(draw, group_size):
    """bf16 keeps 8 significant bits: it moves a number by at most 2^-8 of itself."""
    torch.manual_seed(2)
    weight = draw((24, 256))
    out = rtn_int4.quantize(split_groups(weight, group_size, "w")).dequantize(torch.float32)
    groups = weight.double().view(24, -1, group_size)
    low, high = groups.min(-1, keepdim=True).values, groups.max(-1, keepdim=True).values
    step = (high - low) / 15
    zero = low + 8 * step
    bound = step / 2 + 2**-8 * (zero.abs() + 8 * step)
    error = (groups - out.double().view_as(groups)).abs()
    assert (error <= bound * 1.0001).all()


def test_error_reaches_half_a_step_where_weights_lie_between_levels():
    """Grid 0, 1, ..., 15: a weight halfway is off by exactly half a step, not more, not less."""
    weight = torch.tensor([[0.0, 15.0, 4.5, 9.25]])
    out = rtn_int4.quantize(split_groups(weight, 4, "w")).dequantize(torch.float32)
    assert (out - weight).abs().tolist() == [[0.0, 0.0, 0.5, 0.25]]


def test_smallest_and_largest_weight_of_a_group_are_levels():
    torch.manual_seed(3)
    groups = torch.randn(6, 3, 32)
    scale, zero = rtn_int4.min_max(groups)
    assert torch.allclose(zero - 8 * scale, groups.amin(-1, keepdim=True), atol=1e-6)
    assert torch.allclose(zero + 7 * scale, groups.amax(-1, keepdim=True), atol=1e-6)
    codes = rtn_int4.quantize(groups).codes.view(6, 3, 32)
    assert (codes.amin(-1) == 0).all()
    assert (codes.amax(-1) == 15).all()
