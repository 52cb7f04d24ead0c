"""The same depth for every step."""

from __future__ import annotations

from river_llm.exits.base import Criterion


class Fixed(Criterion):
    """Plans depth `depth` for the prefill and for every decode step; 0: river only."""

    def __init__(self, layers: int, depth: int) -> None:
        super().__init__(layers)
        self.depth = depth

    def plan(self, step: int | None) -> int:
        return self.depth
