"""Equivalence of each KV strategy with something computed another way, in float32.

Depths come from a fixed cycle, so every run has several distinct exits and later tokens at full
depth that read what the exits left. Twins without the mechanism show that
the equalities can fail.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

from river_llm.cache import Source
from river_llm.config import RecomputeConfig
from river_llm.decoding import (
    FullQuant,
    Mask,
    MonoDecreasingCap,
    MonoDecreasingSchedule,
    NoExit,
    Recompute,
    River,
    Schedule,
    StatePropagation,
    Static,
)
from river_llm.engine.executor import Exit
from river_llm.errors import UserError
from river_llm.evaluation.methods import build_decoder
from river_llm.exits import Confidence, Fixed, Never, Replay, Similarity
from river_llm.generation import StopRules, generate
from tiny import (
    COPIED,
    KINDS,
    LAYERS,
    OTHER_PROMPT,
    PROMPT,
    QUANT,
    SLOTS,
    Scripted,
    make_executor,
    run,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("engine")

TOKENS = 20


def make(kind, strategy, rivers, criterion=None, quant=COPIED, **settings):
    criterion = Scripted() if criterion is None else criterion
    return strategy(*make_executor(tiny_model(kind), criterion, rivers, quant), **settings)


def proves(depths):
    """The run has exits of several depths and a later token at full depth."""
    assert len(set(depths)) >= 3
    assert sum(depth < LAYERS for depth in depths) >= 0.3 * len(depths)
    assert LAYERS in depths[2:]


FROM_EXITS = pytest.param(partial(Recompute, restart="exit"), id="Recompute from exits")
EXITING = [Mask, StatePropagation, Recompute, FROM_EXITS, MonoDecreasingCap]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", EXITING)
def test_without_exits_every_strategy_is_no_exit(kind, strategy, rivers):
    expected = run(make(kind, NoExit, rivers), [PROMPT], TOKENS)
    for criterion in (Never(LAYERS), Similarity(LAYERS, tau=1.01)):
        tokens, logits, depths = run(make(kind, strategy, rivers, criterion), [PROMPT], TOKENS)
        assert tokens == expected[0]
        assert torch.allclose(logits, expected[1], atol=1e-5)
        assert set(depths) == {LAYERS}


# --- mask ---------------------------------------------------------------------------------


class Compact:
    """A cache that appends what ran in each layer, and holds nothing else."""

    def __init__(self):
        self.entries = [[] for _ in range(LAYERS)]
        self.layer = 0

    def update(self, k, v, *_, **__):
        self.entries[self.layer].append((k, v))
        ks, vs = zip(*self.entries[self.layer], strict=True)
        return torch.cat(ks, 2), torch.cat(vs, 2)


def compacted_logits(adapter, fed, prompt_length, depths):
    """Each token attends to the compact list of the entries that are there in a layer."""
    cos, sin = adapter.rotary_table(SLOTS)
    store, out = Compact(), []
    steps = [(list(range(prompt_length)), LAYERS)]
    steps += [([prompt_length + n], depth) for n, depth in enumerate(depths)]
    with torch.no_grad():
        for positions, depth in steps:
            state = adapter.embed(torch.tensor([[fed[p] for p in positions]]))
            rotary = (cos[positions][None], sin[positions][None])
            for layer in range(depth):
                store.layer = layer
                state = adapter.run_layer(adapter.layers[layer], state, None, rotary, store)
            out.append(adapter.head(state[:, -1:]))
    return torch.cat(out, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_mask_equals_attention_over_the_compact_list_of_entries(kind, rivers):
    decoder = make(kind, Mask, rivers)
    tokens, logits, depths = run(decoder, [PROMPT], TOKENS)
    proves(depths)
    fed = PROMPT + tokens[0]
    adapter = decoder.executor.adapter
    assert torch.allclose(logits, compacted_logits(adapter, fed, len(PROMPT), depths), atol=1e-4)
    source = decoder.cache.source[:, 0, len(PROMPT) : len(PROMPT) + len(depths)]
    assert (source != int(Source.EMPTY)).sum(0).tolist() == depths


def test_a_mask_that_shows_empty_slots_differs(rivers, monkeypatch):
    decoder = make("qwen3", Mask, rivers)
    begin = decoder.executor.begin
    monkeypatch.setattr(
        decoder.executor, "begin", lambda inputs: begin(replace(inputs, gaps=False))
    )
    tokens, logits, depths = run(decoder, [PROMPT], TOKENS)
    fed = PROMPT + tokens[0]
    expected = compacted_logits(decoder.executor.adapter, fed, len(PROMPT), depths)
    assert not torch.allclose(logits, expected, atol=1e-2)


def test_mask_forgets_the_slots_of_an_earlier_prompt(rivers):
    alone = run(make("qwen2", Mask, rivers), [OTHER_PROMPT], TOKENS)
    shared = make("qwen2", Mask, rivers)
    run(shared, [PROMPT], TOKENS + 8)
    again = run(shared, [OTHER_PROMPT], TOKENS)
    assert again[0] == alone[0]
    assert torch.equal(again[1], alone[1])


def test_mask_hides_what_undone_steps_wrote(rivers):
    """Undone steps ran all layers; those in their place leave gaps, which a later step must see."""
    forced = (4, 8, 15, 16)
    decoder, fresh = (make("qwen2", Mask, rivers, Scripted((1, 2, 1, 5))) for _ in range(2))
    planned, decoder.criterion.cycle = decoder.criterion.cycle, (LAYERS,)
    decoder.prefill([PROMPT])
    for _ in forced:
        decoder.step()
    decoder.rollback(len(forced))
    decoder.criterion.cycle = planned
    actual = [decoder.step(forced=[token]).logits for token in forced]
    fresh.prefill([PROMPT])
    expected = [fresh.step(forced=[token]).logits for token in forced]
    assert torch.allclose(torch.cat(actual, 1), torch.cat(expected, 1), atol=1e-5)


# --- state propagation --------------------------------------------------------------------


class Spy:
    """Takes the keys and values that a whole decoder layer writes."""

    def update(self, k, v, *_, **__):
        self.k, self.v = k, v
        return k, v


@pytest.mark.parametrize("kind", KINDS)
def test_state_propagation_writes_what_each_layer_would_for_the_exit_state(kind, rivers):
    decoder = make(kind, StatePropagation, rivers)
    _, _, depths = run(decoder, [PROMPT], 2)
    (depth,) = depths
    position = len(PROMPT)
    assert depth < LAYERS
    executor = decoder.executor
    state, spy = executor.hidden(), Spy()
    cos, sin = executor.adapter.rotary_table(position + 1)
    rotary = (cos[None, [position]], sin[None, [position]])
    for layer in range(depth, LAYERS):
        with torch.no_grad():
            module = executor.adapter.layers[layer]
            executor.adapter.run_layer(module, state, None, rotary, spy)
        assert torch.allclose(decoder.cache.k[layer, 0, :, position], spy.k[0, :, 0], atol=1e-5)
        assert torch.allclose(decoder.cache.v[layer, 0, :, position], spy.v[0, :, 0], atol=1e-5)
    column = decoder.cache.source[:, 0, position].tolist()
    assert column == [int(Source.BACKBONE)] * depth + [int(Source.PROPAGATED)] * (LAYERS - depth)


def test_state_propagation_emits_from_the_exit_state(rivers):
    decoder = make("llama", StatePropagation, rivers)
    decoder.prefill([PROMPT])
    logits = decoder.step().logits
    expected = decoder.executor.adapter.head(decoder.executor.hidden())
    assert torch.allclose(logits, expected, atol=1e-5)


def test_propagating_with_another_layers_projections_differs(rivers, monkeypatch):
    expected = run(make("llama", StatePropagation, rivers), [PROMPT], TOKENS)
    proves(expected[2])
    decoder = make("llama", StatePropagation, rivers)
    original, cache = decoder.executor.kv_only, decoder.cache

    def lower_layers(first, last):
        original(first, last)
        slot = decoder._length
        for buffer in (cache.k, cache.v):
            buffer[first:last, :, :, slot] = buffer[first - 1, :, :, slot]

    monkeypatch.setattr(decoder.executor, "kv_only", lower_layers)
    assert not torch.allclose(run(decoder, [PROMPT], TOKENS)[1], expected[1], atol=1e-2)


# --- recompute ----------------------------------------------------------------------------


def assert_equals_fresh_prefill(decoder, kind, fed, length, rivers):
    """All layers hold, for the first `length` slots, what a prefill of the same tokens writes."""
    fresh = make(kind, NoExit, rivers)
    fresh.prefill([fed[:length]])
    for ours, theirs in ((decoder.cache.k, fresh.cache.k), (decoder.cache.v, fresh.cache.v)):
        assert torch.allclose(ours[:, :, :, :length], theirs[:, :, :, :length], atol=1e-4)
    assert (decoder.cache.source[:, 0, :length] == int(Source.BACKBONE)).all()


RESTARTS = ["embedding", "exit"]


class Fires(Similarity):
    """Tests the score at every depth, and fires at the depths of a cycle."""

    def __init__(self, cycle=(4, 1, 3, 5, 2, 5, 1)):
        super().__init__(LAYERS, tau=0.0)
        self.cycle = cycle

    def plan(self, step):
        self.depth = self.cycle[step % len(self.cycle)]

    def threshold(self, depth):
        return -2.0 if depth == self.depth else 2.0


def whole_model_logits(kind, fed, prompt_length, depths):
    """Final norm and head on transformers' own states of each token at its exit depth."""
    model = tiny_model(kind)
    with torch.no_grad():
        out = model(torch.tensor([fed]), output_hidden_states=True)
        states = [model.lm_head(model.model.norm(state[0])) for state in out.hidden_states[:-1]]
    states.append(out.logits[0])
    rows = [states[LAYERS][prompt_length - 1]]
    rows += [states[depth][prompt_length + step] for step, depth in enumerate(depths)]
    return torch.stack(rows)[None]


def assert_emits_from_the_whole_model(decoder, kind, count=TOKENS):
    tokens, logits, depths = run(decoder, [PROMPT], count)
    proves(depths)
    expected = whole_model_logits(kind, PROMPT + tokens[0][:-1], len(PROMPT), depths)
    assert torch.allclose(logits, expected, atol=1e-4)


# By hand from the cycle 4 1 3 5 2 5 1 4 1 3. From the embedding a block grows by one until depth
# 5 ends it; from the exits it holds the pending tokens that were left above where it ends.
BLOCKS = {
    "embedding": [1, 2, 3, 4, 1, 2, 1, 2, 3, 4],
    "exit": [1, 1, 2, 4, 1, 2, 1, 2, 1, 2],
}


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_full_pass_recompute_holds_what_a_fresh_prefill_writes(kind, restart, rivers):
    decoder = make(kind, Recompute, rivers, restart=restart)
    fed = [*PROMPT, decoder.prefill([PROMPT]).tokens[0][0]]
    blocks, depths, full = [], [], 0
    for _ in range(TOKENS):
        out = decoder.step()
        blocks.append(out.block)
        depths.append(out.trace.depth)
        if out.trace.depth == LAYERS:
            full += 1
            assert_equals_fresh_prefill(decoder, kind, fed, len(fed), rivers)
        fed.append(out.tokens[0][0])
    proves(depths)
    assert full >= 4
    assert blocks[:10] == BLOCKS[restart]


@pytest.mark.parametrize("restart", RESTARTS)
def test_after_an_early_exit_recompute_does_not_hold_it(restart, rivers):
    decoder = make("llama", Recompute, rivers, restart=restart)
    fed = [*PROMPT, decoder.prefill([PROMPT]).tokens[0][0]]
    decoder.step()
    with pytest.raises(AssertionError):
        assert_equals_fresh_prefill(decoder, "llama", fed, len(fed), rivers)


@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_recompute_emits_what_the_whole_model_has_at_the_exit_depth(kind, restart, most, rivers):
    """Nothing is missing in the layers that a block runs, so no exit before it changes a state."""
    decoder = make(kind, Recompute, rivers, max_pending=most, restart=restart)
    assert_emits_from_the_whole_model(decoder, kind)


def breaks_the_restart(monkeypatch, way):
    keep, join = Recompute._keep, Recompute._join

    def keep_first_state(self, block, depth):
        before = dict(self._kept)
        keep(self, block, depth)
        for slot in before.keys() & set(block):
            self._kept[slot] = replace(before[slot], depth=depth)

    def join_with_the_embedding(self, block, depth):
        for slot, kept in self._kept.items():
            ids = torch.tensor([[self._ids[0][slot]]])
            self._kept[slot] = replace(kept, state=self.executor.adapter.embed(ids))
        return join(self, block, depth)

    broken = {
        "a token that runs again keeps its first state": ("_keep", keep_first_state),
        "pending tokens join with their embedding": ("_join", join_with_the_embedding),
        "pending tokens never join": ("_join", lambda self, block, depth: block),
    }[way]
    monkeypatch.setattr(Recompute, *broken)


@pytest.mark.parametrize(
    "way",
    [
        "a token that runs again keeps its first state",
        "pending tokens join with their embedding",
        "pending tokens never join",
    ],
)
def test_a_restart_from_wrong_states_differs_from_the_whole_model(way, rivers, monkeypatch):
    breaks_the_restart(monkeypatch, way)
    with pytest.raises(AssertionError):
        assert_emits_from_the_whole_model(make("qwen3", Recompute, rivers, restart="exit"), "qwen3")


@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("make_criterion", [Scripted, Fires, lambda: Similarity(LAYERS, 0.8)])
def test_both_restarts_compute_the_same(make_criterion, most, rivers):
    """Tokens, logits, depths, scores and every cache entry: only the work differs."""
    decoders = [
        make("qwen3", Recompute, rivers, make_criterion(), max_pending=most, restart=restart)
        for restart in RESTARTS
    ]
    outs = [[d.prefill([PROMPT])] + [d.step() for _ in range(TOKENS)] for d in decoders]
    depths = [out.trace.depth for out in outs[0][1:]]
    proves(depths)
    for one, other in zip(*outs, strict=True):
        assert other.tokens == one.tokens
        assert torch.allclose(other.logits, one.logits, atol=1e-4)
        assert other.trace == replace(one.trace, score=pytest.approx(one.trace.score, abs=1e-5))
    first, second = (d.cache for d in decoders)
    assert torch.equal(second.source, first.source)
    assert torch.allclose(second.k, first.k, atol=1e-4)
    assert torch.allclose(second.v, first.v, atol=1e-4)
    assert decoders[1].executor.reads == decoders[0].executor.reads


@pytest.mark.parametrize("restart", RESTARTS)
def test_every_depth_is_tested_once_wherever_pending_tokens_join(restart, rivers):
    """Tokens join at depths 1 to 4; depth 5 is not tested, and its step keeps the score of 4."""
    decoder = make("llama", Recompute, rivers, Fires(), restart=restart)
    decoder.prefill([PROMPT])
    joined = set()
    for depth in (4, 1, 3, 5, 2, 5, 1, 4, 1, 3, 5):
        pending = {kept.depth for kept in decoder._kept.values()}
        before = decoder.executor.reads
        trace = decoder.step().trace
        assert (trace.depth, trace.fired) == (depth, depth < LAYERS)
        assert trace.score is not None
        assert decoder.executor.reads - before == 1 + min(depth, LAYERS - 1)
        joined |= {at for at in pending if at < depth}
    assert joined == ({1, 2, 3, 4} if restart == "exit" else set())


def test_a_join_that_leaves_out_the_test_before_it_is_noticed(rivers, monkeypatch):
    original = Recompute._advance

    def untested(self, left, depth, planned):
        planned = depth if depth in {kept.depth for kept in self._kept.values()} else planned
        return original(self, left, depth, planned)

    monkeypatch.setattr(Recompute, "_advance", untested)
    with pytest.raises(AssertionError):
        test_every_depth_is_tested_once_wherever_pending_tokens_join("exit", rivers)


def test_a_last_stretch_without_its_own_score_is_noticed(rivers, monkeypatch):
    original = Recompute._advance
    monkeypatch.setattr(
        Recompute,
        "_advance",
        lambda self, left, depth, planned: original(self, Exit(left.depth), depth, planned),
    )
    with pytest.raises(AssertionError):
        test_every_depth_is_tested_once_wherever_pending_tokens_join("exit", rivers)


# By hand: what ten steps of the cycle leave. From the exits, the block of the last step (depth 3)
# holds the token left at 1 and not those at 4; from the embedding it holds all since the last 5.
DEPTHS = {"embedding": [5] * 6 + [3, 3, 3, 3], "exit": [5] * 6 + [4, 4, 3, 3]}


def layer_runs(decoder):
    """How often each (layer, slot) of the backbone runs from now on."""
    runs, at = Counter(), []
    executor = decoder.executor
    begin, backbone, until = executor.begin, executor.backbone, executor.until

    def noted(inputs):
        at[:] = inputs.slots
        begin(inputs)

    def count(first, last):
        runs.update((layer, slot) for layer in range(first, last) for slot in at)

    def counted(first, last):
        count(first, last)
        backbone(first, last)

    def counted_until(first, last, live):
        # An engine need not come back to `backbone` for each layer.
        executor.backbone = backbone
        left = until(first, last, live)
        executor.backbone = counted
        count(first, left.depth)
        return left

    executor.begin, executor.backbone, executor.until = noted, counted, counted_until
    return runs


@pytest.mark.parametrize("make_criterion", [Scripted, Fires])
def test_from_the_exits_only_missing_layers_run(make_criterion, rivers):
    decoder = make("llama", Recompute, rivers, make_criterion(), restart="exit")
    decoder.prefill([PROMPT])
    runs = layer_runs(decoder)
    for _ in range(10):
        decoder.step()
    assert runs == Counter(
        (layer, len(PROMPT) + step)
        for step, depth in enumerate(DEPTHS["exit"])
        for layer in range(depth)
    )
    assert runs.total() == 44


def test_from_the_embedding_layers_run_again(rivers):
    """By hand, blocks times depths: 4 + 2*1 + 3*3 + 4*5 + 2 + 2*5 + 1 + 2*4 + 3*1 + 4*3."""
    decoder = make("llama", Recompute, rivers)
    decoder.prefill([PROMPT])
    runs = layer_runs(decoder)
    for _ in range(10):
        decoder.step()
    assert runs.total() == 71
    assert runs[0, len(PROMPT)] == 4


@pytest.mark.parametrize(
    ("restart", "steps", "depths"),
    [
        ("embedding", 1, [4]),
        ("embedding", 3, [3, 3, 3]),
        ("embedding", 10, DEPTHS["embedding"]),
        ("exit", 1, [4]),
        ("exit", 3, [4, 3, 3]),
        ("exit", 10, DEPTHS["exit"]),
    ],
)
def test_recorded_depths_are_those_of_the_last_block_a_token_ran_in(restart, steps, depths, rivers):
    decoder = make("llama", Recompute, rivers, restart=restart)
    results = generate(decoder, PROMPT, StopRules(steps + 1), lambda ids: "")
    *_, result = results
    assert [step.depth for step in result.step_exits] == depths
    assert result.block_lengths == BLOCKS[restart][:steps]


@pytest.mark.parametrize("restart", RESTARTS)
def test_a_full_block_forces_a_full_pass(restart, rivers):
    """From the exits all pending tokens stand at 2, so that only full passes feed them."""
    decoder = make("llama", Recompute, rivers, Fixed(LAYERS, 2), max_pending=3, restart=restart)
    fed = [*PROMPT, decoder.prefill([PROMPT]).tokens[0][0]]
    outs = [decoder.step() for _ in range(7)]
    blocks = {"embedding": [1, 2, 3, 1, 2, 3, 1], "exit": [1, 1, 3, 1, 1, 3, 1]}
    assert [out.block for out in outs] == blocks[restart]
    assert [out.trace.depth for out in outs] == [2, 2, LAYERS, 2, 2, LAYERS, 2]
    fed += [out.tokens[0][0] for out in outs]
    assert_equals_fresh_prefill(decoder, "llama", fed, len(PROMPT) + 6, rivers)


def test_recompute_without_a_cap_grows_without_bound(rivers):
    decoder = make("llama", Recompute, rivers, Fixed(LAYERS, 2))
    decoder.prefill([PROMPT])
    assert [decoder.step().block for _ in range(6)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 9])
def test_recompute_rolls_back_into_a_pending_block(steps, most, restart, rivers):
    """With the cap, undone full passes fall on the same tokens again."""
    decoder = make("qwen2", Recompute, rivers, max_pending=most, restart=restart)
    tokens, logits, depths = run(decoder, [PROMPT], TOKENS)
    proves(depths)
    decoder.rollback(steps)
    again = [decoder.step() for _ in range(steps)]
    assert [out.trace.depth for out in again] == depths[-steps:]
    assert [out.tokens[0][0] for out in again] == tokens[0][-steps:]
    assert torch.allclose(torch.cat([o.logits for o in again], 1), logits[:, -steps:], atol=1e-4)


def forced_after_rollback(decoder):
    """Logits of other tokens than those that four undone steps fed."""
    run(decoder, [PROMPT], TOKENS)
    decoder.rollback(4)
    return torch.cat([decoder.step(forced=[token]).logits for token in (4, 8, 15, 16)], 1)


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("cycle", [(4, 1, 3, 5, 2, 5, 1), (2, 1, 1, 4)])
def test_after_a_rollback_other_tokens_continue_as_if_nothing_had_been_undone(
    cycle, restart, rivers
):
    decoder = make("llama", Recompute, rivers, Scripted(cycle), restart=restart)
    actual = forced_after_rollback(decoder)
    fresh = make("llama", Recompute, rivers, Scripted(cycle), restart=restart)
    run(fresh, [PROMPT], TOKENS - 4)
    expected = [fresh.step(forced=[token]).logits for token in (4, 8, 15, 16)]
    assert torch.allclose(actual, torch.cat(expected, 1), atol=1e-4)


def test_a_rollback_that_keeps_undone_states_differs(rivers, monkeypatch):
    expected = forced_after_rollback(
        make("llama", Recompute, rivers, Scripted((2, 1, 1, 4)), restart="exit")
    )
    original = Recompute.rollback

    def forgetful(self, steps):
        kept = dict(self._kept)
        original(self, steps)
        self._kept = kept

    monkeypatch.setattr(Recompute, "rollback", forgetful)
    broken = forced_after_rollback(
        make("llama", Recompute, rivers, Scripted((2, 1, 1, 4)), restart="exit")
    )
    assert not torch.allclose(broken, expected, atol=1e-2)


@pytest.mark.parametrize("restart", RESTARTS)
def test_a_mark_that_is_not_taken_back_moves_the_forced_passes(restart, rivers, monkeypatch):
    original = Recompute.rollback

    def to_the_present(self, steps):
        original(self, steps)
        self._marks.append(self._length)

    monkeypatch.setattr(Recompute, "rollback", to_the_present)
    with pytest.raises(AssertionError):
        test_recompute_rolls_back_into_a_pending_block(4, 3, restart, rivers)


def test_the_restart_of_the_settings_is_the_decoders(rivers):
    executor, cache = make_executor(tiny_model("llama"), Scripted(), rivers, COPIED)
    for restart in RESTARTS:
        decoder = build_decoder(RecomputeConfig(restart=restart), executor, cache)
        decoder.prefill([PROMPT])
        assert [decoder.step().block for _ in range(10)] == BLOCKS[restart]


def test_recompute_forgets_the_states_of_an_earlier_prompt(rivers):
    alone = run(make("qwen2", Recompute, rivers, restart="exit"), [OTHER_PROMPT], TOKENS)
    shared = make("qwen2", Recompute, rivers, restart="exit")
    run(shared, [PROMPT], TOKENS + 9)
    assert shared._kept, "the first text ends with pending tokens"
    again = run(shared, [OTHER_PROMPT], TOKENS)
    assert again[0] == alone[0]
    assert torch.equal(again[1], alone[1])


# --- mono_decreasing ----------------------------------------------------------------------


def assert_prefixes(cache, length):
    """In every layer the slots with entries are a prefix of the text."""
    for layer in range(LAYERS):
        filled = (cache.source[layer, 0, :length] != int(Source.EMPTY)).tolist()
        assert filled == sorted(filled, reverse=True)


SCHEDULES = [
    Schedule(5, 2, 8, 1, "skip_low"),
    Schedule(5, 1, 12, 0, "exit_top"),
    Schedule(4, 2, 6, 2, "skip_low"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_leaves_a_prefix_in_every_layer(kind, schedule, rivers):
    decoder = make(kind, MonoDecreasingSchedule, rivers, schedule=schedule)
    _, _, depths = run(decoder, [PROMPT], TOKENS)
    assert depths == sorted(depths, reverse=True)
    assert depths[0] == schedule.most
    assert depths[-1] == schedule.fewest
    assert_prefixes(decoder.cache, len(PROMPT) + len(depths))


def test_schedule_by_hand():
    schedule = Schedule(most=10, fewest=2, length=4, warm_up=1, place="skip_low")
    assert [schedule.active(step) for step in range(6)] == [10, 8, 6, 4, 2, 2]


def test_skip_low_runs_the_warm_up_and_the_top(rivers):
    decoder = make(
        "llama", MonoDecreasingSchedule, rivers, schedule=Schedule(3, 3, 1, 1, "skip_low")
    )
    run(decoder, [PROMPT], 2)
    column = decoder.cache.source[:, 0, len(PROMPT)] != int(Source.EMPTY)
    assert column.tolist() == [True, False, False, True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_the_cap_never_lets_the_depth_grow(kind, rivers):
    decoder = make(kind, MonoDecreasingCap, rivers)
    tokens, logits, depths = run(decoder, [PROMPT], TOKENS)
    # The cycle 4 1 3 5 ... clamped to the smallest depth so far.
    assert depths[:4] == [4, 1, 1, 1]
    assert_prefixes(decoder.cache, len(PROMPT) + len(depths))
    # Nothing that is read is missing, so hiding empty slots changes nothing.
    fed = PROMPT + tokens[0]
    expected = compacted_logits(decoder.executor.adapter, fed, len(PROMPT), depths)
    assert torch.allclose(logits, expected, atol=1e-4)


def test_at_the_cap_nothing_is_tested(rivers):
    """The first step may run to the top; behind an exit at d a step makes at most d - 1 tests."""
    similarity = Similarity(LAYERS, 0.2)
    decoder = MonoDecreasingCap(*make_executor(tiny_model("llama"), similarity, rivers))
    decoder.prefill([PROMPT])
    depths, reads = [], []
    for _ in range(12):
        before = decoder.executor.reads
        depths.append(decoder.step().trace.depth)
        reads.append(decoder.executor.reads - before)
    caps = [LAYERS, *depths[:-1]]
    for depth, cap, count in zip(depths, caps, reads, strict=True):
        assert depth <= cap
        # One read for the token, and one for each test: an exit at the cap was not tested there.
        assert count == 1 + (depth if depth < cap else cap - 1)
    assert depths[-1] < LAYERS


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_undone_steps_cap_nothing(steps, rivers):
    depths = (5, 4, 4, 4, 3, 2, 1)
    decoder = make("llama", MonoDecreasingCap, rivers, Scripted(depths))
    decoder.prefill([PROMPT])
    outputs = [decoder.step() for _ in depths]
    assert tuple(output.trace.depth for output in outputs) == depths
    decoder.rollback(steps)
    again = [decoder.step() for _ in range(steps)]
    assert tuple(output.trace.depth for output in again) == depths[-steps:]
    for first, second in zip(outputs[-steps:], again, strict=True):
        assert torch.allclose(first.logits, second.logits, atol=1e-4)


def test_exits_without_the_cap_leave_gaps(rivers):
    decoder = make("llama", Mask, rivers)
    run(decoder, [PROMPT], TOKENS)
    with pytest.raises(AssertionError):
        assert_prefixes(decoder.cache, len(PROMPT) + TOKENS - 1)


# --- controls -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [0, 2, LAYERS])
def test_static_first_is_river_at_that_depth_behind_a_backbone_prefill(kind, k, rivers):
    expected = run(
        make(kind, River, rivers, Fixed(LAYERS, k), QUANT, prefill="backbone"), [PROMPT], TOKENS
    )
    actual = run(
        make(kind, Static, rivers, Never(LAYERS), QUANT, backbone_layers=range(k)),
        [PROMPT],
        TOKENS,
    )
    assert actual[0] == expected[0]
    assert torch.equal(actual[1], expected[1])
    assert actual[2] == expected[2]


@pytest.mark.parametrize("layers", [[3, 4], [0, 2, 4], [1]])
def test_static_runs_the_chosen_layers_in_the_backbone(layers, rivers):
    decoder = make("llama", Static, rivers, Never(LAYERS), backbone_layers=layers)
    _, _, depths = run(decoder, [PROMPT], 4)
    assert set(depths) == {len(layers)}
    for step in range(3):
        column = decoder.cache.source[:, 0, len(PROMPT) + step].tolist()
        expected = [Source.BACKBONE if n in layers else Source.RIVER for n in range(LAYERS)]
        assert column == [int(source) for source in expected]


@pytest.mark.parametrize("strategy", [FullQuant, Static])
def test_a_planned_step_reads_the_host_once(strategy, rivers):
    settings = {"backbone_layers": [1, 3]} if strategy is Static else {}
    decoder = make("llama", strategy, rivers, Never(LAYERS), **settings)
    decoder.prefill([PROMPT])
    before = decoder.executor.reads
    decoder.step()
    assert decoder.executor.reads - before == 1


# --- replay -------------------------------------------------------------------------------


def test_replay_by_hand():
    replay = Replay(LAYERS, {"a": (3, [1, 4, 2]), "b": (5, [])}, "run")
    replay.begin_sample("a")
    assert [replay.plan(step) for step in (None, 0, 1, 2)] == [3, 1, 4, 2]
    with pytest.raises(UserError, match=r"3 decode steps for sample a, step 3"):
        replay.plan(3)
    assert (replay.recorded_steps("a"), replay.recorded_steps("c")) == (3, 0)
    with pytest.raises(UserError, match="sample c"):
        replay.begin_sample("c")


def test_a_cycling_replay_begins_again():
    replay = Replay(LAYERS, {"a": (3, [1, 4, 2]), "b": (5, [])}, "run", cycle=True)
    replay.begin_sample("a")
    assert [replay.plan(step) for step in range(7)] == [1, 4, 2, 1, 4, 2, 1]
    assert replay.recorded_steps("a") is None
    replay.begin_sample("b")
    assert replay.plan(0) == LAYERS


# --- confidence ---------------------------------------------------------------------------


def test_confidence_is_the_largest_probability_of_the_head(rivers):
    model = tiny_model("llama")
    with torch.no_grad():
        states = model(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
        adapter = make_executor(model, Never(LAYERS), rivers, COPIED)[0].adapter
        by_hand = [adapter.head(state[0, -1]).softmax(-1).max().item() for state in states[1:-1]]
    for depth, value in enumerate(by_hand, start=1):
        criterion = Confidence(LAYERS, value - 1e-4, min_depth=depth)
        decoder = River(*make_executor(model, criterion, rivers, COPIED))
        trace = decoder.prefill([PROMPT]).trace
        assert trace.depth == depth
        assert trace.score == pytest.approx(value, abs=1e-5)


# --- batches ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy",
    [
        *EXITING,
        partial(MonoDecreasingSchedule, schedule=SCHEDULES[0]),
        partial(Static, backbone_layers=[1]),
    ],
)
def test_strategies_of_one_sequence_refuse_a_batch(strategy, rivers):
    decoder = strategy(*make_executor(tiny_model("llama"), Never(LAYERS), rivers, COPIED, batch=2))
    with pytest.raises(UserError, match="one sequence at a time, 2 were given") as caught:
        decoder.prefill([PROMPT, OTHER_PROMPT])
    assert "\n" not in str(caught.value)
