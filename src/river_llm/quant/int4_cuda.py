"""4-bit linears: PyTorch's int4 matmul for CUDA, and how its packed weights are read back.

The packing is the one that the kernel for tensor cores documents (PyTorch, native/cuda/int4mm.cu).
"""

from __future__ import annotations

import torch

from river_llm.quant.grid import LEVELS
from river_llm.quant.int4_linear import KERNEL_GROUP_SIZES, PackedInt4

_LEAST_CAPABILITY = (8, 0)
_TILE_ROWS = 8
_TILE_COLUMNS = 16
_CHUNK = 2**24


def kernel_obstacle(
    dtype: torch.dtype, capability: tuple[int, int], rows: int, group_size: int
) -> str | None:
    """Why PyTorch's int4 matmul for CUDA cannot serve a linear; None when it can.

    Every width that such groups divide is served: see :func:`inner_tiles`.

    Args:
        dtype: of the activations.
        capability: compute capability of the device.
        rows: output features N.
        group_size: columns per group.
    """
    if dtype != torch.bfloat16:
        kind = str(dtype).removeprefix("torch.")
        return f"the int4 kernel for CUDA takes bfloat16 activations, not {kind}"
    if capability < _LEAST_CAPABILITY:
        found = ".".join(map(str, capability))
        return f"the int4 kernel for CUDA needs compute capability 8.0, not {found}"
    if group_size not in KERNEL_GROUP_SIZES:
        return f"the int4 kernel has no group size {group_size}"
    if rows % _TILE_ROWS:
        return f"the int4 kernel for CUDA needs a multiple of {_TILE_ROWS} outputs, not {rows}"
    return None


class CudaInt4Linear(PackedInt4):
    """A linear on PyTorch's int4 weight-only matmul for CUDA; bf16 activations.

    One launch that allocates its output alone, so it can be captured in a CUDA graph. The kernel
    rounds each weight to bf16 and sums in float32; its time grows with every 16 tokens. Where wide
    steps begin is a guess, not measured: the figures that torchao publishes (4096 x 4096 on an RTX
    A6000) put the kernel level with dequantizing and a dense matmul at 128 tokens.
    """

    backend = "int4_cuda"
    wide_step = 128

    def _pack(self, codes: torch.Tensor) -> torch.Tensor:
        """On the device, where the codes lie already."""
        packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack(
            packing_input(codes), inner_tiles(self.in_features)
        )
        return packed

    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """[T, K] times the transposed weights, [T, N], bf16; without the bias."""
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm(
            x.contiguous(), self.packed, self.group_size, self.scale_and_zero
        )
        return out

    def dequantize_into(self, out: torch.Tensor) -> None:
        """Writes the weight matrix [N, K] that this linear stands for into `out` (bf16)."""
        dequantize_tiles(self.packed, self.scale_and_zero, out)


def packing_input(codes: torch.Tensor) -> torch.Tensor:
    """What PyTorch packs for CUDA: two codes a byte, even columns HIGH.

    Args:
        codes: uint8 [N, K].

    Returns:
        uint8 [N, K / 2].
    """
    return codes[:, ::2] << 4 | codes[:, 1::2]


def inner_tiles(columns: int) -> int:
    """How many tiles of 16 columns are packed together: the most that the kernel has and K allows.

    With 8 each thread loads 16 bytes at once. Groups are multiples of 32 columns, so 2 always do.
    """
    return next(tiles for tiles in (8, 4, 2) if columns % (tiles * _TILE_COLUMNS) == 0)


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """The codes behind packed weights.

    Lane 4 r + c of a warp holds row r of a tile of 8 rows. Each of its words belongs to 32 columns:
    its half byte i, for i in 0..3, holds column 8 i + 2 c, and half byte 4 + i the one beside it.

    Args:
        packed: int32 [N / 8, K / (16 tiles), 32, tiles / 2].

    Returns:
        uint8 [N, K].
    """
    blocks, steps, _, words = packed.shape
    # Little-endian: byte 2 p + h holds half bytes 4 p + 2 h (low) and 4 p + 2 h + 1 (high).
    pairs = packed.view(torch.uint8).view(blocks, steps, 8, 4, words, 2, 2)
    codes = torch.stack((pairs & 15, pairs >> 4), dim=-1)
    # From block, step, r, c, word, p, h, low or high.
    return codes.permute(0, 2, 1, 4, 6, 7, 3, 5).reshape(blocks * _TILE_ROWS, -1)


def dequantize_tiles(packed: torch.Tensor, scale_and_zero: torch.Tensor, out: torch.Tensor) -> None:
    """Writes the weights behind packed ones into `out`.

    Args:
        packed: as :func:`unpacked` takes it.
        scale_and_zero: bf16 [K / group_size, N, 2].
        out: bf16 [N, K].
    """
    columns, groups = out.shape[1], len(scale_and_zero)
    # Some blocks at a time, so that what lies between stays small.
    stride = max(1, _CHUNK // (_TILE_ROWS * columns))
    for first in range(0, len(packed), stride):
        rows = slice(first * _TILE_ROWS, (first + stride) * _TILE_ROWS)
        codes = unpacked(packed[first : first + stride])
        centred = codes.to(out.dtype).sub_(LEVELS // 2).view(len(codes), groups, -1)
        scale, zero = scale_and_zero[:, rows].transpose(0, 1).unsqueeze(2).unbind(-1)
        # One rounding: addcmul computes in float32.
        out[rows].view_as(centred).copy_(torch.addcmul(zero, centred, scale))
