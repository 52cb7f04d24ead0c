"""What the methods with exits share: the descent through the backbone, and the 16-bit prefill."""

from __future__ import annotations

from dataclasses import replace

from river_llm.cache import SlotCache
from river_llm.decoding.decoder import Decoder
from river_llm.engine.executor import Executor, Exit, StepInputs


class ExitingDecoder(Decoder):
    """A decoder whose steps may leave the backbone early.

    Args:
        executor: bound to the exit criterion.
        cache: the executor's cache.
    """

    def __init__(self, executor: Executor, cache: SlotCache) -> None:
        super().__init__(executor, cache)
        self.criterion = executor.criterion

    def _run_prefill(self, slots: range) -> Exit:
        """The prompt in the backbone; methods that exit there say otherwise."""
        self.executor.begin(self._inputs(slots))
        self.executor.backbone(0, self.num_layers)
        return Exit(self.num_layers)

    def _descend(self, inputs: StepInputs, step: int | None, deepest: int | None = None) -> Exit:
        """Runs the backbone from the embedding to where it is left.

        Args:
            inputs: of the pass.
            step: decode step, None: the prefill.
            deepest: depth that ends the backbone in any case; None: the criterion's.
        """
        limit = self.criterion.max_depth if deepest is None else deepest
        self.executor.begin(inputs)
        planned = self.criterion.plan(step)
        if planned is not None:
            depth = min(planned, limit)
            self.executor.backbone(0, depth)
            return Exit(depth)
        # The step ends at the limit whatever a test there would say: none is made.
        left = self.executor.until(0, limit - 1, self._live)
        if left.fired:
            return left
        self.executor.backbone(left.depth, limit)
        return replace(left, depth=limit)
