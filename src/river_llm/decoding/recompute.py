"""recompute: pending tokens run again with a later one (EE-LLM, arXiv 2312.04916).

A mark stands at the last position whose entries are there in all layers; the tokens behind it are
pending. A step feeds the pending tokens with the present one as a block, whose last position
decides. A block that reaches the top moves the mark to the present. Where pending tokens start:

- `embedding`: every block runs from the embedding, as EE-LLM's released code does.
- `exit`: each pending token's state at its exit depth is kept, and it joins the block there, so
  that only its missing layers run (FREE, arXiv 2310.05424, does so for one fixed depth).

Both give each token the state that the whole model has at that depth, since every layer that a
block runs holds the entries of all earlier tokens by then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from river_llm.cache import SlotCache
from river_llm.decoding.decoder import StepOutput
from river_llm.decoding.exiting import ExitingDecoder
from river_llm.engine.executor import Executor, Exit, StepInputs


@dataclass(frozen=True)
class _Kept:
    """A pending token's depth, and its hidden state [1, 1, H] there."""

    depth: int
    state: torch.Tensor


class Recompute(ExitingDecoder):
    """Runs pending tokens again until a block reaches the top.

    Args:
        executor: bound to the exit criterion.
        cache: the executor's cache.
        max_pending: number of tokens behind the mark, the present one included, that forces a
            full pass; None: blocks grow without bound, as released.
        restart: where pending tokens start.
    """

    def __init__(
        self,
        executor: Executor,
        cache: SlotCache,
        max_pending: int | None = None,
        restart: Literal["embedding", "exit"] = "embedding",
    ) -> None:
        self.max_pending = max_pending
        self.restart = restart
        super().__init__(executor, cache)

    def reset(self) -> None:
        super().reset()
        # Every mark so far: a step that is undone takes its own back, and the forced passes that
        # follow fall on the same tokens again.
        self._marks = [0]
        self._kept: dict[int, _Kept] = {}
        self._block = 1
        self._pending_depths: tuple[int, ...] = ()

    def rollback(self, steps: int) -> None:
        super().rollback(steps)
        # States that an undone step took deeper stay: they depend on earlier tokens alone.
        self._kept = {slot: kept for slot, kept in self._kept.items() if slot < self._length}
        self._marks = [mark for mark in self._marks if mark <= self._length]

    def _run_prefill(self, slots: range) -> Exit:
        left = super()._run_prefill(slots)
        self._marks = [slots.stop]
        self._block = len(slots)
        self._pending_depths = ()
        return left

    def _run_step(self, slot: int) -> Exit:
        mark = self._marks[-1]
        full = self.max_pending is not None and slot + 1 - mark >= self.max_pending
        planned = self.num_layers if full else self.criterion.plan(self.steps_done)
        fed = range(mark if self.restart == "embedding" else slot, slot + 1)
        self.executor.begin(self._inputs(fed))
        left, block = self._descend_joining(list(fed), planned)
        if left.depth == self.num_layers:
            self._marks.append(slot + 1)
            self._kept.clear()
        elif self.restart == "exit":
            self._keep(block, left.depth)
        self._block = len(block)
        depths = {place: kept.depth for place, kept in self._kept.items()}
        self._pending_depths = tuple(depths.get(place, left.depth) for place in range(mark, slot))
        return left

    def _descend_joining(self, block: list[int], planned: int | None) -> tuple[Exit, list[int]]:
        """Runs a block from the embedding to where it is left; kept tokens join on the way.

        Args:
            block: slots that have begun.
            planned: depth to run to; None: the criterion's scores decide.

        Returns:
            Where the backbone was left, and the slots of the block there.
        """
        deepest = self.criterion.max_depth if planned is None else planned
        joins = sorted({kept.depth for kept in self._kept.values() if kept.depth < deepest})
        left = Exit(0)
        for depth in joins:
            left = self._advance(left, depth, planned)
            if left.fired:
                return left, block
            block = self._join(block, depth)
        return self._advance(left, deepest, planned), block

    def _advance(self, left: Exit, depth: int, planned: int | None) -> Exit:
        """Goes on from where the block stands to `depth`, or to where a test fires before."""
        if planned is not None:
            self.executor.backbone(left.depth, depth)
            return Exit(depth)
        now = self.executor.until(left.depth, depth, self._live)
        # A stretch without a test leaves the score of the last one standing.
        score = left.score if now.score is None else now.score
        return replace(now, score=score, tests=left.tests + now.tests)

    def _join(self, block: list[int], depth: int) -> list[int]:
        """Takes the tokens kept at `depth` into the block, which stands there; its new slots."""
        hidden = self.executor.hidden()
        states = {slot: hidden[:, row : row + 1] for row, slot in enumerate(block)}
        states |= {slot: kept.state for slot, kept in self._kept.items() if kept.depth == depth}
        slots = sorted(states)
        joined = torch.cat([states[slot] for slot in slots], dim=1)
        self.executor.begin(StepInputs(slots=slots, hidden=joined, pad=self._pad))
        return slots

    def _keep(self, block: list[int], depth: int) -> None:
        hidden = self.executor.hidden()
        for row, slot in enumerate(block):
            self._kept[slot] = _Kept(depth, hidden[:, row : row + 1])

    def _emit(self, trace: Exit) -> StepOutput:
        output = super()._emit(trace)
        return replace(output, block=self._block, pending_depths=self._pending_depths)
