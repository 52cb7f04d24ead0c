"""State transition similarity (paper, exit decision)."""

from __future__ import annotations

import torch
from torch.nn import functional

from river_llm.exits.base import Criterion, Head


class Similarity(Criterion):
    """Exit after the first tested block whose input and output are more alike than tau.

    The cosine is taken in float32 and clamped to [-1, 1]; so tau above 1 never exits.
    Source: River-LLM; the same signal is CALM's "state" confidence (arXiv 2207.07061).
    """

    def __init__(
        self, layers: int, tau: float, min_depth: int = 1, max_depth: int | None = None
    ) -> None:
        super().__init__(layers, min_depth, max_depth)
        self.tau = tau

    def threshold(self, depth: int) -> float:
        return self.tau

    def score(self, h_in: torch.Tensor, h_out: torch.Tensor, head: Head) -> torch.Tensor:
        return functional.cosine_similarity(h_in.float(), h_out.float(), dim=-1).clamp(-1.0, 1.0)
