"""4-bit linears: PyTorch's int4 matmul for CPU, and how its packed weights are read back."""

from __future__ import annotations

import functools
from abc import abstractmethod

import torch
from torch import nn

from river_llm.quant.grid import LEVELS, GroupedInt4
from river_llm.quant.linear import KernelLinear

KERNEL_GROUP_SIZES = (32, 64, 128, 256)
_ROW_MULTIPLE = 16
_BLOCK = 64
_CHUNK = 2**19


def kernel_obstacle(
    dtype: torch.dtype, device: torch.device, rows: int, group_size: int
) -> str | None:
    """Why PyTorch's int4 matmul for CPU cannot serve a linear; None when it can.

    Args:
        dtype: of the activations.
        device: where the linear runs.
        rows: output features N.
        group_size: columns per group.
    """
    if device.type != "cpu":
        return f"no int4 kernel for device {device.type} yet"
    if dtype != torch.bfloat16:
        return f"the int4 kernel is slow for {str(dtype).removeprefix('torch.')} activations"
    if group_size not in KERNEL_GROUP_SIZES:
        return f"the int4 kernel has no group size {group_size}"
    if rows % _ROW_MULTIPLE:
        return f"the int4 kernel needs a multiple of {_ROW_MULTIPLE} outputs, not {rows}"
    return None


class PackedInt4(KernelLinear):
    """What a linear on any of PyTorch's int4 matmuls keeps.

    Args:
        weight: the quantized [N, K] matrix.
        bias: [N] or None; shared, not copied.
    """

    packed: torch.Tensor
    scale_and_zero: torch.Tensor

    def __init__(self, weight: GroupedInt4, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.codes.shape
        self.group_size = weight.group_size
        self.register_buffer("packed", self._pack(weight.codes))
        self.register_buffer("scale_and_zero", weight.scale_and_zero())
        self.bias = bias

    @abstractmethod
    def _pack(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes, uint8 [N, K], as the kernel reads them."""


class Int4Linear(PackedInt4):
    """A linear on PyTorch's int4 weight-only matmul for CPU; bf16 activations.

    Wide steps begin where they do because a whole prefill of SmolLM2-135M in the river took 146 ms
    by the kernel and 163 ms by the scratch layer at 96 tokens, 196 and 176 ms at 128 (medians of
    7, 2 cores with AVX512-BF16). Other shapes have not been measured.
    """

    backend = "int4_cpu"
    wide_step = 112

    def _pack(self, codes: torch.Tensor) -> torch.Tensor:
        packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
        return packed

    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """[T, K] times the transposed weights, [T, N], bf16; without the bias."""
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, self.packed, self.group_size, self.scale_and_zero
        )
        return out

    def dequantize_into(self, out: torch.Tensor) -> None:
        """Writes the weight matrix [N, K] that this linear stands for into `out` (bf16)."""
        if self.out_features % _BLOCK or packed_block() != _BLOCK:
            # Works for any packing: the kernel applied to the identity.
            identity = torch.eye(self.in_features, dtype=out.dtype)
            out.copy_(self.matmul(identity).T)
            return
        dequantize_blocked(self.packed, self.scale_and_zero, out)


def dequantize_blocked(
    packed: torch.Tensor, scale_and_zero: torch.Tensor, out: torch.Tensor
) -> None:
    """Writes the weights behind the packing of the AVX-512 kernel into `out`.

    There, each block of 64 rows is stored column after column as 32 bytes: row i of the block in
    the low half of byte i, row i + 32 in the high half.

    Args:
        packed: uint8 [N, K / 2].
        scale_and_zero: bf16 [K / group_size, N, 2].
        out: bf16 [N, K].
    """
    rows, columns = out.shape
    groups, blocks = len(scale_and_zero), rows // _BLOCK
    halves = packed.view(blocks, groups, columns // groups, _BLOCK // 2)
    grid = scale_and_zero.view(groups, blocks, _BLOCK, 2).transpose(0, 1).unsqueeze(2)
    target = out.view(blocks, _BLOCK, columns)
    # A few blocks at a time, so that what lies between stays in the cache.
    stride = max(1, _CHUNK // (_BLOCK * columns))
    for first in range(0, blocks, stride):
        part = slice(first, first + stride)
        codes = torch.cat((halves[part] & 15, halves[part] >> 4), dim=-1)
        centred = codes.to(out.dtype).sub_(LEVELS // 2)
        scale, zero = grid[part].unbind(-1)
        # One rounding: addcmul computes in float32.
        weight = torch.addcmul(zero.contiguous(), centred, scale.contiguous(), out=centred)
        target[part].copy_(weight.view(-1, columns, _BLOCK).transpose(1, 2))


@functools.cache
def packed_block() -> int | None:
    """Rows that this machine's kernel packs together, tried out once; None: in no way known here.

    In a block, column after column takes block / 2 bytes: row i stands in the low half of byte i,
    row i + block / 2 in the high half. AVX-512 packs blocks of 64, AVX2 of 32.
    """
    rows, columns = 2 * _BLOCK, 64
    codes = torch.arange(rows * columns, dtype=torch.int32).view(rows, columns)
    codes = (codes * 7 + codes // 16) % LEVELS
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1).flatten()
    for block in (_BLOCK, _BLOCK // 2):
        low, high = codes.view(-1, 2, block // 2, columns).unbind(1)
        if torch.equal(packed, (low | high << 4).transpose(1, 2).flatten().to(torch.uint8)):
            return block
    return None
