"""PyTorch's int4 matmul for CUDA against the weights it stands for, in the shapes of Llama."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from river_llm.quant.grid import GroupedInt4
from river_llm.quant.int4_cuda import CudaInt4Linear, unpacked

LLAMA_1B = [(2048, 2048), (512, 2048), (8192, 2048), (2048, 8192)]
LLAMA_8B = [(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336)]
# One packed step of each number of inner tiles, and widths that leave a remainder.
SMALL = [(8, 32), (8, 64), (16, 128), (24, 96), (192, 576), (56, 1184)]
GROUP_SIZES = [32, 64, 128, 256]


def weight_of(rows: int, columns: int, group_size: int) -> GroupedInt4:
    """Random codes; scales and zeros differ much between rows and groups, so that a swap shows."""
    torch.manual_seed(rows + columns + group_size)
    shape = (rows, columns // group_size)
    return GroupedInt4(
        torch.randint(16, (rows, columns), dtype=torch.uint8, device="cuda"),
        (torch.rand(shape, device="cuda") * 0.2 + 0.01).bfloat16(),
        torch.randn(shape, device="cuda").bfloat16(),
    )


def fitting(shapes: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return [(n, k, size) for n, k in shapes for size in GROUP_SIZES if k % size == 0]


def activations(tokens: int, columns: int) -> torch.Tensor:
    torch.manual_seed(tokens)
    return torch.randn(tokens, columns, device="cuda").bfloat16()


@pytest.mark.parametrize(("rows", "columns", "group_size"), fitting(SMALL + LLAMA_1B + LLAMA_8B))
def test_kernel_computes_with_the_dequantized_weights(rows, columns, group_size):
    weight = weight_of(rows, columns, group_size)
    linear = CudaInt4Linear(weight, None)
    dense = weight.dequantize(torch.bfloat16).double()
    for tokens in (1, 4, 16, 17):
        x = activations(tokens, columns)
        out = linear(x)
        expected = x.double() @ dense.T
        assert (out.dtype, out.shape) == (torch.bfloat16, (tokens, rows))
        # Half a unit of bf16's last place, and sums in float32.
        allowed = expected.abs() * 2**-8 + (x.double().abs() @ dense.abs().T) * 2**-16
        assert ((out.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize(("rows", "columns", "group_size"), fitting(SMALL + LLAMA_1B))
def test_packed_weights_are_read_back_exactly(rows, columns, group_size):
    weight = weight_of(rows, columns, group_size)
    linear = CudaInt4Linear(weight, None)
    assert torch.equal(unpacked(linear.packed), weight.codes)
    out = torch.full((rows, columns), torch.nan, dtype=torch.bfloat16, device="cuda")
    linear.dequantize_into(out)
    assert torch.equal(out, weight.dequantize(torch.bfloat16))


@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_the_kernel_multiplies_with_just_those_weights(group_size):
    """Applied to the identity it gives them one by one."""
    weight = weight_of(64, 512, group_size)
    identity = torch.eye(512, dtype=torch.bfloat16, device="cuda")
    out = CudaInt4Linear(weight, None)(identity)
    assert torch.equal(out.T, weight.dequantize(torch.bfloat16))


def test_leading_dimensions_are_kept_and_the_bias_is_added_once():
    bias = nn.Parameter(torch.arange(48.0, device="cuda").bfloat16())
    weight = weight_of(48, 256, 64)
    x = activations(10, 256).view(2, 5, 256)
    plain, biased = CudaInt4Linear(weight, None), CudaInt4Linear(weight, bias)
    assert biased(x).shape == (2, 5, 48)
    assert torch.equal(biased(x), plain(x) + bias)
    # Rows that do not lie behind each other.
    assert torch.equal(plain(x[:, -1:]), plain(x)[:, -1:])


def test_bytes_are_those_of_half_byte_codes_and_bf16_scales_and_zeros():
    linear = CudaInt4Linear(weight_of(64, 256, 32), None)
    real = sum(b.untyped_storage().nbytes() for b in linear.buffers())
    assert linear.nbytes == real == 64 * 256 // 2 + 64 * (256 // 32) * 2 * 2


@pytest.mark.parametrize(("rows", "columns"), [*LLAMA_1B, *LLAMA_8B])
@pytest.mark.parametrize("tokens", [1, 4, 16])
def test_a_captured_call_equals_a_direct_one(rows, columns, tokens):
    linear = CudaInt4Linear(weight_of(rows, columns, 64), None)
    first, second = activations(tokens, columns), activations(tokens, columns).neg()
    x = first.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        linear(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = linear(x)
    for values in (second, first):
        x.copy_(values)
        graph.replay()
        assert torch.equal(out, linear(values))
    assert out.any()
