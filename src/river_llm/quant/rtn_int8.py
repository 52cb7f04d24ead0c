"""Round to nearest at 8 bits, symmetric, with one scale for each output channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

LARGEST = 127
"""Codes are -127..127: the grid is symmetric, -128 is not used."""

SETTINGS = {"bits": 8, "symmetric": True, "scale_per": "output channel", "scale_dtype": "bf16"}
"""What is recorded beside the name."""


@dataclass(frozen=True)
class ChannelInt8:
    """An [N, K] matrix at 8 bits: weight = code * scale.

    The scale is bf16 in every use, so that all backends and dtypes compute with the same
    quantized model.

    Attributes:
        codes: int8 [N, K], values -127..127.
        scale: bf16 [N].
    """

    codes: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def from_stored(cls, stored: Mapping[str, torch.Tensor]) -> ChannelInt8:
        """The inverse of :meth:`stored`."""
        return cls(stored["codes"], stored["scale"])

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix [N, K] that the codes stand for, computed in float32, rounded to `dtype`."""
        return (self.codes.float() * self.scale.float()[:, None]).to(dtype)

    def stored(self) -> dict[str, torch.Tensor]:
        """What is kept on disk."""
        return {"codes": self.codes, "scale": self.scale}


def quantize(weight: torch.Tensor) -> ChannelInt8:
    """Quantizes a float32 matrix [N, K]: the largest weight of each row gets the code +-127."""
    # Rounded to bf16 before the codes are chosen, so that they fit the grid that will be used.
    scale = (weight.abs().amax(1) / LARGEST).to(torch.bfloat16)
    step = scale.float()[:, None]
    # A row of zeros has step 0 and codes 0.
    codes = (weight / torch.where(step == 0, 1.0, step)).round_().clamp_(-LARGEST, LARGEST)
    return ChannelInt8(codes.to(torch.int8), scale)
