"""The compiled engine: narrow passes in C++, wide ones one operator after another."""

from __future__ import annotations

from river_llm.engine.halves import HalvesExecutor
from river_llm.engine.native.executor import NarrowExecutor


class CompiledExecutor(HalvesExecutor):
    """See :class:`river_llm.engine.halves.HalvesExecutor`.

    Raises:
        EngineUnavailable: no compiler here, or a model that the compiled layers do not compute.
    """

    name = "compiled"
    narrow_kind = NarrowExecutor
    narrow: NarrowExecutor
