"""The 4-bit grid: codes and values worked out by hand, what is stored and what is refused."""

from __future__ import annotations

import pytest
import torch

from river_llm.errors import UserError
from river_llm.quant import hqq, rtn_int4
from river_llm.quant.grid import GroupedInt4, encode, split_groups

# Two rows of two groups of four. Every grid is exact in bf16:
# group      scale (max - min) / 15   zero min + 8 * scale
# row 0 a    3.75 / 15 = 0.25         -0.75 + 2 = 1.25
# row 0 b    7.5 / 15 = 0.5           -2 + 4 = 2
# row 1 a    15 / 15 = 1              -7 + 8 = 1
# row 1 b    30 / 15 = 2              0 + 16 = 16
WEIGHT = torch.tensor(
    [
        [-0.75, 0.1, 1.3, 3.0, -2.0, -1.1, 0.2, 5.5],
        [8.0, -7.0, 0.6, -0.4, 30.0, 0.0, 4.9, 5.1],
    ]
)
SCALE = [[0.25, 0.5], [1.0, 2.0]]
ZERO = [[1.25, 2.0], [1.0, 16.0]]
# (w - zero) / scale + 8, to the nearest whole number; e.g. 0.1: -4.6 + 8 = 3.4 -> 3.
CODES = [[0, 3, 8, 15, 0, 2, 4, 15], [15, 0, 8, 7, 15, 0, 2, 3]]
VALUES = [[-0.75, 0.0, 1.25, 3.0, -2.0, -1.0, 0.0, 5.5], [8.0, -7.0, 1.0, 0.0, 30.0, 0.0, 4.0, 6.0]]


def test_hand_worked_example():
    quantized = rtn_int4.quantize(split_groups(WEIGHT, 4, "w"))
    assert quantized.codes.dtype == torch.uint8
    assert quantized.scale.dtype == quantized.zero.dtype == torch.bfloat16
    assert quantized.codes.tolist() == CODES
    assert quantized.scale.tolist() == SCALE
    assert quantized.zero.tolist() == ZERO
    assert quantized.group_size == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dequantized_values_by_hand(dtype):
    quantized = GroupedInt4(
        torch.tensor(CODES, dtype=torch.uint8),
        torch.tensor(SCALE, dtype=torch.bfloat16),
        torch.tensor(ZERO, dtype=torch.bfloat16),
    )
    out = quantized.dequantize(dtype)
    assert out.dtype == dtype
    assert out.tolist() == VALUES


def test_two_codes_a_byte_are_stored_the_even_column_low():
    quantized = rtn_int4.quantize(split_groups(WEIGHT, 4, "w"))
    stored = quantized.stored()
    assert stored["codes"].tolist() == [
        [0 + 16 * 3, 8 + 16 * 15, 0 + 16 * 2, 4 + 16 * 15],
        [15 + 16 * 0, 8 + 16 * 7, 15 + 16 * 0, 2 + 16 * 3],
    ]
    again = GroupedInt4.from_stored(stored)
    assert again.codes.tolist() == CODES
    assert again.dequantize(torch.float32).tolist() == VALUES


@pytest.mark.parametrize("quantizer", [rtn_int4, hqq])
@pytest.mark.parametrize("value", [0.0, -0.75, 0.3, 300.5, -1e-6])
def test_a_constant_group_is_its_value_in_bf16(quantizer, value):
    weight = torch.full((3, 64), value)
    out = quantizer.quantize(split_groups(weight, 32, "w")).dequantize(torch.float32)
    assert torch.equal(out, weight.bfloat16().float())


@pytest.mark.parametrize("quantizer", [rtn_int4, hqq])
def test_a_constant_group_does_not_touch_its_neighbour(quantizer):
    weight = torch.cat((torch.full((2, 4), 0.3), WEIGHT[:, :4]), dim=1)
    out = quantizer.quantize(split_groups(weight, 4, "w")).dequantize(torch.float32)
    alone = quantizer.quantize(split_groups(WEIGHT[:, :4], 4, "w")).dequantize(torch.float32)
    assert torch.equal(out[:, 4:], alone)


def test_codes_are_the_nearest_level_of_the_grid_after_its_rounding_to_bf16():
    torch.manual_seed(1)
    groups = torch.randn(8, 4, 32) + 2.7
    scale, zero = torch.rand(8, 4, 1) * 0.2 + 0.05, torch.full((8, 4, 1), 2.7123)
    assert (scale != scale.bfloat16()).any(), "the rounding of the scale must matter"
    quantized = encode(groups, scale, zero)
    levels = torch.arange(16.0).sub(8) * quantized.scale.float()[..., None]
    levels = levels + quantized.zero.float()[..., None]
    best = (groups[..., None] - levels[:, :, None]).abs().argmin(-1)
    assert quantized.codes.view(8, 4, 32).tolist() == best.tolist()


@pytest.mark.parametrize(("width", "size"), [(96, 64), (288, 256), (64, 128), (130, 32)])
def test_a_group_that_does_not_divide_names_layer_width_and_group(width, size):
    with pytest.raises(UserError, match=rf"3\.mlp\.down_proj.*\b{width}\b.*\b{size}\b") as error:
        split_groups(torch.zeros(4, width), size, "3.mlp.down_proj")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(value):
    weight = torch.ones(4, 64)
    weight[3, 63] = value
    with pytest.raises(UserError, match=r"7\.self_attn\.q_proj"):
        split_groups(weight, 32, "7.self_attn.q_proj")


def test_groups_are_columns_of_one_row():
    groups = split_groups(torch.arange(12.0).view(2, 6).bfloat16(), 3, "w")
    assert groups.dtype == torch.float32
    assert groups.tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
