"""River: a token that leaves the backbone flows on through the 4-bit river (paper, method).

The river layers write the same cache slots as the backbone layers they stand for, so no entry is
ever missing and later tokens choose their depth freely.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from river_llm.cache import SlotCache
from river_llm.decoding.decoder import Decoder
from river_llm.engine.executor import Executor, Exit, StepInputs


class River(Decoder):
    """Backbone up to the exit depth, river from there to the top.

    Args:
        executor: an executor with a river.
        cache: the executor's cache.
        prefill: `sequence`: one exit depth for the whole prompt (paper, two phases);
            `backbone`: the prompt runs in the backbone.
        pool: which prompt tokens the sequence-level decision sees.
    """

    def __init__(
        self,
        executor: Executor,
        cache: SlotCache,
        prefill: Literal["sequence", "backbone"] = "sequence",
        pool: Literal["last", "mean"] = "last",
    ) -> None:
        super().__init__(executor, cache)
        self.criterion = executor.criterion
        self.prefill_mode = prefill
        self.pool = pool

    def _run_prefill(self, slots: range) -> Exit:
        inputs = replace(self._inputs(slots), pool=self.pool)
        if self.prefill_mode == "backbone":
            self.executor.begin(inputs)
            self.executor.backbone(0, self.num_layers)
            return Exit(self.num_layers)
        return self._descend(inputs, step=None)

    def _run_step(self, slot: int) -> Exit:
        return self._descend(self._inputs(range(slot, slot + 1)), step=self.steps_done)

    def _descend(self, inputs: StepInputs, step: int | None) -> Exit:
        self.executor.begin(inputs)
        planned = self.criterion.plan(step)
        if planned is None:
            left = self.executor.until(0, self.criterion.max_depth, self._live)
        else:
            depth = min(planned, self.num_layers)
            self.executor.backbone(0, depth)
            left = Exit(depth)
        self.executor.river(left.depth, self.num_layers)
        return left
