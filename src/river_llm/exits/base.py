"""What an exit criterion is."""

from __future__ import annotations

from collections.abc import Callable

import torch

Head = Callable[[torch.Tensor], torch.Tensor]
"""Final norm and LM head: [B, H] -> [B, V]."""


class Criterion:
    """Decides the exit depth of a decode step (or of the prefill).

    A criterion either plans a depth before the step runs (:meth:`plan`), which costs nothing, or
    returns None there and is asked for a score after each tested layer.

    Args:
        layers: number of backbone layers L.
        min_depth: first depth at which a score is tested.
        max_depth: depth that ends the backbone even if no test fired; None: L.
    """

    def __init__(self, layers: int, min_depth: int = 1, max_depth: int | None = None) -> None:
        self.layers = layers
        self.min_depth = min_depth
        self.max_depth = layers if max_depth is None else min(max_depth, layers)

    def begin_sample(self, sample_id: str) -> None:
        """Tells which sample comes next, for criteria that plan by sample."""

    def recorded_steps(self, sample_id: str) -> int | None:
        """How many decode steps of this sample can be planned; None: any number."""
        return None

    def plan(self, step: int | None) -> int | None:
        """Depth of decode step `step` (0-based; None: the prefill), or None: test scores."""
        return None

    def tested(self, depth: int) -> bool:
        """Whether a score is tested at this depth (max(1, min_depth) .. max_depth - 1)."""
        return max(1, self.min_depth) <= depth < self.max_depth

    def threshold(self, depth: int) -> float:
        """The score above which the token exits at this depth."""
        raise TypeError(f"{type(self).__name__} plans depths and has no threshold")

    def score(self, h_in: torch.Tensor, h_out: torch.Tensor, head: Head) -> torch.Tensor:
        """Score of a block: a pure function on the device.

        Args:
            h_in: [B, H], the residual stream before the decoder layer.
            h_out: [B, H], after it.
            head: final norm and LM head.

        Returns:
            float32 [B].
        """
        raise TypeError(f"{type(self).__name__} plans depths and has no score")
