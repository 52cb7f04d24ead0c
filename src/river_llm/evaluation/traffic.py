"""Bytes that batch-1 decoding reads, and the speedup that they allow at most."""

from __future__ import annotations

from collections.abc import Sequence

from river_llm.models.adapter import BackboneAdapter
from river_llm.models.head import Head
from river_llm.quant.river import RiverLayers


class Traffic:
    """Bytes of weights and KV that one decode step reads.

    Args:
        adapter: the backbone.
        river: the river that runs the layers beyond the exit; None: nothing runs them.
        propagates: whether skipped layers project keys and values from the exit state.
        tests_read_head: whether each exit test reads final norm and head.
        head: the one that logits and tests come from; None: the backbone's own.
    """

    def __init__(
        self,
        adapter: BackboneAdapter,
        river: RiverLayers | None,
        *,
        propagates: bool = False,
        tests_read_head: bool = False,
        head: Head | None = None,
    ) -> None:
        layers = range(adapter.num_layers)
        self._tests_read_head = tests_read_head
        self._backbone = [_linear_bytes(adapter, n) for n in layers]
        # Norms and biases, which both stacks share.
        self._shared = [
            sum(p.nbytes for p in adapter.layers[n].parameters()) - self._backbone[n]
            for n in layers
        ]
        self._river = [0 if river is None else river.layer_nbytes(n) for n in layers]
        self._propagated = [
            adapter.propagation_nbytes(n) if propagates and river is None else 0 for n in layers
        ]
        element = adapter.dtype.itemsize
        self._head = (adapter.head if head is None else head).nbytes
        self._embedding = adapter.hidden_size * element
        self._kv_layer_slot = 2 * adapter.kv_heads * adapter.head_dim * element
        self._all_layers_run = river is not None

    def step_bytes(self, depth: int, extent: int, tests: int = 0) -> int:
        """Bytes of a decode step.

        Args:
            depth: backbone layers that ran.
            extent: filled cache slots, the step's own included.
            tests: exit tests that were made.
        """
        return sum(self.step_breakdown(depth, extent, tests).values())

    def step_breakdown(
        self, depth: int, extent: int, tests: int = 0, block: int = 1
    ) -> dict[str, int]:
        """Bytes of a decode step by what they are.

        Args:
            depth: backbone layers that ran.
            extent: filled cache slots, the step's own included.
            tests: exit tests that were made.
            block: tokens that were fed; weights, keys and values are read once for all of them.

        Returns:
            `backbone`: its linears, those that only propagate states included; `river`: its
            linears; `head`: final norm and LM head; `kv`: keys and values; `other`: norms and
            biases of the layers, rows of the embedding.
        """
        ran = len(self._backbone) if self._all_layers_run else depth
        heads = 1 + (tests if self._tests_read_head else 0)
        return {
            "backbone": sum(self._backbone[:depth]) + sum(self._propagated[depth:]),
            "river": sum(self._river[depth:]),
            "head": heads * self._head,
            "kv": ran * self._kv_layer_slot * extent,
            "other": sum(self._shared[:ran]) + block * self._embedding,
        }

    def total(
        self, depths: Sequence[int], prompt_tokens: int, tests: Sequence[int] | None = None
    ) -> int:
        """Bytes of consecutive decode steps behind a prompt.

        Args:
            depths: backbone layers that ran, step by step.
            prompt_tokens: length of the prompt.
            tests: exit tests that were made, step by step; None: none.
        """
        made = [0] * len(depths) if tests is None else tests
        return sum(
            self.step_bytes(depth, prompt_tokens + step, count)
            for step, (depth, count) in enumerate(zip(depths, made, strict=True), start=1)
        )


def _linear_bytes(adapter: BackboneAdapter, layer: int) -> int:
    """Bytes of a layer's linear weights."""
    return sum(linear.weight.nbytes for linear in adapter.linears(layer).values())
