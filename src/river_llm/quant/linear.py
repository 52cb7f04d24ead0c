"""Linears in place of a backbone's: what one on a kernel must offer, and dense copies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import nn

Backend = Literal["int4_cpu", "int4_cuda", "int8_cpu", "dequantized", "copied"]


class KernelLinear(nn.Module, ABC):
    """A linear [..., K] -> [..., N] over quantized weights, whose matmul reads them packed.

    Attributes:
        backend: what records call the kernel.
        wide_step: tokens from which a step is faster through dequantized weights. The time of
            such a kernel grows with the number of tokens, that of the dense matmul hardly, but
            its weights must be written out first.
        in_features: K.
        out_features: N.
        bias: [N] or None.
    """

    backend: ClassVar[Backend]
    wide_step: ClassVar[int]
    in_features: int
    out_features: int
    bias: nn.Parameter | None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights with their scales and zeros, as one matmul reads them."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] to [..., N], in the dtype of the activations."""
        out = self.matmul(x.reshape(-1, self.in_features))
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], self.out_features)

    @abstractmethod
    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """[T, K] times the transposed weights, [T, N]; without the bias."""

    @abstractmethod
    def dequantize_into(self, out: torch.Tensor) -> None:
        """Writes the weight matrix [N, K] that this linear stands for into `out`."""


def dense_linear(weight: torch.Tensor, bias: nn.Parameter | None) -> nn.Linear:
    """A linear over a given weight [N, K], without initializing one first."""
    rows, columns = weight.shape
    linear = nn.Linear(columns, rows, bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    linear.register_parameter("bias", bias)
    return linear
