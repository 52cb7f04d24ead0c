"""Bytes that batch-1 decoding reads, and the speedup that they allow at most."""

from __future__ import annotations

from collections.abc import Sequence

from river_llm.exits import Confidence, Criterion
from river_llm.models.adapter import BackboneAdapter
from river_llm.quant.river import RiverLayers


class Traffic:
    """Bytes of weights and KV that one decode step reads.

    Args:
        adapter: the backbone.
        river: the river that runs the layers beyond the exit; None: nothing runs them.
        propagates: whether skipped layers project keys and values from the exit state.
        criterion: asked in each step; None: none is.
    """

    def __init__(
        self,
        adapter: BackboneAdapter,
        river: RiverLayers | None,
        *,
        propagates: bool = False,
        criterion: Criterion | None = None,
    ) -> None:
        layers = range(adapter.num_layers)
        self._criterion = criterion
        self._backbone = [_linear_bytes(adapter, n) for n in layers]
        # Norms and biases, which both stacks share.
        self._shared = [
            sum(p.nbytes for p in adapter.layers[n].parameters()) - self._backbone[n]
            for n in layers
        ]
        self._skipped = [0 for _ in layers]
        if river is not None:
            self._skipped = [river.layer_nbytes(n) + self._shared[n] for n in layers]
        elif propagates:
            self._skipped = [_linear_bytes(adapter, n, "k_proj", "v_proj") for n in layers]
        element = adapter.dtype.itemsize
        self._head = adapter.head_nbytes()
        self._embedding = adapter.hidden_size * element
        self._kv_layer_slot = 2 * adapter.kv_heads * adapter.head_dim * element
        self._all_layers_attend = river is not None

    def step_bytes(self, depth: int, extent: int) -> int:
        """Bytes of a decode step.

        Args:
            depth: backbone layers that ran.
            extent: filled cache slots, the step's own included.
        """
        weights = sum(self._backbone[:depth]) + sum(self._shared[:depth])
        weights += sum(self._skipped[depth:])
        attending = len(self._backbone) if self._all_layers_attend else depth
        heads = 1 + self._head_reads(depth)
        kv = attending * self._kv_layer_slot * extent
        return weights + self._embedding + heads * self._head + kv

    def _head_reads(self, depth: int) -> int:
        """Times that the exit test itself reads norm and head."""
        if not isinstance(self._criterion, Confidence):
            return 0
        return sum(self._criterion.tested(d) for d in range(1, depth + 1))

    def total(self, depths: Sequence[int], prompt_tokens: int) -> int:
        """Bytes of consecutive decode steps behind a prompt."""
        return sum(
            self.step_bytes(depth, prompt_tokens + step + 1) for step, depth in enumerate(depths)
        )


def _linear_bytes(adapter: BackboneAdapter, layer: int, *names: str) -> int:
    """Bytes of a layer's linear weights, of all or of those whose name ends so."""
    return sum(
        linear.weight.nbytes
        for name, linear in adapter.linears(layer).items()
        if not names or name.endswith(names)
    )
