"""The attention function against a softmax written out."""

from __future__ import annotations

import pytest
import torch

from river_llm.models.attention import attend

HEADS, KV_HEADS, DIM = 6, 2, 8


def written_out(query, key, value, visible, scaling):
    """softmax(q k / sqrt(D)) v, one query of one head at a time, in float64.

    Query head h reads key/value head h // (heads / kv_heads).
    """
    batch, heads, steps, dim = query.shape
    out = torch.zeros(batch, steps, heads, dim, dtype=torch.float64)
    group = heads // key.shape[1]
    scaling = dim**-0.5 if scaling is None else scaling
    for b in range(batch):
        for h in range(heads):
            for t in range(steps):
                keys = key[b, h // group].double()
                scores = keys @ query[b, h, t].double() * scaling
                weights = scores.exp() * visible[b][t].double()
                out[b, t, h] = weights / weights.sum() @ value[b, h // group].double()
    return out


def tensors(batch, steps, extent, heads=HEADS, kv_heads=KV_HEADS):
    torch.manual_seed(0)
    query = torch.randn(batch, heads, steps, DIM)
    key, value = torch.randn(2, batch, kv_heads, extent, DIM)
    return query, key, value


def everything(batch, steps, extent):
    return torch.ones(batch, steps, extent, dtype=torch.bool)


def causal_behind(batch, steps, extent):
    """Queries are the last `steps` slots."""
    slots = torch.arange(extent)
    visible = slots[None] <= torch.arange(extent - steps, extent)[:, None]
    return visible.expand(batch, steps, extent)


def padded(batch, steps, extent):
    """Row b does not see its first b slots; a padding slot sees itself."""
    visible = causal_behind(batch, steps, extent).clone()
    itself = torch.arange(extent)[None] == torch.arange(extent - steps, extent)[:, None]
    for row in range(batch):
        visible[row, :, :row] = False
        visible[row] |= itself
    return visible


@pytest.mark.parametrize("heads", [(6, 2), (6, 6), (4, 1)], ids=["grouped", "plain", "one kv head"])
@pytest.mark.parametrize("scaling", [None, 0.7])
@pytest.mark.parametrize(
    ("steps", "extent", "visibility", "masked"),
    [
        (1, 9, everything, False),
        (1, 1, everything, False),
        (1, 9, padded, True),
        (5, 5, causal_behind, False),
        (5, 5, padded, True),
        (4, 9, causal_behind, True),
        (4, 9, padded, True),
    ],
)
def test_attention_is_a_softmax_over_the_visible_slots(
    heads, scaling, steps, extent, visibility, masked
):
    query, key, value = tensors(3, steps, extent, *heads)
    visible = visibility(3, steps, extent)
    mask = visible[:, None] if masked else None
    out, weights = attend(None, query, key, value, mask, scaling, dropout=0.0, is_causal=True)
    assert weights is None
    assert out.shape == (3, steps, heads[0], DIM)
    expected = written_out(query, key, value, visible, scaling)
    assert torch.allclose(out.double(), expected, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 4])
def test_one_mask_serves_all_rows(steps):
    query, key, value = tensors(3, steps, 9)
    visible = causal_behind(1, steps, 9).clone()
    visible[:, :, 2] = False
    out, _ = attend(None, query, key, value, visible[:, None])
    expected = written_out(query, key, value, visible.expand(3, -1, -1), None)
    assert torch.allclose(out.double(), expected, atol=1e-5)


@pytest.mark.parametrize("extent", [5, 9])
def test_several_queries_over_a_longer_extent_need_a_mask(extent):
    """Sdpa's causal flag would read the first 4 slots alone, without a word."""
    with pytest.raises(RuntimeError, match=f"4 queries over {extent} slots"):
        attend(None, *tensors(1, 4, extent), None)


def test_a_masked_slot_leaves_no_trace():
    query, key, value = tensors(1, 1, 6)
    mask = torch.ones(1, 1, 1, 6, dtype=torch.bool)
    mask[..., 2] = False
    before, _ = attend(None, query, key, value, mask)
    key[:, :, 2], value[:, :, 2] = 1e4, -1e4
    after, _ = attend(None, query, key, value, mask)
    assert torch.equal(before, after)
    visible, _ = attend(None, query, key, value, None)
    assert not torch.allclose(visible, after)
