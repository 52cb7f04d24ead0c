"""Correctness anchors: equalities that hold whatever the engine, in float32 on tiny models.

Every equality is worked out by something that is not this project's loop: transformers' own
generate, a model with replaced weights, or a second path to the same state. Twins with the
mechanism broken show that the tests can fail.
"""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from river_llm.cache import Source
from river_llm.config import RtnInt8Config
from river_llm.decoding import FullQuant, NoExit, River
from river_llm.engine.executor import NumericsError, StepInputs
from river_llm.exits import Fixed, Never, Replay, Similarity
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import model_fingerprint
from river_llm.quant import rtn_int4
from river_llm.quant.grid import split_groups
from river_llm.quant.river import build_river
from tiny import (
    COPIED,
    KINDS,
    LAYERS,
    OTHER_PROMPT,
    PROMPT,
    QUANT,
    SLOTS,
    VOCAB,
    Scripted,
    make_executor,
    run,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("engine")

TOKENS = 24
INT8 = RtnInt8Config()


def no_exit(model, rivers):
    return NoExit(*make_executor(model, Never(LAYERS), rivers, COPIED))


def river(model, criterion, rivers, quant=QUANT, batch=1, **settings):
    return River(*make_executor(model, criterion, rivers, quant, batch), **settings)


def dequantized_twin(model, quant=QUANT):
    """The model with every linear of its layers replaced by its dequantized values."""
    twin = copy.deepcopy(model)
    for layer in twin.model.layers:
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                module.weight.data = dequantized(module.weight.data, quant)
    return twin


def dequantized(weight, quant):
    if quant != INT8:
        groups = split_groups(weight, quant.group_size, "twin")
        return rtn_int4.quantize(groups).dequantize(torch.float32)
    step = (weight.abs().max(dim=1, keepdim=True).values / 127).bfloat16().float()
    return torch.round(weight / step).clamp(-127, 127) * step


def generate(model, prompt, count):
    """Transformers' own greedy generate: tokens and logits [count, V]."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits)


@pytest.mark.parametrize("kind", KINDS)
def test_no_exit_equals_transformers_generate(kind, rivers):
    model = tiny_model(kind)
    tokens, logits, _ = run(no_exit(model, rivers), [PROMPT], TOKENS)
    expected, expected_logits = generate(model, PROMPT, TOKENS)
    assert tokens[0] == expected
    assert torch.allclose(logits[0], expected_logits, atol=1e-4)
    assert len(set(expected)) > 3, "a model that repeats one token would prove little"


@pytest.mark.parametrize("kind", KINDS)
def test_no_exit_without_rotary_positions_is_not_generate(kind, rivers, monkeypatch):
    original = BackboneAdapter.rotary_table

    def first_position(self, length):
        return tuple(table[:1].expand(length, -1) for table in original(self, length))

    monkeypatch.setattr(BackboneAdapter, "rotary_table", first_position)
    model = tiny_model(kind)
    tokens, _, _ = run(no_exit(model, rivers), [PROMPT], TOKENS)
    assert tokens[0] != generate(model, PROMPT, TOKENS)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefill", ["sequence", "backbone"])
def test_river_that_never_fires_equals_no_exit(kind, prefill, rivers):
    model = tiny_model(kind)
    expected = run(no_exit(model, rivers), [PROMPT], TOKENS)
    decoder = river(model, Similarity(LAYERS, tau=1.01), rivers, prefill=prefill)
    tokens, logits, depths = run(decoder, [PROMPT], TOKENS)
    assert tokens == expected[0]
    assert torch.equal(logits, expected[1])
    assert set(depths) == {LAYERS}


@pytest.mark.parametrize("kind", KINDS)
def test_river_of_the_backbones_own_weights_equals_no_exit_at_every_depth(kind, rivers):
    model = tiny_model(kind)
    expected = run(no_exit(model, rivers), [PROMPT], TOKENS)
    for depth in range(LAYERS + 1):
        decoder = river(model, Fixed(LAYERS, depth), rivers, COPIED)
        tokens, logits, _ = run(decoder, [PROMPT], TOKENS)
        assert tokens == expected[0]
        assert torch.allclose(logits, expected[1], atol=1e-5)
    tokens, logits, depths = run(river(model, Scripted(), rivers, COPIED), [PROMPT], TOKENS)
    assert tokens == expected[0]
    assert len(set(depths)) >= 3
    assert sum(depth < LAYERS for depth in depths) >= 0.3 * len(depths)


@pytest.mark.parametrize("quant", [QUANT, INT8])
@pytest.mark.parametrize("kind", KINDS)
def test_river_at_depth_0_in_both_phases_equals_full_quant(kind, quant, rivers):
    model = tiny_model(kind)
    full_quant = FullQuant(*make_executor(model, Never(LAYERS), rivers, quant))
    expected = run(full_quant, [PROMPT], TOKENS)
    actual = run(river(model, Fixed(LAYERS, 0), rivers, quant), [PROMPT], TOKENS)
    assert actual[0] == expected[0]
    assert torch.equal(actual[1], expected[1])
    different = run(no_exit(model, rivers), [PROMPT], TOKENS)
    assert not torch.allclose(different[1], expected[1], atol=1e-2)


@pytest.mark.parametrize("quant", [QUANT, INT8])
@pytest.mark.parametrize("kind", KINDS)
def test_full_quant_equals_transformers_with_dequantized_weights(kind, quant, rivers):
    model = tiny_model(kind)
    full_quant = FullQuant(*make_executor(model, Never(LAYERS), rivers, quant))
    tokens, logits, depths = run(full_quant, [PROMPT], TOKENS)
    expected, expected_logits = generate(dequantized_twin(model, quant), PROMPT, TOKENS)
    assert tokens[0] == expected
    assert torch.allclose(logits[0], expected_logits, atol=1e-4)
    assert set(depths) == {0}
    assert not torch.allclose(generate(model, PROMPT, TOKENS)[1], expected_logits, atol=1e-2)


@pytest.mark.parametrize("quant", [QUANT, INT8])
@pytest.mark.parametrize("kind", KINDS)
def test_river_equals_a_layer_mix_written_out(kind, quant, rivers):
    """Each token runs d layers of the backbone and the rest of the twin, without any cache."""
    model, twin = tiny_model(kind), dequantized_twin(tiny_model(kind), quant)
    decoder = river(model, Scripted(), rivers, quant)
    tokens, logits, depths = run(decoder, [PROMPT], 12)
    per_token = [LAYERS] * len(PROMPT) + depths
    fed = PROMPT + tokens[0][:-1]
    expected = _mixed_forward(model, twin, fed, per_token)
    assert torch.allclose(logits[0], expected[len(PROMPT) - 1 :], atol=1e-4)
    assert len(set(depths)) >= 3
    # A later token at full depth reads what exits left behind.
    assert LAYERS in depths[1:]
    others = [LAYERS] * len(fed)
    assert not torch.allclose(
        logits[0], _mixed_forward(model, twin, fed, others)[len(PROMPT) - 1 :], atol=1e-2
    )


def _mixed_forward(model, twin, fed, depths):
    """Logits [n, V] of a causal pass in which token t runs layer l in `model` iff l < depths[t]."""
    first, second = BackboneAdapter(model), BackboneAdapter(twin)
    cos, sin = first.rotary_table(len(fed))
    states = first.embed(torch.tensor([fed]))
    with torch.no_grad():
        for layer in range(LAYERS):
            shallow = _KeysAndValues(), _KeysAndValues()
            rotary = (cos[None], sin[None])
            for adapter, store in zip((first, second), shallow, strict=True):
                adapter.run_layer(adapter.layers[layer], states, None, rotary, store)
            in_backbone = torch.tensor([layer < depth for depth in depths])
            choose = in_backbone[None, None, :, None]
            mixed = _Given(
                torch.where(choose, shallow[0].k, shallow[1].k),
                torch.where(choose, shallow[0].v, shallow[1].v),
            )
            outs = [
                adapter.run_layer(adapter.layers[layer], states, None, rotary, mixed)
                for adapter in (first, second)
            ]
            states = torch.where(in_backbone[None, :, None], outs[0], outs[1])
        return first.head(states)[0]


class _KeysAndValues:
    def update(self, k, v, *_, **__):
        self.k, self.v = k, v
        return k, v


class _Given:
    def __init__(self, k, v):
        self.k, self.v = k, v

    def update(self, k, v, *_, **__):
        return self.k, self.v


def test_slots_say_who_wrote_them(rivers):
    decoder = river(tiny_model("llama"), Scripted(), rivers)
    _, _, depths = run(decoder, [PROMPT], 8)
    source = decoder.cache.source[:, 0]
    assert (source[:, : len(PROMPT)] == int(Source.BACKBONE)).all()
    for step, depth in enumerate(depths):
        column = source[:, len(PROMPT) + step].tolist()
        assert column == [int(Source.BACKBONE)] * depth + [int(Source.RIVER)] * (LAYERS - depth)
    assert (source[:, len(PROMPT) + len(depths) :] == int(Source.EMPTY)).all()


def test_river_shares_everything_but_linears(rivers):
    model = tiny_model("llama_bias")
    before = {name: p.clone() for name, p in model.state_dict().items()}
    adapter = BackboneAdapter(model)
    fingerprint = model_fingerprint(model)
    stack = build_river(adapter, QUANT, fingerprint, cache=rivers, kernels=False)
    for index, layer in enumerate(adapter.layers):
        exit_layer = stack.acquire(index, 1)
        assert exit_layer is not layer
        assert exit_layer.input_layernorm is layer.input_layernorm
        own = {id(m) for m in layer.modules() if isinstance(m, nn.Linear)}
        theirs = [m for m in exit_layer.modules() if isinstance(m, nn.Linear)]
        assert len(theirs) == 7
        assert not own & {id(m) for m in theirs}
        assert exit_layer.self_attn.q_proj.bias is layer.self_attn.q_proj.bias
    for name, parameter in model.state_dict().items():
        assert torch.equal(parameter, before[name]), name


# Rows of 7, 4 and 9 tokens, padded on the left to 9.
BATCH = [PROMPT, OTHER_PROMPT, [11, 70, 23, 8, 52, 90, 4, 33, 19]]


def replay(prefill, steps):
    """Recorded depths, told already which sample comes; the steps begin again at their end."""
    criterion = Replay(LAYERS, {"batch": (prefill, steps)}, "a run", cycle=True)
    criterion.begin_sample("batch")
    return criterion


def assert_rows_equal_single_runs(make, kind):
    model = tiny_model(kind)
    tokens, logits, depths = run(make(model, len(BATCH)), BATCH, 16)
    for row, prompt in enumerate(BATCH):
        alone = run(make(model, 1), [prompt], 16)
        assert tokens[row] == alone[0][0]
        assert torch.allclose(logits[row], alone[1][0], atol=2e-4)
        assert depths == alone[2]
    return depths


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("strategy", "depth"), [(NoExit, LAYERS), (FullQuant, 0)])
def test_a_batch_without_exits_gives_what_single_runs_give(kind, strategy, depth, rivers):
    def make(model, batch):
        return strategy(*make_executor(model, Never(LAYERS), rivers, QUANT, batch))

    assert set(assert_rows_equal_single_runs(make, kind)) == {depth}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefill", ["sequence", "backbone"])
def test_a_batch_at_planned_depths_gives_what_single_runs_give(kind, prefill, rivers):
    """The prompt leaves at 2 where it may."""

    def make(model, batch):
        criterion = replay(2, [4, 1, 3, 5, 0, 5, 2])
        return river(model, criterion, rivers, batch=batch, prefill=prefill)

    depths = assert_rows_equal_single_runs(make, kind)
    assert len(set(depths)) >= 3
    assert sum(depth < LAYERS for depth in depths) >= 0.3 * len(depths)
    assert LAYERS in depths[2:]


@pytest.mark.parametrize("make", [no_exit, lambda m, r: river(m, Scripted(), r)])
def test_two_samples_in_one_process_give_what_each_gives_alone(make, rivers):
    model = tiny_model("qwen3")
    alone = run(make(model, rivers), [OTHER_PROMPT], TOKENS)
    shared = make(model, rivers)
    run(shared, [PROMPT], TOKENS + 6)
    again = run(shared, [OTHER_PROMPT], TOKENS)
    assert again[0] == alone[0]
    assert torch.equal(again[1], alone[1])


@pytest.mark.parametrize("steps", [1, 5])
def test_rollback_gives_the_same_continuation(steps, rivers):
    decoder = river(tiny_model("qwen2"), Scripted(), rivers)
    tokens, logits, _ = run(decoder, [PROMPT], TOKENS)
    decoder.rollback(steps)
    again = [decoder.step() for _ in range(steps)]
    assert [out.tokens[0][0] for out in again] == tokens[0][-steps:]
    assert torch.allclose(torch.cat([o.logits for o in again], 1), logits[:, -steps:], atol=1e-5)


def test_rollback_beyond_the_prompt_is_refused(rivers):
    decoder = river(tiny_model("llama"), Scripted(), rivers)
    run(decoder, [PROMPT], 3)
    with pytest.raises(ValueError, match="3 of 2"):
        decoder.rollback(3)


def test_forced_tokens_give_the_logits_of_one_parallel_pass(rivers):
    model = tiny_model("llama")
    torch.manual_seed(3)
    forced = torch.randint(VOCAB, (12,)).tolist()
    decoder = no_exit(model, rivers)
    outputs = [decoder.prefill([PROMPT])] + [decoder.step(forced=[token]) for token in forced]
    logits = torch.cat([out.logits for out in outputs], dim=1)[0]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT + forced])).logits[0, len(PROMPT) - 1 :]
    assert torch.allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("criterion", "tests"),
    [
        (Never(LAYERS), 0),
        (Fixed(LAYERS, 2), 0),
        (Similarity(LAYERS, tau=1.01), 4),
        (Similarity(LAYERS, tau=1.01, min_depth=2), 3),
        (Similarity(LAYERS, tau=1.01, min_depth=2, max_depth=4), 2),
        (Similarity(LAYERS, tau=-1.01), 1),
    ],
)
def test_a_step_reads_once_for_the_token_and_once_per_test(criterion, tests, rivers):
    decoder = river(tiny_model("llama"), criterion, rivers, prefill="backbone")
    decoder.prefill([PROMPT])
    before = decoder.executor.reads
    decoder.step()
    assert decoder.executor.reads - before == 1 + tests


def test_max_depth_ends_the_backbone_without_a_test(rivers):
    criterion = Similarity(LAYERS, tau=1.01, max_depth=3)
    _, _, depths = run(river(tiny_model("llama"), criterion, rivers), [PROMPT], 6)
    assert set(depths) == {3}


def test_exit_depth_is_the_first_where_the_cosine_exceeds_tau(rivers):
    """Depth and score by hand, from transformers' own hidden states of the prompt."""
    model = tiny_model("llama")
    with torch.no_grad():
        states = model(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    cosines = [
        torch.nn.functional.cosine_similarity(states[n][0, -1], states[n + 1][0, -1], dim=0).item()
        for n in range(LAYERS - 1)
    ]
    order = sorted(cosines)
    for tau in [(a + b) / 2 for a, b in itertools.pairwise(order)]:
        depth = next(n + 1 for n, cosine in enumerate(cosines) if cosine > tau)
        trace = river(model, Similarity(LAYERS, tau), rivers).prefill([PROMPT]).trace
        assert (trace.depth, trace.fired) == (depth, True)
        assert trace.score == pytest.approx(cosines[depth - 1], abs=1e-5)


def test_pooling_over_the_prompt_sees_the_mean_state(rivers):
    model = tiny_model("llama")
    with torch.no_grad():
        states = model(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    pooled = [state[0].mean(0) for state in states]
    cosine = torch.nn.functional.cosine_similarity(pooled[0], pooled[1], dim=0).item()
    decoder = river(model, Similarity(LAYERS, cosine - 0.01), rivers, pool="mean")
    trace = decoder.prefill([PROMPT]).trace
    assert trace.depth == 1
    assert trace.score == pytest.approx(cosine, abs=1e-5)


def watch_similarity(decoder, pool):
    """For each pass from now on, the cosine of the input and output of each backbone layer."""
    executor, passes = decoder.executor, []
    begin, backbone = executor.begin, executor.backbone

    def pooled():
        hidden = executor.hidden()[0]
        return hidden.mean(0) if pool == "mean" else hidden[-1]

    def begun(inputs):
        passes.append([])
        begin(inputs)

    def layer_by_layer(first, last):
        for layer in range(first, last):
            before = pooled()
            backbone(layer, layer + 1)
            passes[-1].append(nn.functional.cosine_similarity(before, pooled(), dim=0).item())

    executor.begin, executor.backbone = begun, layer_by_layer
    return passes


def assert_batch_follows_its_rows(kind, rivers, tau=0.75, **settings):
    """Single runs that replay the batch's depths give its logits, and their cosines its depths.

    Row 2 finishes before decode step 7 and row 0 before step 13; they go on being computed.
    """
    model = tiny_model(kind)
    batch = river(model, Similarity(LAYERS, tau), rivers, batch=len(BATCH), **settings)
    outs, alive = [batch.prefill(BATCH)], [[0, 1, 2]]
    for step in range(18):
        if step in (6, 12):
            batch.finish({6: 2, 12: 0}[step])
        outs.append(batch.step())
        alive.append([0, 1, 2] if step < 6 else [0, 1] if step < 12 else [1])
    traces = [out.trace for out in outs]
    depths = [trace.depth for trace in traces]
    logits = torch.cat([out.logits for out in outs], dim=1)
    cosines = []
    for row, prompt in enumerate(BATCH):
        single = river(model, replay(depths[0], depths[1:]), rivers, **settings)
        cosines.append(watch_similarity(single, settings.get("pool", "last")))
        tokens, expected, _ = run(single, [prompt], len(outs))
        assert [out.tokens[row][0] for out in outs] == tokens[0]
        assert torch.allclose(logits[row], expected[0], atol=2e-4)
    for n, (trace, rows) in enumerate(zip(traces, alive, strict=True)):
        if n == 0 and settings["prefill"] == "backbone":
            assert (trace.depth, trace.score) == (LAYERS, None)
            continue
        tested = range(1, min(trace.depth, LAYERS - 1) + 1)
        smallest = [min(cosines[row][n][depth - 1] for row in rows) for depth in tested]
        assert [score > tau for score in smallest[:-1]] == [False] * (len(smallest) - 1)
        assert (smallest[-1] > tau) == trace.fired == (trace.depth < LAYERS)
        assert trace.score == pytest.approx(smallest[-1], abs=1e-4)
    assert len(set(depths[1:])) >= 3
    assert sum(depth < LAYERS for depth in depths[1:]) >= 0.3 * len(depths[1:])
    assert LAYERS in depths[3:]


SIMILARITY_BATCHES = [
    {"prefill": "sequence"},
    {"prefill": "sequence", "pool": "mean"},
    {"prefill": "backbone"},
]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize("settings", SIMILARITY_BATCHES)
def test_a_batch_leaves_where_the_least_similar_live_row_does(kind, settings, rivers):
    assert_batch_follows_its_rows(kind, rivers, **settings)


@pytest.mark.parametrize("depth", [0, 2, LAYERS - 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_begins_again_from_its_own_states_goes_on_unchanged(kind, depth, rivers):
    """At a depth on the way, for some of a padded batch's tokens whose others hold entries."""
    model = tiny_model(kind)
    one, other = (
        NoExit(*make_executor(model, Never(LAYERS), rivers, COPIED, len(BATCH))) for _ in range(2)
    )
    for decoder in (one, other):
        decoder.prefill(BATCH)
    slots, pad = [9, 10, 11], [2, 5, 0]
    ids = [[4, 8, 15], [16, 23, 42], [1, 2, 3]]
    for decoder in (one, other):
        decoder.executor.begin(StepInputs(slots=slots, ids=ids, pad=pad))
        decoder.executor.backbone(0, depth)
    states = other.executor.hidden()
    one.executor.backbone(depth, LAYERS)
    for chosen in ([0, 1], [2]):
        other.executor.begin(
            StepInputs(slots=[slots[n] for n in chosen], hidden=states[:, chosen], pad=pad)
        )
        other.executor.backbone(depth, LAYERS)
    assert torch.allclose(other.executor.logits(), one.executor.logits(), atol=1e-4)
    assert torch.allclose(other.cache.k, one.cache.k, atol=1e-4)
    assert torch.allclose(other.cache.v, one.cache.v, atol=1e-4)
    assert torch.equal(other.cache.source, one.cache.source)


@pytest.mark.parametrize("given", [{}, {"ids": [[1]], "hidden": torch.zeros(1, 1, 64)}])
def test_a_pass_begins_from_ids_or_states(given):
    with pytest.raises(ValueError, match="exactly one"):
        StepInputs(slots=[0], pad=[0], **given)


def test_nan_in_the_weights_stops_the_run(rivers):
    model = tiny_model("llama")
    model.model.layers[1].mlp.down_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(NumericsError, match="NaN"):
        no_exit(model, rivers).prefill([PROMPT])
    decoder = river(model, Similarity(LAYERS, 1.01), rivers, COPIED)
    with pytest.raises(NumericsError, match="layer 1 is NaN"):
        decoder.prefill([PROMPT])


def test_the_cache_refuses_a_slot_beyond_its_end(rivers):
    decoder = no_exit(tiny_model("llama"), rivers)
    decoder.prefill([[1] * SLOTS])
    with pytest.raises(Exception, match=f"beyond the cache of {SLOTS}"):
        decoder.step()
