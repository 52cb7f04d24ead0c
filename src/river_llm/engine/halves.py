"""An engine of two halves: narrow passes (a few tokens) its own way, wide ones eagerly.

A decode step is bound by the bytes of weights it reads, and the time between its operators counts;
a long prompt is bound by arithmetic, where the eager engine's matrix products are as good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from river_llm.cache import SlotCache
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.executor import Choice, Executor, Exit, StepInputs
from river_llm.engine.weights import Layers
from river_llm.exits import Criterion
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.head import Head


class NarrowPasses(Executor):
    """The half that serves passes of a few tokens.

    Attributes:
        most_rows: B x T that a pass may have.
        compile_seconds: time this process spent on getting ready, compiling or capturing.
    """

    most_rows: int
    compile_seconds: float


class HalvesExecutor(Executor):
    """See :class:`river_llm.engine.executor.Executor`; a subclass names its narrow half.

    Raises:
        EngineUnavailable: the narrow half cannot serve here.
    """

    narrow_kind: ClassVar[type[NarrowPasses]]

    def __init__(
        self,
        adapter: BackboneAdapter,
        cache: SlotCache,
        criterion: Criterion,
        backbone: Layers,
        river: Layers | None,
        head: Head,
    ) -> None:
        parts = (adapter, cache, criterion, backbone, river, head)
        super().__init__(*parts)
        self.narrow = self.narrow_kind(*parts)
        self.wide = EagerExecutor(*parts)
        self._now: Executor = self.narrow

    @property
    def compile_seconds(self) -> float:
        """Time this process spent on getting the narrow half ready."""
        return self.narrow.compile_seconds

    def begin(self, inputs: StepInputs) -> None:
        rows = len(inputs.pad) * len(inputs.slots)
        self._now = self.narrow if rows <= self.narrow.most_rows else self.wide
        self._now.begin(inputs)

    def backbone(self, first: int, last: int) -> None:
        self._now.backbone(first, last)

    def river(self, first: int, last: int) -> None:
        self._now.river(first, last)

    def kv_only(self, first: int, last: int) -> None:
        self._now.kv_only(first, last)

    def until(self, first: int, last: int, live: Sequence[bool]) -> Exit:
        left = self._now.until(first, last, live)
        self._count_reads()
        return left

    def score(self) -> torch.Tensor:
        return self._now.score()

    def hidden(self) -> torch.Tensor:
        return self._now.hidden()

    def logits(self, rows: int = 1) -> torch.Tensor:
        return self._now.logits(rows)

    def choose(self) -> Choice:
        choice = self._now.choose()
        self._count_reads()
        return choice

    def read(self, *vectors: torch.Tensor) -> list[list[float]]:
        out = self._now.read(*vectors)
        self._count_reads()
        return out

    def _count_reads(self) -> None:
        self.reads = self.narrow.reads + self.wide.reads
