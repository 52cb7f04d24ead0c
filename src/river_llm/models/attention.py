"""The attention function that every engine and every transformers version runs here.

Registered with transformers under :data:`NAME`, so that all arms of a comparison time the same
kernel (torch's scaled dot product attention), with grouped query heads and without copies of
keys and values while decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "river_llm_sdpa"


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of T queries over the filled slots.

    Args:
        module: the attention module that calls (unused; transformers passes it).
        query: [B, heads, T, D].
        key, value: [B, kv_heads, extent, D].
        attention_mask: bool [B or 1, 1, T, extent], True: visible, or numbers of the query's
            dtype that are added to the scores; None: everything is visible (T = 1) or the queries
            are slots 0..T-1 = all of the extent and causal.
        scaling: factor on the scores; None: 1 / sqrt(D).

    Returns:
        [B, T, heads, D], None.

    Raises:
        RuntimeError: T > 1 without a mask over an extent other than T. sdpa's causal flag would
            silently read only the first T slots there.
    """
    batch, heads, steps, dim = query.shape
    kv_heads, extent = key.shape[1], key.shape[2]
    if steps == 1:
        # One query per head: the query heads of a group become rows over their shared KV head.
        grouped = query.reshape(batch, kv_heads, heads // kv_heads, dim)
        out = functional.scaled_dot_product_attention(
            grouped, key, value, attn_mask=attention_mask, scale=scaling
        )
        return out.reshape(batch, 1, heads, dim), None
    if attention_mask is None and extent != steps:
        raise RuntimeError(f"{steps} queries over {extent} slots need a mask")
    out = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None,
        scale=scaling,
        enable_gqa=heads != kv_heads,
    )
    return out.transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)


@contextmanager
def transformers_sdpa(model: PreTrainedModel) -> Iterator[None]:
    """Gives a model transformers' own sdpa attention inside the block, and this one behind it."""
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(NAME)
