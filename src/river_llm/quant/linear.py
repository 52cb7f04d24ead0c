"""What the river needs of a linear that runs on a kernel for quantized weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import nn

Backend = Literal["int4_cpu", "int8_cpu", "dequantized", "copied"]


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
