"""full_quant: every layer quantized, prompt included; the speed ceiling of the river."""

from __future__ import annotations

from river_llm.decoding.decoder import Decoder
from river_llm.engine.executor import Exit


class FullQuant(Decoder):
    """Runs prompt and decode steps through the whole river."""

    batched = True

    def _run_prefill(self, slots: range) -> Exit:
        return self._run_river(slots)

    def _run_step(self, slot: int) -> Exit:
        return self._run_river(range(slot, slot + 1))

    def _run_river(self, slots: range) -> Exit:
        self.executor.begin(self._inputs(slots))
        self.executor.river(0, self.num_layers)
        return Exit(0)
