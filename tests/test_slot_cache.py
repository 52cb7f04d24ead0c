"""Slots of a cache: who wrote them, which of them are read, and forgetting the last ones."""

from __future__ import annotations

import pytest
import torch

from river_llm.cache import SlotCache, Source

LAYERS, ROWS, SLOTS, WIDTH = 2, 3, 8, 4


@pytest.fixture
def cache() -> SlotCache:
    return SlotCache(
        layers=LAYERS,
        batch=ROWS,
        kv_heads=1,
        slots=SLOTS,
        head_dim=WIDTH,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize(("drop", "left"), [(0, 3), (1, 2), (3, 0)])
def test_dropping_positions_leaves_exactly_the_others(
    cache: SlotCache, drop: int, left: int
) -> None:
    cache.source[:, :, :3] = int(Source.BACKBONE)
    cache.source[1, 2, 1] = int(Source.RIVER)
    before = cache.source.clone()
    cache.truncate(3 - drop)
    assert torch.equal(cache.source[:, :, :left], before[:, :, :left])
    assert (cache.source[:, :, left:] == int(Source.EMPTY)).all()
    assert (cache.source[:, :, :left] != int(Source.EMPTY)).all()


def test_an_entry_is_there_whoever_wrote_it(cache: SlotCache) -> None:
    cache.place(torch.tensor([4]), extent=5, live=None)
    cache.source[0, 0, :4] = torch.tensor([0, 1, 2, 3])
    filled = cache.filled(0)
    assert filled.shape == (ROWS, 1, 1, 5)
    assert filled[0, 0, 0].tolist() == [False, True, True, True, False]
    assert not filled[1:].any()
    assert not cache.filled(1).any()


@pytest.mark.parametrize("writer", [Source.BACKBONE, Source.RIVER, Source.PROPAGATED])
def test_padding_leaves_no_source_byte(cache: SlotCache, writer: Source) -> None:
    live = torch.tensor([[False, True], [True, True], [False, False]])
    cache.place(torch.tensor([1, 2]), extent=3, live=live)
    cache.bind(1, writer)
    expected = torch.zeros(LAYERS, ROWS, SLOTS, dtype=torch.uint8)
    expected[1, 0, 2] = expected[1, 1, 1] = expected[1, 1, 2] = int(writer)
    assert torch.equal(cache.source, expected)


def test_keys_and_values_land_in_their_layer_and_slots(cache: SlotCache) -> None:
    k, v = torch.full((ROWS, 1, 2, WIDTH), 2.0), torch.full((ROWS, 1, 2, WIDTH), 3.0)
    cache.place(torch.tensor([0, 5]), extent=6, live=None)
    cache.bind(1, Source.RIVER)
    keys, values = cache.update(k, v, 0, layer_idx=0)
    assert keys.shape == values.shape == (ROWS, 1, 6, WIDTH)
    for found, buffer, value in ((keys, cache.k, 2.0), (values, cache.v, 3.0)):
        assert found[0, 0, :, 0].tolist() == [value, 0.0, 0.0, 0.0, 0.0, value]
        assert not buffer[0].any()
        assert not buffer[1, :, :, 6:].any()
