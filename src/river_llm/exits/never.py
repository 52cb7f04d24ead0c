"""No exit."""

from __future__ import annotations

from river_llm.exits.base import Criterion


class Never(Criterion):
    """Plans full depth for the prefill and for every decode step."""

    def plan(self, step: int | None) -> int:
        return self.layers
