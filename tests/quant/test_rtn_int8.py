"""8-bit round to nearest: codes and values worked out by hand, and how far a weight may move."""

from __future__ import annotations

import pytest
import torch

from river_llm.quant.rtn_int8 import ChannelInt8, quantize

# Every scale is exact in bf16:
# row    largest / 127
# 0      31.75 / 127 = 0.25
# 1      254 / 127 = 2
# 2      zeros: no scale
WEIGHT = torch.tensor([[-31.75, 0.1, 7.6, 0.2], [254.0, -3.1, 0.9, -100.0], [0.0, 0.0, 0.0, 0.0]])
SCALE = [0.25, 2.0, 0.0]
CODES = [[-127, 0, 30, 1], [127, -2, 0, -50], [0, 0, 0, 0]]
VALUES = [[-31.75, 0.0, 7.5, 0.25], [254.0, -4.0, 0.0, -100.0], [0.0, 0.0, 0.0, 0.0]]


def test_hand_worked_example():
    quantized = quantize(WEIGHT)
    assert (quantized.codes.dtype, quantized.scale.dtype) == (torch.int8, torch.bfloat16)
    assert quantized.scale.tolist() == SCALE
    assert quantized.codes.tolist() == CODES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dequantized_values_by_hand(dtype):
    quantized = ChannelInt8(
        torch.tensor(CODES, dtype=torch.int8), torch.tensor(SCALE, dtype=torch.bfloat16)
    )
    out = quantized.dequantize(dtype)
    assert out.dtype == dtype
    assert out.tolist() == VALUES


def normal(shape):
    return torch.randn(shape)


def heavy_tailed(shape):
    return torch.distributions.StudentT(2.0).sample(shape) * 0.05


def shifted(shape):
    return torch.randn(shape) * 0.01 + 3.0


def tiny(shape):
    return torch.randn(shape) * 1e-4


@pytest.mark.parametrize("draw", [normal, heavy_tailed, shifted, tiny])
def test_error_is_at_most_half_a_step(draw):
    """Rounding the scale to bf16 moves it by at most 2^-9: at the ends a quarter of a step."""
    torch.manual_seed(2)
    weight = draw((24, 256))
    out = quantize(weight).dequantize(torch.float32)
    step = weight.double().abs().amax(1, keepdim=True) / 127
    error = (weight.double() - out.double()).abs()
    assert (error <= step / 2 * (1 + 2**-8)).all()
    assert error.max() > 0.4 * step.min(), "coarser than a copy"


def test_codes_are_the_nearest_of_all_after_the_scale_was_rounded_to_bf16():
    torch.manual_seed(1)
    weight = torch.randn(8, 64) * 0.37
    quantized = quantize(weight)
    exact = weight.abs().amax(1) / 127
    assert torch.equal(quantized.scale, exact.bfloat16())
    assert (quantized.scale.float() != exact).all(), "the rounding of the scale must matter"
    levels = torch.arange(-127.0, 128.0) * quantized.scale.float()[:, None]
    best = (weight[..., None] - levels[:, None]).abs().argmin(-1) - 127
    assert quantized.codes.tolist() == best.tolist()


def test_rows_are_quantized_alone_and_signs_are_kept():
    torch.manual_seed(4)
    weight = torch.randn(5, 32) * torch.tensor([1e-3, 1.0, 50.0, 0.1, 7.0])[:, None]
    together = quantize(weight).dequantize(torch.float32)
    alone = torch.cat([quantize(row[None]).dequantize(torch.float32) for row in weight])
    assert torch.equal(together, alone)
    assert torch.equal(quantize(-weight).dequantize(torch.float32), -together)


def test_same_weights_give_the_same_codes_and_are_not_changed():
    weight = torch.randn(6, 48)
    kept = weight.clone()
    first, second = quantize(weight), quantize(weight)
    assert torch.equal(weight, kept)
    assert torch.equal(first.codes, second.codes)
    assert torch.equal(first.scale, second.scale)
