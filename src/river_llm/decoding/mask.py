"""mask: later tokens do not see the entries that an exit left out (D-LLM, NeurIPS 2024).

A step that leaves the backbone at depth d writes entries in layers 0..d-1 only. A later query at
layer l attends to the slots that are filled in l; its own slot always is. Rotary positions stay
absolute. D-LLM trains a router for each layer; here the shared exit criterion decides.
"""

from __future__ import annotations

from dataclasses import replace

from river_llm.decoding.exiting import ExitingDecoder
from river_llm.engine.executor import Exit


class Mask(ExitingDecoder):
    """Leaves the entries of skipped layers empty and hides them from later tokens."""

    def _run_step(self, slot: int) -> Exit:
        inputs = replace(self._inputs(range(slot, slot + 1)), gaps=True)
        return self._descend(inputs, self.steps_done)
