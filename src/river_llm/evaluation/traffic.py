"""Bytes that batch-1 decoding reads, and the speedup that they allow at most."""

from __future__ import annotations

from collections.abc import Sequence

from river_llm.models.adapter import BackboneAdapter
from river_llm.quant.river import RiverLayers


class Traffic:
    """Bytes of weights and KV that one decode step reads.

    Args:
        adapter: the backbone.
        river: the river; None for no_exit.
    """

    def __init__(self, adapter: BackboneAdapter, river: RiverLayers | None) -> None:
        layers = range(adapter.num_layers)
        self._backbone = [_linear_bytes(adapter, n, own=True) for n in layers]
        biases = [_linear_bytes(adapter, n, own=False) for n in layers]
        self._backbone = [w + b for w, b in zip(self._backbone, biases, strict=True)]
        self._river = (
            [river.layer_nbytes(n) + b for n, b in zip(layers, biases, strict=True)]
            if river
            else []
        )
        element = adapter.dtype.itemsize
        self._head = adapter.head_nbytes() + adapter.hidden_size * element
        norms = sum(p.nbytes for layer in adapter.layers for p in layer.parameters())
        self._norms = norms - sum(self._backbone)
        self._kv_slot = 2 * adapter.num_layers * adapter.kv_heads * adapter.head_dim * element

    def step_bytes(self, depth: int, extent: int) -> int:
        """Bytes of a decode step.

        Args:
            depth: backbone layers that ran; the river ran the others (if there is one).
            extent: filled cache slots, the step's own included.
        """
        weights = sum(self._backbone[:depth]) + sum(self._river[depth:])
        return weights + self._norms + self._head + self._kv_slot * extent

    def total(self, depths: Sequence[int], prompt_tokens: int) -> int:
        """Bytes of consecutive decode steps behind a prompt."""
        return sum(
            self.step_bytes(depth, prompt_tokens + step + 1) for step, depth in enumerate(depths)
        )


def _linear_bytes(adapter: BackboneAdapter, layer: int, *, own: bool) -> int:
    """Bytes of a layer's linear weights, or (own=False) of their biases, which both stacks read."""
    total = 0
    for linear in adapter.linears(layer).values():
        if own:
            total += linear.weight.nbytes
        elif linear.bias is not None:
            total += linear.bias.nbytes
    return total
