"""no_exit: all backbone layers for every token; the arm that speedups are measured against."""

from __future__ import annotations

from river_llm.decoding.decoder import Decoder
from river_llm.engine.executor import Exit


class NoExit(Decoder):
    """Runs prompt and decode steps through the whole backbone."""

    batched = True

    def _run_prefill(self, slots: range) -> Exit:
        return self._run_backbone(slots)

    def _run_step(self, slot: int) -> Exit:
        return self._run_backbone(range(slot, slot + 1))

    def _run_backbone(self, slots: range) -> Exit:
        self.executor.begin(self._inputs(slots))
        self.executor.backbone(0, self.num_layers)
        return Exit(self.num_layers)
