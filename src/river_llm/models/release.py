"""Taking a backbone's linears out of memory, for a method that never runs them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from river_llm.models.adapter import BackboneAdapter


@torch.no_grad()
def release_linears(adapter: BackboneAdapter, layers: Sequence[nn.Module], first: int = 0) -> None:
    """Frees the weights of attention and FFN from layer `first` on; all else remains.

    Call it before executors are built: the compiled engine keeps addresses of what it is given.

    Args:
        adapter: the backbone; its layers from `first` on cannot run any more.
        layers: L layers, what it has from now on; in the place of those, over other linears and
            the same norms and biases.
        first: index of the first layer that is freed.
    """
    for layer in range(first, adapter.num_layers):
        for linear in adapter.linears(layer).values():
            linear.weight.data = linear.weight.new_empty(0)
    for parameter in adapter.model.parameters():
        # On the CPU all lie in one stretch of memory, which the last of them would keep.
        parameter.data = parameter.data.clone()
    adapter.layers[:] = layers
