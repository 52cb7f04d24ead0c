"""A 4-bit weight matrix: codes on a grid of its own for each group of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from river_llm.errors import UserError

LEVELS = 16


@dataclass(frozen=True)
class GroupedInt4:
    """An [N, K] matrix at 4 bits: weight = (code - 8) * scale + zero.

    This is the convention of PyTorch's int4 weight-only matmul. Scale and zero are bf16 in every
    use, so that all backends and dtypes compute with the same quantized model.

    Attributes:
        codes: uint8 [N, K], values 0..15.
        scale: bf16 [N, K / group_size].
        zero: bf16 [N, K / group_size].
    """

    codes: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor

    @classmethod
    def from_stored(cls, stored: Mapping[str, torch.Tensor]) -> GroupedInt4:
        """The inverse of :meth:`stored`."""
        halves = stored["codes"]
        codes = torch.stack((halves & 15, halves >> 4), dim=-1).flatten(1)
        return cls(codes, stored["scale"], stored["zero"])

    @property
    def group_size(self) -> int:
        """Columns that share a scale and a zero."""
        return self.codes.shape[1] // self.scale.shape[1]

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix [N, K] that the codes stand for, computed in float32, rounded to `dtype`."""
        rows, columns = self.codes.shape
        grouped = self.codes.view(rows, -1, self.group_size).float()
        weight = (grouped - LEVELS // 2) * self.scale.float()[..., None]
        weight += self.zero.float()[..., None]
        return weight.view(rows, columns).to(dtype)

    def scale_and_zero(self) -> torch.Tensor:
        """Both side by side as PyTorch's int4 kernels read them: bf16 [K / group_size, N, 2]."""
        return torch.stack((self.scale.T, self.zero.T), dim=-1).contiguous()

    def stored(self) -> dict[str, torch.Tensor]:
        """What is kept on disk: two codes a byte, even columns low."""
        halves = self.codes[:, ::2] | self.codes[:, 1::2] << 4
        return {"codes": halves, "scale": self.scale, "zero": self.zero}


def encode(groups: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> GroupedInt4:
    """Rounds weights to the nearest level of a given grid.

    Args:
        groups: float32 [N, K / group_size, group_size].
        scale, zero: float32 [N, K / group_size, 1]; rounded to bf16 before the weights are, so
            that the codes fit the grid that will be used.
    """
    rounded_scale, rounded_zero = scale.to(torch.bfloat16), zero.to(torch.bfloat16)
    step = rounded_scale.float()
    # A group of equal weights has step 0: its zero alone carries the value.
    codes = (groups - rounded_zero.float()) / torch.where(step == 0, 1.0, step)
    codes = (codes + LEVELS // 2).round_().clamp_(0, LEVELS - 1)
    return GroupedInt4(
        codes=codes.to(torch.uint8).flatten(1),
        scale=rounded_scale.squeeze(-1).contiguous(),
        zero=rounded_zero.squeeze(-1).contiguous(),
    )


def split_groups(weight: torch.Tensor, group_size: int, name: str) -> torch.Tensor:
    """A weight [N, K] as float32 groups [N, K / group_size, group_size].

    Args:
        weight: the matrix.
        group_size: columns per group.
        name: of the layer, for the error.

    Raises:
        UserError: the group size does not divide the width, or a weight is not finite.
    """
    rows, columns = weight.shape
    if columns % group_size:
        raise UserError(
            f"{name}: width {columns} is not a multiple of quant.group_size={group_size}: "
            f"choose a group size that divides it"
        )
    return finite(weight, name).reshape(rows, columns // group_size, group_size)


def finite(weight: torch.Tensor, name: str) -> torch.Tensor:
    """The weights in float32.

    Raises:
        UserError: a weight is NaN or infinite.
    """
    weight = weight.detach().float()
    if not weight.isfinite().all():
        raise UserError(f"{name}: the weights hold NaN or infinity and cannot be quantized")
    return weight
