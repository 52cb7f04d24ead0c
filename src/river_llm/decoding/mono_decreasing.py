"""mono_decreasing: the number of active layers never grows along the text (SkipDecode).

Source: arXiv 2307.02628. Every layer that a token runs then has an entry of every earlier token,
so nothing is missing. Two forms: a schedule over positions, as published, and the shared exit
criterion clamped to the previous token's depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from river_llm.cache import SlotCache
from river_llm.decoding.exiting import ExitingDecoder
from river_llm.engine.executor import Executor, Exit


@dataclass(frozen=True)
class Schedule:
    """Active layers by decode step: linear from `most` to `fewest` over `length` steps.

    Attributes:
        most, fewest: active layers at the first step, and from step `length` on.
        length: decode steps until `fewest` is reached.
        warm_up: layers at the bottom that always run.
        place: `skip_low` spends what is left on the top layers (as published), `exit_top` on the
            layers after the warm-up.
    """

    most: int
    fewest: int
    length: int
    warm_up: int
    place: Literal["exit_top", "skip_low"]

    def active(self, step: int) -> int:
        """Active layers of a decode step."""
        share = min(step / self.length, 1.0)
        return max(self.fewest, round(self.most - share * (self.most - self.fewest)))


class MonoDecreasingSchedule(ExitingDecoder):
    """Active layers by schedule; the exit depth recorded is their number.

    Args:
        executor: runs the layers; its criterion is not asked.
        cache: the executor's cache.
        schedule: how many layers run, and which.
    """

    def __init__(self, executor: Executor, cache: SlotCache, schedule: Schedule) -> None:
        super().__init__(executor, cache)
        self.schedule = schedule

    def _run_step(self, slot: int) -> Exit:
        active = self.schedule.active(self.steps_done)
        self.executor.begin(self._inputs(range(slot, slot + 1)))
        if self.schedule.place == "exit_top":
            self.executor.backbone(0, active)
        else:
            bottom = min(self.schedule.warm_up, active)
            self.executor.backbone(0, bottom)
            self.executor.backbone(self.num_layers - (active - bottom), self.num_layers)
        return Exit(active)


class MonoDecreasingCap(ExitingDecoder):
    """The shared criterion, at most as deep as the previous token."""

    def reset(self) -> None:
        super().reset()
        self._depths: list[int] = []

    def rollback(self, steps: int) -> None:
        super().rollback(steps)
        if steps:
            self._depths = self._depths[:-steps]

    def _run_step(self, slot: int) -> Exit:
        cap = self._depths[-1] if self._depths else self.num_layers
        left = self._descend(self._inputs(range(slot, slot + 1)), self.steps_done, cap)
        self._depths.append(left.depth)
        return left
