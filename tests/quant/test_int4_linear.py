"""The int4 kernel against the weights it stands for, and how its packing is read back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from river_llm.quant import int4_linear
from river_llm.quant.grid import GroupedInt4
from river_llm.quant.int4_linear import (
    Int4Linear,
    dequantize_blocked,
    kernel_obstacle,
    packed_block,
)

COLUMNS = 256


def weight_of(rows: int, group_size: int, columns: int = COLUMNS) -> GroupedInt4:
    """Random codes; scales and zeros differ much between rows and groups, so that a swap shows."""
    generator = torch.Generator().manual_seed(rows * 1000 + group_size)
    shape = (rows, columns // group_size)
    return GroupedInt4(
        torch.randint(16, (rows, columns), generator=generator, dtype=torch.uint8),
        (torch.rand(shape, generator=generator) * 0.2 + 0.01).bfloat16(),
        torch.randn(shape, generator=generator).bfloat16(),
    )


@pytest.mark.parametrize("rows", [16, 48, 64, 192])
@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_kernel_computes_with_the_dequantized_weights(rows, group_size, tokens):
    weight = weight_of(rows, group_size)
    x = torch.randn(tokens, COLUMNS, generator=torch.Generator().manual_seed(7)).bfloat16()
    out = Int4Linear(weight, None)(x)
    expected = x.float() @ weight.dequantize(torch.float32).T
    assert (out.dtype, out.shape) == (torch.bfloat16, (tokens, rows))
    # The output has 8 significant bits; sums of 256 products of size 1 lose a little more.
    assert torch.allclose(out.float(), expected, rtol=2**-7, atol=0.05)
    assert expected.std() > 5


def test_leading_dimensions_are_kept():
    module = Int4Linear(weight_of(48, 64), None)
    x = torch.randn(2, 5, COLUMNS).bfloat16()
    out = module(x)
    assert out.shape == (2, 5, 48)
    assert torch.equal(out[1, 3], module(x[1, 3]))


@pytest.mark.parametrize("rows", [16, 48, 64, 192])
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_zero_weights_give_exactly_the_bias(rows, tokens):
    zeros = torch.zeros(rows, 2)
    weight = GroupedInt4(
        torch.randint(16, (rows, 64), dtype=torch.uint8), zeros.bfloat16(), zeros.bfloat16()
    )
    bias = nn.Parameter(torch.arange(1.0, rows + 1).bfloat16())
    out = Int4Linear(weight, bias)(torch.randn(tokens, 64).bfloat16())
    assert torch.equal(out, bias.expand(tokens, rows))


def test_bias_is_added_once():
    weight = weight_of(64, 32)
    bias = nn.Parameter(torch.randn(64).bfloat16() * 100)
    x = torch.randn(3, COLUMNS).bfloat16()
    out = Int4Linear(weight, bias)(x).float()
    assert torch.allclose(out - bias.float(), Int4Linear(weight, None)(x).float(), atol=2.0)
    assert bias.abs().float().mean() > 50


def hand_packed(codes: torch.Tensor) -> torch.Tensor:
    """Blocks of 64 rows, column after column: byte i holds row i (low) and row i + 32 (high)."""
    rows, columns = codes.shape
    table = codes.tolist()
    packed = [
        table[block + i][column] + 16 * table[block + i + 32][column]
        for block in range(0, rows, 64)
        for column in range(columns)
        for i in range(32)
    ]
    return torch.tensor(packed, dtype=torch.uint8).view(rows, columns // 2)


def codes_behind(packed, rows, columns):
    """The codes, read back on a grid of step 1 with its zero at 0."""
    grid = torch.tensor([1.0, 0.0]).bfloat16().expand(columns // 32, rows, 2).contiguous()
    out = torch.full((rows, columns), torch.nan, dtype=torch.bfloat16)
    dequantize_blocked(packed, grid, out)
    return (out + 8).to(torch.uint8)


@pytest.mark.parametrize("rows", [64, 192])
@pytest.mark.parametrize("chunk", [1, 2**19])
def test_hand_packed_codes_are_unpacked(rows, chunk, monkeypatch):
    monkeypatch.setattr(int4_linear, "_CHUNK", chunk)
    codes = weight_of(rows, 32, 96).codes
    assert torch.equal(codes_behind(hand_packed(codes), rows, 96), codes)


@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
@pytest.mark.parametrize("rows", [64, 192])
@pytest.mark.parametrize("chunk", [1, 2**15, 2**19], ids=["a block", "two blocks", "all"])
def test_hand_packed_weights_are_dequantized_in_one_rounding(group_size, rows, chunk, monkeypatch):
    monkeypatch.setattr(int4_linear, "_CHUNK", chunk)
    weight = weight_of(rows, group_size)
    grid = torch.stack((weight.scale.T, weight.zero.T), dim=-1).contiguous()
    out = torch.full((rows, COLUMNS), torch.nan, dtype=torch.bfloat16)
    dequantize_blocked(hand_packed(weight.codes), grid, out)
    exact = (weight.codes.double() - 8).view(rows, -1, group_size) * weight.scale.double()[
        ..., None
    ] + weight.zero.double()[..., None]
    assert torch.equal(out, exact.view(rows, COLUMNS).bfloat16())


def test_the_trial_of_the_layout_says_whether_packed_codes_are_read_back():
    weight = weight_of(192, 32)
    packed = Int4Linear(weight, None).packed
    assert (packed_block() == 64) == torch.equal(codes_behind(packed, 192, COLUMNS), weight.codes)


@pytest.mark.parametrize("rows", [16, 48, 64, 192])
@pytest.mark.parametrize("group_size", [32, 128])
@pytest.mark.parametrize("blocked", ["as found", "another packing"])
def test_packed_weights_are_read_back_exactly(rows, group_size, blocked, monkeypatch):
    if blocked == "another packing":
        monkeypatch.setattr(int4_linear, "packed_block", lambda: None)
        monkeypatch.setattr(int4_linear, "dequantize_blocked", None)
    weight = weight_of(rows, group_size)
    out = torch.full((rows, COLUMNS), torch.nan, dtype=torch.bfloat16)
    Int4Linear(weight, None).dequantize_into(out)
    assert torch.equal(out, weight.dequantize(torch.bfloat16))


@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
def test_bytes_are_those_of_half_byte_codes_and_bf16_scales_and_zeros(group_size):
    module = Int4Linear(weight_of(64, group_size), nn.Parameter(torch.zeros(64).bfloat16()))
    real = sum(b.untyped_storage().nbytes() for b in module.buffers())
    assert module.nbytes == real == 64 * 256 // 2 + 64 * (256 // group_size) * 2 * 2


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("dtype", "device", "rows", "group_size", "word"),
    [
        (torch.float32, CPU, 64, 64, "float32"),
        (torch.float16, CPU, 64, 64, "float16"),
        (torch.bfloat16, CPU, 24, 64, "24"),
        (torch.bfloat16, CPU, 64, 16, "16"),
        (torch.bfloat16, CPU, 64, 512, "512"),
        (torch.bfloat16, torch.device("cuda"), 64, 64, "cuda"),
    ],
)
def test_the_kernel_is_refused_with_the_reason(dtype, device, rows, group_size, word):
    assert word in kernel_obstacle(dtype, device, rows, group_size)


@pytest.mark.parametrize("rows", [16, 48, 64, 192])
@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
def test_the_kernel_serves_bf16_on_cpu(rows, group_size):
    assert kernel_obstacle(torch.bfloat16, CPU, rows, group_size) is None
