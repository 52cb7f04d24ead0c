"""Where the executor gets its layers from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn


class Layers(Protocol):
    """One stack of decoder layers."""

    def acquire(self, layer: int, tokens: int) -> nn.Module:
        """The layer, ready for a step of `tokens` tokens; valid until the next acquire."""
        ...


class ResidentLayers:
    """A stack that lies in memory as it is (the backbone)."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers

    def acquire(self, layer: int, tokens: int) -> nn.Module:
        return self._layers[layer]
