"""Half-quadratic quantization (HQQ), the quantizer of the paper's main experiments.

Source of the mechanism: Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning
Models" (2023): the scale of each group stays at its min-max value, and the zero point minimizes
an l_p norm (p < 1) of the weight error, which forgives outliers. The norm is split off into an
auxiliary error variable; shrinking that variable and averaging the zero point alternate.
"""

from __future__ import annotations

import torch

from river_llm.quant.grid import LEVELS, GroupedInt4, encode
from river_llm.quant.rtn_int4 import min_max

NORM = 0.7
BETA = 10.0
BETA_GROWTH = 1.01
ITERATIONS = 20
SETTINGS = {
    "bits": 4,
    "symmetric": False,
    "scale_dtype": "bf16",
    "zero_dtype": "bf16",
    "norm": NORM,
    "beta": BETA,
    "beta_growth": BETA_GROWTH,
    "iterations": ITERATIONS,
    "round_zero": False,
    "stops": "per group",
}
"""What is recorded beside the group size."""


def quantize(groups: torch.Tensor) -> GroupedInt4:
    """Quantizes float32 groups [N, G, group_size] with the zero points that HQQ finds."""
    scale, zero = min_max(groups)
    return encode(groups, scale, optimize_zero(groups, scale, zero))


def optimize_zero(groups: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Zero points that lower the mean absolute weight error, by the half-quadratic iteration.

    A group stops when its error no longer falls and keeps the best zero it has seen, so no group
    ends worse than it began or depends on its neighbours; the published solver stops for a whole
    matrix at once.

    Args:
        groups: float32 [N, G, group_size].
        scale, zero: float32 [N, G, 1], the grid to start from.

    Returns:
        float32 [N, G, 1].
    """
    half = LEVELS // 2
    step = torch.where(scale == 0, 1.0, scale)
    best_zero = zero
    best_error = torch.full_like(zero, torch.inf)
    falling = torch.ones_like(zero, dtype=torch.bool)
    beta = BETA
    for _ in range(ITERATIONS):
        centred = ((groups - zero) / step).add_(half).round_().clamp_(0, LEVELS - 1).sub_(half)
        levels = centred * scale
        error = groups - levels - zero
        size = error.abs().mean(-1, keepdim=True)
        falling &= size < best_error
        if not falling.any():
            break
        best_zero = torch.where(falling, zero, best_zero)
        best_error = torch.where(falling, size, best_error)
        zero = (groups - levels - _shrink(error, beta)).mean(-1, keepdim=True)
        beta *= BETA_GROWTH
    return best_zero


def _shrink(error: torch.Tensor, beta: float) -> torch.Tensor:
    """Proximal step of the l_p norm: generalized soft thresholding."""
    size = error.abs()
    threshold = size.clamp(min=torch.finfo(size.dtype).tiny).pow(NORM - 1).div_(beta)
    return size.sub_(threshold).clamp_(min=0).mul_(error.sign())
