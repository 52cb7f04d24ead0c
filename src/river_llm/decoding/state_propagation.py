"""state_propagation: skipped layers get entries from the exit state (CALM, arXiv 2207.07061).

Each layer j at or beyond the exit depth applies its own input norm and its own k/v projections to
the unchanged exit state; query, attention, output projection and FFN do not run.
"""

from __future__ import annotations

from river_llm.decoding.exiting import ExitingDecoder
from river_llm.engine.executor import Exit


class StatePropagation(ExitingDecoder):
    """Fills the entries of skipped layers from the state at the exit."""

    def _run_step(self, slot: int) -> Exit:
        left = self._descend(self._inputs(range(slot, slot + 1)), self.steps_done)
        self.executor.kv_only(left.depth, self.num_layers)
        return left
