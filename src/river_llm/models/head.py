"""Final norm and LM head."""

from __future__ import annotations

import torch
from torch import nn


class Head(nn.Module):
    """Hidden states [..., H] to logits [..., V].

    Args:
        norm: the final norm.
        linear: the LM head, `nn.Linear` or one over quantized weights.
    """

    def __init__(self, norm: nn.Module, linear: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.linear = linear

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.norm(hidden))
        return out
