"""recompute: pending tokens run again with a later one (EE-LLM, arXiv 2312.04916).

A mark stands at the last position whose entries are there in all layers. A step feeds every token
from the mark on as one block, from the embedding, as the released code does. If the block leaves
the backbone early the mark stays, and the next block is one token longer; if it runs to the top
the mark moves to the present. The block's last position decides.
"""

from __future__ import annotations

from dataclasses import replace

from river_llm.cache import SlotCache
from river_llm.decoding.decoder import StepOutput
from river_llm.decoding.exiting import ExitingDecoder
from river_llm.engine.executor import Executor, Exit


class Recompute(ExitingDecoder):
    """Runs pending tokens again until a block reaches the top.

    Args:
        executor: bound to the exit criterion.
        cache: the executor's cache.
        max_pending: block length, the present token included, that forces a full pass; None:
            blocks grow without bound, as released.
    """

    def __init__(
        self, executor: Executor, cache: SlotCache, max_pending: int | None = None
    ) -> None:
        self.max_pending = max_pending
        super().__init__(executor, cache)

    def reset(self) -> None:
        super().reset()
        self._mark = 0
        self._block = 1

    def rollback(self, steps: int) -> None:
        super().rollback(steps)
        self._mark = min(self._mark, self._length)

    def _run_prefill(self, slots: range) -> Exit:
        left = super()._run_prefill(slots)
        self._mark = slots.stop
        self._block = len(slots)
        return left

    def _run_step(self, slot: int) -> Exit:
        block = range(self._mark, slot + 1)
        self._block = len(block)
        if self.max_pending is not None and len(block) >= self.max_pending:
            self.executor.begin(self._inputs(block))
            self.executor.backbone(0, self.num_layers)
            left = Exit(self.num_layers)
        else:
            left = self._descend(self._inputs(block), self.steps_done)
        if left.depth == self.num_layers:
            self._mark = slot + 1
        return left

    def _emit(self, trace: Exit) -> StepOutput:
        return replace(super()._emit(trace), block=self._block)
