"""The anchors can fail: each mechanism broken by one line, and the equality that must notice."""

from __future__ import annotations

import pytest
import torch

from river_llm.cache import SlotCache
from river_llm.decoding import FullQuant, Mask, NoExit, River
from river_llm.engine import executor as executor_module
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.executor import Executor
from river_llm.engine.native.executor import NarrowExecutor
from river_llm.engine.regions import RegionExecutor
from river_llm.exits import Criterion, Fixed, Never, Similarity
from river_llm.exits.threshold import Threshold
from river_llm.quant.river import RiverLayers
from test_anchors import SIMILARITY_BATCHES, assert_batch_follows_its_rows
from tiny import (
    COPIED,
    ENGINES,
    LAYERS,
    OTHER_PROMPT,
    PROMPT,
    QUANT,
    make_executor,
    run,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("engine")

TOKENS = 16


class TwoAndFull(Criterion):
    """Depth 2, then full depth, in turn."""

    def plan(self, step):
        return LAYERS if step is None or step % 2 else 2


def arm(strategy, criterion, rivers, quant=QUANT, kind="qwen3", batch=1, **settings):
    executor = make_executor(tiny_model(kind), criterion, rivers, quant, batch)
    return strategy(*executor, **settings)


def logits(decoder, prompts=(PROMPT,), count=TOKENS):
    return run(decoder, list(prompts), count)[1]


def differ(one, other):
    return not torch.allclose(one, other, atol=1e-2)


def test_a_criterion_that_fires_is_not_no_exit(rivers, monkeypatch):
    expected = logits(arm(NoExit, Never(LAYERS), rivers))
    monkeypatch.setattr(Threshold, "threshold", lambda self, depth: -2.0)
    assert differ(logits(arm(River, Similarity(LAYERS, 1.01), rivers)), expected)


def test_a_copied_river_one_layer_off_is_not_no_exit(rivers, monkeypatch):
    expected = logits(arm(NoExit, Never(LAYERS), rivers, COPIED))
    original = RiverLayers.acquire
    monkeypatch.setattr(
        RiverLayers, "acquire", lambda self, n, tokens: original(self, (n + 1) % LAYERS, tokens)
    )
    assert differ(logits(arm(River, Fixed(LAYERS, 2), rivers, COPIED)), expected)


def test_a_river_that_starts_a_layer_late_is_not_full_quant(engine, rivers, monkeypatch):
    expected = logits(arm(FullQuant, Never(LAYERS), rivers))
    kind = ENGINES[engine]
    original = kind.river
    monkeypatch.setattr(kind, "river", lambda self, first, last: original(self, first + 1, last))
    assert differ(logits(arm(River, Fixed(LAYERS, 0), rivers)), expected)


def test_a_river_with_a_cache_of_its_own_is_not_no_exit(rivers, monkeypatch):
    """What the river writes must be what the backbone reads."""
    expected = logits(arm(NoExit, Never(LAYERS), rivers, COPIED))
    decoder = arm(River, Fixed(LAYERS, 2), rivers, COPIED)
    executor, slots = decoder.executor, []
    begin, flow = executor.begin, executor.river

    def noted(inputs):
        slots[:] = inputs.slots
        begin(inputs)

    def lost(first, last):
        flow(first, last)
        decoder.cache.k[first:last, :, :, slots] = 0

    monkeypatch.setattr(executor, "begin", noted)
    monkeypatch.setattr(executor, "river", lost)
    assert differ(logits(decoder), expected)


def test_a_batch_whose_padding_is_forgotten_differs_from_single_runs(rivers, monkeypatch):
    alone = logits(arm(River, Never(LAYERS), rivers), [OTHER_PROMPT])
    decoder = arm(River, Never(LAYERS), rivers, batch=2)
    original = decoder._inputs

    def unpadded(slots):
        inputs = original(slots)
        return type(inputs)(slots=inputs.slots, ids=inputs.ids, pad=[0, 0])

    monkeypatch.setattr(decoder, "_inputs", unpadded)
    assert differ(logits(decoder, [PROMPT, OTHER_PROMPT])[1], alone[0])


def test_a_cache_that_is_not_forgotten_changes_the_next_sample(rivers, monkeypatch):
    """Only `mask` looks at old marks; the others overwrite a slot before they read it."""
    alone = logits(arm(Mask, TwoAndFull(LAYERS), rivers), [OTHER_PROMPT])
    shared = arm(Mask, TwoAndFull(LAYERS), rivers)
    logits(shared, [PROMPT], TOKENS + 8)
    monkeypatch.setattr(SlotCache, "truncate", lambda self, length: None)
    assert differ(logits(shared, [OTHER_PROMPT]), alone)


def test_a_rollback_that_forgets_no_position_gives_another_continuation(rivers, monkeypatch):
    decoder = arm(River, Fixed(LAYERS, 2), rivers)
    whole = logits(decoder)
    length = decoder._length
    decoder.rollback(5)
    decoder._length = length
    decoder._ids[0] += [0] * 5
    again = torch.cat([decoder.step().logits for _ in range(5)], dim=1)
    assert differ(again, whole[:, -5:])


def test_forced_tokens_that_are_not_fed_change_the_logits(rivers):
    forced = [4, 8, 15, 16, 23, 42]
    fed, ignored = (arm(NoExit, Never(LAYERS), rivers) for _ in range(2))
    fed.prefill([PROMPT])
    ignored.prefill([PROMPT])
    one = torch.cat([fed.step(forced=[token]).logits for token in forced], dim=1)
    other = torch.cat([ignored.step().logits for _ in forced], dim=1)
    assert differ(one, other)


def test_one_more_transfer_is_counted(rivers, monkeypatch):
    decoder = arm(River, Similarity(LAYERS, 1.01), rivers, prefill="backbone")
    decoder.prefill([PROMPT])
    original = decoder.executor.until

    def chatty(*arguments):
        decoder.executor.read(torch.zeros(1))
        return original(*arguments)

    monkeypatch.setattr(decoder.executor, "until", chatty)
    before = decoder.executor.reads
    decoder.step()
    assert decoder.executor.reads - before == 1 + (LAYERS - 1) + 1


@pytest.mark.parametrize("row", [0, 1])
def test_a_finished_row_no_longer_decides_the_depth(row, rivers):
    """Alone, each row has depths of its own; the batch follows the rows that are alive."""
    criterion = Similarity(LAYERS, 0.55)
    prompts = [PROMPT, OTHER_PROMPT]
    batch = arm(River, criterion, rivers, batch=2, prefill="backbone")
    batch.prefill(prompts)
    batch.finish(1 - row)
    depths = [batch.step().trace.depth for _ in range(8)]
    alone = run(arm(River, criterion, rivers, prefill="backbone"), [prompts[row]], 9)[2]
    other = run(arm(River, criterion, rivers, prefill="backbone"), [prompts[1 - row]], 9)[2]
    assert depths == alone
    assert depths != other


@pytest.mark.parametrize("settings", SIMILARITY_BATCHES)
def test_a_batch_that_follows_its_most_similar_row_is_noticed(settings, rivers, monkeypatch):
    monkeypatch.setattr(executor_module, "min", max, raising=False)
    monkeypatch.setattr(NarrowExecutor, "until", Executor.until)
    with pytest.raises(AssertionError):
        assert_batch_follows_its_rows("qwen3", rivers, **settings)


@pytest.mark.parametrize("settings", SIMILARITY_BATCHES)
def test_a_finished_row_that_still_decides_is_noticed(settings, rivers, monkeypatch):
    monkeypatch.setattr(River, "finish", lambda self, row: None)
    with pytest.raises(AssertionError):
        assert_batch_follows_its_rows("qwen3", rivers, **settings)


def test_a_mean_over_padding_is_noticed(rivers, monkeypatch):
    for kind in (EagerExecutor, RegionExecutor):
        monkeypatch.setattr(kind, "_pool", lambda self, hidden: hidden.float().mean(1))
    with pytest.raises(AssertionError):
        assert_batch_follows_its_rows("qwen2", rivers, prefill="sequence", pool="mean")
