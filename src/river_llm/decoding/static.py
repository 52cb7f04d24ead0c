"""Static controls: the same k layers at 16 bits in every decode step, the others in the river.

No criterion, and no read of the host but the token's. The prompt runs in the backbone. What River
gains by choosing a depth for each token must show against these at equal time.
"""

from __future__ import annotations

from collections.abc import Iterable

from river_llm.cache import SlotCache
from river_llm.decoding.exiting import ExitingDecoder
from river_llm.engine.executor import Executor, Exit


class Static(ExitingDecoder):
    """A fixed set of layers in the backbone; the exit depth recorded is their number.

    Args:
        executor: an executor with a river.
        cache: the executor's cache.
        backbone_layers: indices of the layers that run at 16 bits.
    """

    def __init__(
        self, executor: Executor, cache: SlotCache, backbone_layers: Iterable[int]
    ) -> None:
        super().__init__(executor, cache)
        chosen = frozenset(backbone_layers)
        self.count = len(chosen)
        self._runs = _runs([layer in chosen for layer in range(self.num_layers)])

    def _run_step(self, slot: int) -> Exit:
        self.executor.begin(self._inputs(range(slot, slot + 1)))
        for first, last, in_backbone in self._runs:
            if in_backbone:
                self.executor.backbone(first, last)
            else:
                self.executor.river(first, last)
        return Exit(self.count)


def _runs(flags: list[bool]) -> list[tuple[int, int, bool]]:
    """Maximal runs of equal flags as (first, last, flag), half-open."""
    runs: list[tuple[int, int, bool]] = []
    for index, flag in enumerate(flags):
        if runs and runs[-1][2] == flag:
            runs[-1] = (runs[-1][0], index + 1, flag)
        else:
            runs.append((index, index + 1, flag))
    return runs
