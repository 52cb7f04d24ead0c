"""Round to nearest at 4 bits, on the min-max grid of each group."""

from __future__ import annotations

import torch

from river_llm.quant.grid import LEVELS, GroupedInt4, encode

SETTINGS = {"bits": 4, "symmetric": False, "scale_dtype": "bf16", "zero_dtype": "bf16"}
"""What is recorded beside the group size."""


def min_max(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero of the grid that reaches from each group's minimum to its maximum.

    Args:
        groups: float32 [N, G, group_size].

    Returns:
        scale, zero: float32 [N, G, 1], with weight = (code - 8) * scale + zero.
    """
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = (high - low) / (LEVELS - 1)
    return scale, low + LEVELS // 2 * scale


def quantize(groups: torch.Tensor) -> GroupedInt4:
    """Quantizes float32 groups [N, G, group_size] by round to nearest."""
    return encode(groups, *min_max(groups))
