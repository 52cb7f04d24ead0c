"""Forgetting the last slots of a cache."""

from __future__ import annotations

import pytest
import torch

from river_llm.cache import SlotCache, Source

LAYERS, ROWS, SLOTS = 2, 3, 8


@pytest.mark.parametrize(("drop", "left"), [(0, 3), (1, 2), (3, 0)])
def test_dropping_positions_leaves_exactly_the_others(drop: int, left: int) -> None:
    cache = SlotCache(
        layers=LAYERS,
        batch=ROWS,
        kv_heads=1,
        slots=SLOTS,
        head_dim=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    cache.source[:, :, :3] = int(Source.BACKBONE)
    cache.source[1, 2, 1] = int(Source.RIVER)
    before = cache.source.clone()
    cache.truncate(3 - drop)
    assert torch.equal(cache.source[:, :, :left], before[:, :, :left])
    assert (cache.source[:, :, left:] == int(Source.EMPTY)).all()
    assert (cache.source[:, :, :left] != int(Source.EMPTY)).all()
