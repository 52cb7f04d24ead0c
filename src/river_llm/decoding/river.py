"""River: a token that leaves the backbone flows on through the 4-bit river (paper, method).

The river layers write the same cache slots as the backbone layers they stand for, so no entry is
ever missing and later tokens choose their depth freely.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from river_llm.cache import SlotCache
from river_llm.decoding.exiting import ExitingDecoder
from river_llm.engine.executor import Executor, Exit, StepInputs


class River(ExitingDecoder):
    """Backbone up to the exit depth, river from there to the top.

    Args:
        executor: an executor with a river.
        cache: the executor's cache.
        prefill: `sequence`: one exit depth for the whole prompt (paper, two phases);
            `backbone`: the prompt runs in the backbone.
        pool: which prompt tokens the sequence-level decision sees.
    """

    batched = True

    def __init__(
        self,
        executor: Executor,
        cache: SlotCache,
        prefill: Literal["sequence", "backbone"] = "sequence",
        pool: Literal["last", "mean"] = "last",
    ) -> None:
        super().__init__(executor, cache)
        self.prefill_mode = prefill
        self.pool = pool

    def _run_prefill(self, slots: range) -> Exit:
        if self.prefill_mode == "backbone":
            return super()._run_prefill(slots)
        return self._flow_on(replace(self._inputs(slots), pool=self.pool), step=None)

    def _run_step(self, slot: int) -> Exit:
        return self._flow_on(self._inputs(range(slot, slot + 1)), step=self.steps_done)

    def _flow_on(self, inputs: StepInputs, step: int | None) -> Exit:
        left = self._descend(inputs, step)
        self.executor.river(left.depth, self.num_layers)
        return left
