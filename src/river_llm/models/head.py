"""The end of the stack: final norm and LM head."""

from __future__ import annotations

from itertools import chain

import torch
from torch import nn


class Head(nn.Module):
    """Final norm and LM head: [..., H] to logits [..., V].

    Args:
        norm: the model's final norm, shared with the backbone.
        linear: [..., H] -> [..., V]; the model's own, or a quantized one in its place.
    """

    def __init__(self, norm: nn.Module, linear: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.linear = linear

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., H] to [..., V]."""
        out: torch.Tensor = self.linear(self.norm(hidden))
        return out

    @property
    def nbytes(self) -> int:
        """Bytes that one call reads."""
        return _nbytes(self)

    @property
    def linear_nbytes(self) -> int:
        """Those of the linear."""
        return _nbytes(self.linear)


def _nbytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in chain(module.parameters(), module.buffers()))
