"""What the criteria with a score and one threshold share."""

from __future__ import annotations

from river_llm.exits.base import Criterion


class Threshold(Criterion):
    """Exit after the first tested block whose score exceeds tau.

    Args:
        layers: number of backbone layers L.
        tau: the threshold, the same at every depth.
        min_depth: first depth at which the score is tested.
        max_depth: depth that ends the backbone even if no test fired; None: L.
    """

    def __init__(
        self, layers: int, tau: float, min_depth: int = 1, max_depth: int | None = None
    ) -> None:
        super().__init__(layers, min_depth, max_depth)
        self.tau = tau

    def threshold(self, depth: int) -> float:
        return self.tau
