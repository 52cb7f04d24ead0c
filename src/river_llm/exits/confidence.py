"""Confidence: the largest softmax probability of the head on a block's output."""

from __future__ import annotations

import torch

from river_llm.exits.base import Head
from river_llm.exits.threshold import Threshold


class Confidence(Threshold):
    """Exit after the first tested block whose state predicts a token with probability above tau.

    Final norm and LM head are read at every tested layer, which costs much more than a cosine.
    Source: EE-LLM (arXiv 2312.04916) and CALM's softmax confidence; no exit head is trained here.
    """

    def score(self, h_in: torch.Tensor, h_out: torch.Tensor, head: Head) -> torch.Tensor:
        return head(h_out).float().softmax(-1).amax(-1)
