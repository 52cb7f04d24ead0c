"""Weights for the CUDA kernel, in and out, against a slow reading of PyTorch's int4mm.cu.

The kernel itself runs in tests/cuda/.
"""

from __future__ import annotations

import pytest
import torch

from river_llm.quant import int4_cuda, kernels
from river_llm.quant.grid import GroupedInt4
from river_llm.quant.int4_cuda import (
    dequantize_tiles,
    inner_tiles,
    kernel_obstacle,
    packing_input,
    unpacked,
)

# N, K: each number of inner tiles, one tile and several of them in both directions.
SHAPES = [(8, 32), (8, 128), (16, 64), (24, 96), (40, 256), (16, 384)]


def weight_of(rows: int, columns: int, group_size: int) -> GroupedInt4:
    """Random codes; scales and zeros differ much between rows and groups, so that a swap shows."""
    generator = torch.Generator("cpu").manual_seed(rows * 1000 + columns + group_size)
    shape = (rows, columns // group_size)
    return GroupedInt4(
        torch.randint(16, (rows, columns), generator=generator, dtype=torch.uint8, device="cpu"),
        (torch.rand(shape, generator=generator, device="cpu") * 0.2 + 0.01).bfloat16(),
        torch.randn(shape, generator=generator, device="cpu").bfloat16(),
    )


def packed_slowly(halves: torch.Tensor, tiles: int) -> torch.Tensor:
    """What `_convert_weight_to_int4pack` makes of [N, K / 2] bytes on a device, lane by lane.

    A lane takes four bytes of its row for each two tiles of 16 columns (8 bytes each): its own,
    and the one 4 bytes on, of either tile. From the lowest half byte of the word on stand the four
    high halves, then the four low ones.
    """
    table = halves.tolist()
    rows, width = len(table), len(table[0])
    words = []
    for block in range(rows // 8):
        for step in range(2 * width // (16 * tiles)):
            for lane in range(32):
                for first in range(0, tiles, 2):
                    start = (step * tiles + first) * 8 + lane % 4
                    taken = [table[block * 8 + lane // 4][start + on] for on in (0, 4, 8, 12)]
                    nibbles = [byte // 16 for byte in taken] + [byte % 16 for byte in taken]
                    word = sum(nibble * 16**place for place, nibble in enumerate(nibbles))
                    words.append(word - 2**32 if word >= 2**31 else word)
    shape = (rows // 8, 2 * width // (16 * tiles), 32, tiles // 2)
    return torch.tensor(words, dtype=torch.int32, device="cpu").view(shape)


def read_slowly(packed: torch.Tensor, grid: torch.Tensor, columns: int) -> torch.Tensor:
    """The weights that the kernel multiplies with, as its tensor core instruction places them.

    In a 16 x 8 operand of m16n8k16 lane t holds row t / 4 and columns 2 (t % 4) + (0, 1, 8, 9).
    The kernel spreads a word into pairs (half byte j, half byte j + 4); pairs 0 and 1 are the first
    tile's columns, 2 and 3 the second's. weight = (code - 8) * scale + zero.
    """
    blocks, steps, _, words = packed.shape
    table, pairs_of = packed.tolist(), grid.double().tolist()
    group_size = columns // len(grid)
    out = torch.zeros(blocks * 8, columns, dtype=torch.double, device="cpu")
    for block in range(blocks):
        for step in range(steps):
            for lane in range(32):
                for place in range(words):
                    word = table[block][step][lane][place] % 2**32
                    for j in range(4):
                        tile = step * 2 * words + 2 * place + j // 2
                        for part in (0, 1):
                            code = word // 16 ** (j + 4 * part) % 16
                            row = block * 8 + lane // 4
                            column = tile * 16 + lane % 4 * 2 + part + 8 * (j % 2)
                            scale, zero = pairs_of[column // group_size][row]
                            out[row, column] = (code - 8) * scale + zero
    return out


def exact(weight: GroupedInt4) -> torch.Tensor:
    """The quantized matrix in float64, by its definition."""
    scale = weight.scale.double().repeat_interleave(weight.group_size, dim=1)
    zero = weight.zero.double().repeat_interleave(weight.group_size, dim=1)
    return (weight.codes.double() - 8) * scale + zero


def packed_of(weight: GroupedInt4) -> torch.Tensor:
    return packed_slowly(packing_input(weight.codes), inner_tiles(weight.codes.shape[1]))


def test_even_columns_stand_in_the_high_halves():
    codes = torch.tensor([[1, 2, 3, 4], [15, 0, 0, 15]], dtype=torch.uint8, device="cpu")
    halves = packing_input(codes)
    assert halves.tolist() == [[0x12, 0x34], [0xF0, 0x0F]]
    assert halves.dtype == torch.uint8
    assert halves.is_contiguous()


def test_scales_and_zeros_stand_side_by_side_group_after_group():
    weight = weight_of(8, 96, 32)
    grid = weight.scale_and_zero()
    assert (grid.shape, grid.dtype) == ((3, 8, 2), torch.bfloat16)
    assert grid.is_contiguous()
    for group, row in [(0, 0), (2, 7), (1, 3)]:
        pair = [weight.scale[row, group].item(), weight.zero[row, group].item()]
        assert grid[group, row].tolist() == pair


@pytest.mark.parametrize(
    ("columns", "tiles"),
    [(32, 2), (64, 4), (96, 2), (128, 8), (192, 4), (576, 4), (2048, 8), (14336, 8)],
)
def test_the_most_tiles_that_the_width_allows_are_packed_together(columns, tiles):
    assert inner_tiles(columns) == tiles


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_packed_weights_mean_the_quantized_ones_to_the_kernel(rows, columns):
    for group_size in (size for size in (32, 64, 128, 256) if columns % size == 0):
        weight = weight_of(rows, columns, group_size)
        meant = read_slowly(packed_of(weight), weight.scale_and_zero(), columns)
        assert torch.equal(meant, exact(weight))


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_packed_codes_are_read_back(rows, columns):
    weight = weight_of(rows, columns, 32)
    assert torch.equal(unpacked(packed_of(weight)), weight.codes)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("chunk", [1, 8 * 2 * 128, 2**24], ids=["a block", "a few", "all"])
def test_packed_weights_are_dequantized_in_one_rounding(rows, columns, chunk, monkeypatch):
    monkeypatch.setattr(int4_cuda, "_CHUNK", chunk)
    for group_size in (size for size in (32, 64, 128, 256) if columns % size == 0):
        weight = weight_of(rows, columns, group_size)
        out = torch.full((rows, columns), torch.nan, dtype=torch.bfloat16, device="cpu")
        dequantize_tiles(packed_of(weight), weight.scale_and_zero(), out)
        assert torch.equal(out, exact(weight).bfloat16())


@pytest.mark.parametrize("rows", [8, 40])
@pytest.mark.parametrize("columns", [32, 64, 96, 384])
def test_pytorch_gives_packed_weights_the_shape_that_is_read_back(rows, columns):
    """By its own shape function, which asks for no device."""
    halves = torch.empty(rows, columns // 2, dtype=torch.uint8, device="meta")
    packed = torch.ops.aten._convert_weight_to_int4pack(halves, inner_tiles(columns))
    assert packed.dtype == torch.int32
    assert packed.shape == packed_of(weight_of(rows, columns, 32)).shape
    assert packed.nbytes == rows * columns // 2


BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("dtype", "capability", "rows", "group_size", "words"),
    [
        (torch.float32, (9, 0), 64, 64, "bfloat16 activations, not float32"),
        (torch.float16, (9, 0), 64, 64, "bfloat16 activations, not float16"),
        (BF16, (7, 5), 64, 64, "compute capability 8.0, not 7.5"),
        (BF16, (9, 0), 64, 16, "group size 16"),
        (BF16, (9, 0), 64, 512, "group size 512"),
        (BF16, (9, 0), 12, 64, "multiple of 8 outputs, not 12"),
    ],
)
def test_the_kernel_is_refused_with_the_reason(dtype, capability, rows, group_size, words):
    assert words in kernel_obstacle(dtype, capability, rows, group_size)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
def test_the_kernel_serves_bf16_from_capability_8_on(capability, group_size):
    assert kernel_obstacle(BF16, capability, 8, group_size) is None


@pytest.mark.parametrize(("capability", "served"), [((7, 5), False), ((9, 0), True)])
def test_a_device_is_asked_for_its_capability(capability, served, monkeypatch):
    """The question alone is answered in its place: there is none here to ask."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    weight = weight_of(8, 64, 32)
    reason = kernels.kernel_obstacle(weight, BF16, torch.device("cuda"))
    assert (reason is None) == served


def test_rocm_devices_are_refused(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    reason = kernels.kernel_obstacle(weight_of(8, 64, 32), BF16, torch.device("cuda"))
    assert reason == "no int4 kernel for device cuda yet"
