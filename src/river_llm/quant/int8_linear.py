"""8-bit linears: PyTorch's int8 weight-only matmul for CPU."""

from __future__ import annotations

import torch
from torch import nn

from river_llm.quant.linear import KernelLinear
from river_llm.quant.rtn_int8 import ChannelInt8

_WIDTH_MULTIPLE = 16
_CHUNK = 2**19


def kernel_obstacle(dtype: torch.dtype, device: torch.device, columns: int) -> str | None:
    """Why PyTorch's int8 matmul for CPU cannot serve a linear; None when it can.

    Args:
        dtype: of the activations.
        device: where the linear runs.
        columns: input features K.
    """
    if device.type != "cpu":
        return f"no int8 kernel for device {device.type} yet"
    if dtype != torch.bfloat16:
        kind = str(dtype).removeprefix("torch.")
        return f"the int8 kernel is used for bfloat16 activations, not {kind}"
    if columns % _WIDTH_MULTIPLE:
        # The kernel checks nothing: it reads beyond the end of each row, or crashes.
        return f"the int8 kernel needs a multiple of {_WIDTH_MULTIPLE} inputs, not {columns}"
    return None


class Int8Linear(KernelLinear):
    """A linear on PyTorch's int8 weight-only matmul for CPU; bf16 activations.

    The kernel multiplies code by scale and sums in float32, and rounds once. Wide steps begin
    earlier than at 4 bits, since its time grows faster with the tokens: a whole prefill of
    SmolLM2-135M in the river took 107 ms by the kernel and 110 ms by the scratch layer at 24
    tokens, 128 and 113 ms at 32 (medians of 7, one thread, AVX512-BF16, busy machine); with two
    threads they met between 28 and 32. Other shapes have not been measured.

    Args:
        weight: the quantized [N, K] matrix.
        bias: [N] or None; shared, not copied.
    """

    backend = "int8_cpu"
    wide_step = 28
    codes: torch.Tensor
    scale: torch.Tensor

    def __init__(self, weight: ChannelInt8, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.codes.shape
        # A copy: the kernel loads aligned vectors and crashes on tensors that map a file at an
        # odd place; and weights that are read at every step belong in memory.
        self.register_buffer("codes", weight.codes.clone())
        self.register_buffer("scale", weight.scale)
        self.bias = bias

    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """[T, K] times the transposed weights, [T, N], bf16; without the bias."""
        flat = x.contiguous()
        if flat.storage_offset() % _WIDTH_MULTIPLE:
            # Activations must lie aligned as well.
            flat = flat.clone()
        return torch._weight_int8pack_mm(flat, self.codes, self.scale)

    def dequantize_into(self, out: torch.Tensor) -> None:
        """Writes the weight matrix [N, K] that this linear stands for into `out` (bf16)."""
        # A few rows at a time, so that what lies between stays in the cache. Codes are exact in
        # bf16, so that only the product is rounded.
        rows = max(1, _CHUNK // self.in_features)
        for first in range(0, self.out_features, rows):
            part = slice(first, first + rows)
            out[part].copy_(self.codes[part]).mul_(self.scale[part, None])
