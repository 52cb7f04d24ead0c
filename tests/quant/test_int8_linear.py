"""The int8 kernel against the weights it stands for, and what it must never be given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from river_llm.quant import int8_linear
from river_llm.quant.int8_linear import Int8Linear, kernel_obstacle
from river_llm.quant.rtn_int8 import ChannelInt8


def weight_of(rows: int, columns: int = 256) -> ChannelInt8:
    """Random codes; scales differ much between rows, so that a swap shows."""
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    return ChannelInt8(
        torch.randint(-127, 128, (rows, columns), generator=generator, dtype=torch.int8),
        (torch.rand(rows, generator=generator) * 0.02 + 0.001).bfloat16(),
    )


def activations(tokens: int, columns: int) -> torch.Tensor:
    return torch.randn(tokens, columns, generator=torch.Generator().manual_seed(7)).bfloat16()


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 64, 192])
@pytest.mark.parametrize("columns", [16, 48, 256, 576])
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 40, 300])
def test_kernel_computes_with_the_dequantized_weights(rows, columns, tokens):
    weight = weight_of(rows, columns)
    x = activations(tokens, columns)
    out = Int8Linear(weight, None)(x)
    exact = weight.codes.double() * weight.scale.double()[:, None]
    expected = x.double() @ exact.T
    assert (out.dtype, out.shape) == (torch.bfloat16, (tokens, rows))
    # The output has 8 significant bits; the sums before it are in float32.
    magnitude = x.double().abs() @ exact.abs().T
    assert ((out.double() - expected).abs() <= 2**-8 * expected.abs() + 1e-5 * magnitude).all()


def test_leading_dimensions_are_kept():
    module = Int8Linear(weight_of(48), None)
    x = torch.randn(2, 5, 256).bfloat16()
    out = module(x)
    assert out.shape == (2, 5, 48)
    assert torch.equal(out[1, 3], module(x[1, 3]))


@pytest.mark.parametrize("rows", [3, 64])
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_zero_weights_give_exactly_the_bias(rows, tokens):
    weight = ChannelInt8(weight_of(rows, 64).codes, torch.zeros(rows).bfloat16())
    bias = nn.Parameter(torch.arange(1.0, rows + 1).bfloat16())
    out = Int8Linear(weight, bias)(torch.randn(tokens, 64).bfloat16())
    assert torch.equal(out, bias.expand(tokens, rows))


def test_bias_is_added_once():
    weight = weight_of(64)
    bias = nn.Parameter(torch.randn(64).bfloat16() * 100)
    x = activations(3, 256)
    out = Int8Linear(weight, bias)(x).float()
    assert torch.allclose(out - bias.float(), Int8Linear(weight, None)(x).float(), atol=2.0)
    assert bias.abs().float().mean() > 50


@pytest.mark.parametrize("offset", [1, 8, 9])
def test_weights_that_map_a_file_at_an_odd_place_are_moved(offset):
    """The kernel loads 16 aligned bytes at a time: unaligned codes end the process."""
    whole = weight_of(64)
    buffer = torch.zeros(64 * 256 + offset, dtype=torch.int8)
    odd = buffer[offset:].view(64, 256).copy_(whole.codes)
    assert odd.data_ptr() % 16
    module = Int8Linear(ChannelInt8(odd, whole.scale), None)
    assert module.codes.data_ptr() % 64 == 0
    x = activations(3, 256)
    assert torch.equal(module(x), Int8Linear(whole, None)(x))


@pytest.mark.parametrize("offset", [1, 8, 16, 17])
def test_activations_at_an_odd_place_are_moved(offset):
    module = Int8Linear(weight_of(64), None)
    x = activations(5, 256)
    buffer = torch.zeros(5 * 256 + offset).bfloat16()
    odd = buffer[offset:].view(5, 256).copy_(x)
    assert odd.storage_offset() == offset
    assert torch.equal(module(odd), module(x))


def test_activations_with_gaps_between_their_rows_are_taken():
    module = Int8Linear(weight_of(64), None)
    x = activations(5, 256)
    wide = torch.full((5, 256 + 8), torch.nan).bfloat16()
    wide[:, :256] = x
    assert torch.equal(module(wide[:, :256]), module(x))


@pytest.mark.parametrize("rows", [1, 3, 64, 192])
@pytest.mark.parametrize("chunk", [1, 2**10, 2**19], ids=["a row", "four rows", "all"])
def test_weights_are_written_out_in_one_rounding(rows, chunk, monkeypatch):
    monkeypatch.setattr(int8_linear, "_CHUNK", chunk)
    weight = weight_of(rows)
    out = torch.full((rows, 256), torch.nan, dtype=torch.bfloat16)
    Int8Linear(weight, None).dequantize_into(out)
    exact = weight.codes.double() * weight.scale.double()[:, None]
    assert torch.equal(out, exact.bfloat16())


def test_bytes_are_those_of_one_byte_codes_and_bf16_scales():
    module = Int8Linear(weight_of(64), nn.Parameter(torch.zeros(64).bfloat16()))
    real = sum(b.untyped_storage().nbytes() for b in module.buffers())
    assert module.nbytes == real == 64 * 256 + 64 * 2


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("dtype", "device", "columns", "word"),
    [
        (torch.float32, CPU, 64, "float32"),
        (torch.float16, CPU, 64, "float16"),
        (torch.bfloat16, CPU, 24, "24"),
        (torch.bfloat16, CPU, 72, "72"),
        (torch.bfloat16, torch.device("cuda"), 64, "cuda"),
    ],
)
def test_the_kernel_is_refused_with_the_reason(dtype, device, columns, word):
    assert word in kernel_obstacle(dtype, device, columns)


@pytest.mark.parametrize("columns", [16, 48, 576, 1536])
def test_the_kernel_serves_bf16_on_cpu(columns):
    assert kernel_obstacle(torch.bfloat16, CPU, columns) is None
