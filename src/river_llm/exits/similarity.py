"""State transition similarity (paper, exit decision)."""

from __future__ import annotations

import torch
from torch.nn import functional

from river_llm.exits.base import Head
from river_llm.exits.threshold import Threshold


class Similarity(Threshold):
    """Exit after the first tested block whose input and output are more alike than tau.

    The cosine is taken in float32 and clamped to [-1, 1]; so tau above 1 never exits.
    Source: River-LLM; the same signal is CALM's "state" confidence (arXiv 2207.07061).
    """

    def score(self, h_in: torch.Tensor, h_out: torch.Tensor, head: Head) -> torch.Tensor:
        return functional.cosine_similarity(h_in.float(), h_out.float(), dim=-1).clamp(-1.0, 1.0)
