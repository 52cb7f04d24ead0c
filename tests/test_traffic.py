"""Bytes of a decode step, added up by hand for the tiny models."""

from __future__ import annotations

import pytest
import torch

from river_llm.config import NoQuantConfig, RtnInt4Config, RtnInt8Config
from river_llm.decoding import MonoDecreasingCap, Recompute, River
from river_llm.evaluation.traffic import Traffic
from river_llm.exits import Confidence
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import model_fingerprint
from river_llm.quant.river import build_river
from tiny import KINDS, LAYERS, PROMPT, make_executor, tiny_model

# Elements of the linears of a layer: q, k and v, o, then gate, up and down.
WEIGHTS = 64 * 64 + 2 * (32 * 64) + 64 * 64 + 3 * (96 * 64)
BIASES = 64 + 2 * 32 + 64 + 2 * 96 + 64
# Hidden size 64: two norms in each layer and the last one; head of 97 rows; one embedding row.
LAYER_NORMS = 2 * 64
ENDS = 64 + 97 * 64 + 64
# Key and value of 2 heads of 16 in 5 layers.
KV_SLOT = 2 * LAYERS * 2 * 16
# Groups of 32: half a byte a weight, a scale and a zero of 2 bytes a group.
INT4 = WEIGHTS // 2 + WEIGHTS // 32 * 4


def traffic_of(kind, cache, quant, dtype=torch.bfloat16) -> Traffic:
    model = tiny_model(kind, dtype)
    adapter = BackboneAdapter(model)
    if quant is None:
        return Traffic(adapter, None)
    return Traffic(adapter, build_river(adapter, quant, model_fingerprint(model), cache=cache))


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 4), (torch.float16, 2), (torch.bfloat16, 2)]
)
@pytest.mark.parametrize("extent", [1, 8, 100])
def test_no_exit_reads_the_whole_backbone(dtype, size, extent, rivers):
    """The tied head is read once, the embedding one row only."""
    elements = LAYERS * (WEIGHTS + LAYER_NORMS) + ENDS + extent * KV_SLOT
    assert traffic_of("llama", rivers, None, dtype).step_bytes(LAYERS, extent) == size * elements


def test_the_figure_for_one_step_of_the_tiny_llama_in_bf16(rivers):
    """5 x (61440 + 256) + 12672 + 7 x 640 bytes, worked out on paper."""
    assert traffic_of("llama", rivers, None).step_bytes(LAYERS, 7) == 308480 + 12672 + 4480


@pytest.mark.parametrize("depth", range(LAYERS + 1))
@pytest.mark.parametrize(("kind", "biases"), [("llama", 0), ("llama_bias", BIASES)])
def test_behind_the_exit_the_river_is_read_instead(kind, biases, depth, rivers):
    """Biases and norms are read whichever stack runs."""
    layers = depth * 2 * WEIGHTS + (LAYERS - depth) * INT4 + LAYERS * 2 * (LAYER_NORMS + biases)
    expected = layers + 2 * ENDS + 10 * 2 * KV_SLOT
    assert traffic_of(kind, rivers, RtnInt4Config(group_size=32)).step_bytes(depth, 10) == expected


def test_an_8_bit_river_is_read_at_a_byte_a_weight_and_a_scale_for_each_output(rivers):
    layers = 2 * 2 * WEIGHTS + 3 * (WEIGHTS + 2 * BIASES) + LAYERS * 2 * LAYER_NORMS
    river = traffic_of("llama", rivers, RtnInt8Config())
    assert river.step_bytes(2, 10) == layers + 2 * ENDS + 10 * 2 * KV_SLOT


def test_a_step_without_exit_costs_no_exits_bytes_with_a_river_too(rivers):
    river = traffic_of("qwen2", rivers, RtnInt4Config(group_size=32))
    assert river.step_bytes(LAYERS, 9) == traffic_of("qwen2", rivers, None).step_bytes(LAYERS, 9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bound_of_a_copied_river_is_1_at_any_depth(kind, dtype, rivers):
    depths = [0, 5, 3, 1, 4, 2]
    copied = traffic_of(kind, rivers, NoQuantConfig(), dtype).total(depths, 7)
    assert copied == traffic_of(kind, rivers, None, dtype).total([LAYERS] * 6, 7)


def test_the_bound_of_a_dequantized_river_is_1_too(rivers):
    river = traffic_of("llama_bias", rivers, RtnInt4Config(group_size=32), torch.float32)
    full = traffic_of("llama_bias", rivers, None, torch.float32)
    assert river.total([0, 2, 4], 3) == full.total([LAYERS] * 3, 3)


@pytest.mark.parametrize("depth", [0, 2, LAYERS])
def test_a_further_slot_costs_its_key_and_value_in_every_layer(depth, rivers):
    traffic = traffic_of("llama", rivers, RtnInt4Config(group_size=32))
    grown = traffic.step_bytes(depth, 51) - traffic.step_bytes(depth, 50)
    assert grown == 2 * KV_SLOT == 640


def test_heads_of_32_have_twice_the_kv(rivers):
    traffic = traffic_of("qwen3", rivers, None)
    assert traffic.step_bytes(LAYERS, 2) - traffic.step_bytes(LAYERS, 1) == 4 * KV_SLOT


def test_steps_behind_a_prompt_see_one_slot_more_each(rivers):
    """A prompt of 7: the first step writes slot 7 and reads 8."""
    traffic = traffic_of("llama", rivers, RtnInt4Config(group_size=32))
    expected = [traffic.step_bytes(depth, extent) for depth, extent in ((3, 8), (0, 9), (5, 10))]
    assert traffic.total([3, 0, 5], 7) == sum(expected)
    assert traffic.total([], 7) == 0


def test_quantizing_lowers_the_bytes_by_what_the_weights_say(rivers):
    """All layers in the river: the bound is between 1 and the ratio of the weights alone."""
    river = traffic_of("llama", rivers, RtnInt4Config(group_size=32)).total([0] * 4, 7)
    full = traffic_of("llama", rivers, None).total([LAYERS] * 4, 7)
    assert 1.5 < full / river < 2 * WEIGHTS / INT4 == pytest.approx(3.2)


def test_propagation_reads_the_key_and_value_projections_of_skipped_layers(rivers):
    traffic = Traffic(BackboneAdapter(tiny_model("llama", torch.bfloat16)), None, propagates=True)
    ran = 2 * (WEIGHTS + LAYER_NORMS)
    skipped = 3 * 2 * (32 * 64)
    # Only layers that run attend.
    kv = 10 * KV_SLOT * 2 // LAYERS
    assert traffic.step_bytes(2, 10) == 2 * (ran + skipped + ENDS + kv)


@pytest.mark.parametrize(("depth", "tests"), [(1, 0), (2, 1), (5, 3), (5, 0)])
def test_confidence_reads_norm_and_head_at_every_test(depth, tests, rivers):
    adapter = BackboneAdapter(tiny_model("llama", torch.bfloat16))
    plain, reading = Traffic(adapter, None), Traffic(adapter, None, tests_read_head=True)
    head = 2 * (64 + 97 * 64)
    assert reading.step_bytes(depth, 9, tests) - plain.step_bytes(depth, 9) == tests * head
    # The cosine reads no weights.
    assert plain.step_bytes(depth, 9, tests) == plain.step_bytes(depth, 9)
    assert reading.total([depth, 1], 8, [tests, 2]) == reading.step_bytes(
        depth, 9, tests
    ) + reading.step_bytes(1, 10, 2)


def test_tests_are_counted_where_they_are_made(rivers):
    """Confidence tested at depths 2 to 4 of 5: none fires; a forced full pass makes none."""
    model = tiny_model("llama")
    never = Confidence(LAYERS, 1.1, min_depth=2)
    river = River(*make_executor(model, never, rivers), "backbone")
    river.prefill([PROMPT])
    assert river.step().trace.tests == 3
    always = Confidence(LAYERS, -1.0, min_depth=2)
    block = Recompute(*make_executor(model, always, rivers), max_pending=3)
    block.prefill([PROMPT])
    traces = [block.step().trace for _ in range(6)]
    assert [(trace.depth, trace.tests) for trace in traces] == [(2, 1), (2, 1), (LAYERS, 0)] * 2
    cap = MonoDecreasingCap(*make_executor(model, always, rivers))
    cap.prefill([PROMPT])
    # The first step exits at 2; the second ends there without asking.
    assert [cap.step().trace.tests for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("depth", range(LAYERS + 1))
@pytest.mark.parametrize("tests", [0, 2])
def test_the_kinds_sum_up_to_the_bytes_of_the_step(depth, tests, rivers):
    adapter = BackboneAdapter(tiny_model("llama_bias", torch.bfloat16))
    quant = RtnInt4Config(group_size=32)
    river = build_river(adapter, quant, model_fingerprint(adapter.model), cache=rivers)
    for traffic in (
        Traffic(adapter, river),
        Traffic(adapter, None),
        Traffic(adapter, None, propagates=True),
        Traffic(adapter, river, tests_read_head=True),
    ):
        kinds = traffic.step_breakdown(depth, 9, tests)
        assert sum(kinds.values()) == traffic.step_bytes(depth, 9, tests)


def test_the_kinds_of_a_step_that_leaves_the_backbone_at_2(rivers):
    """Biases count with the norms, since both stacks read them."""
    read = traffic_of("llama_bias", rivers, RtnInt4Config(group_size=32)).step_breakdown(2, 10)
    assert read == {
        "backbone": 2 * 2 * WEIGHTS,
        "river": 3 * INT4,
        "head": 2 * (64 + 97 * 64),
        "kv": 10 * 2 * KV_SLOT,
        "other": 2 * (LAYERS * (LAYER_NORMS + BIASES) + 64),
    }


def test_the_kinds_without_a_river(rivers):
    adapter = BackboneAdapter(tiny_model("llama", torch.bfloat16))
    head = 2 * (64 + 97 * 64)
    assert Traffic(adapter, None).step_breakdown(2, 10) == {
        "backbone": 2 * 2 * WEIGHTS,
        "river": 0,
        "head": head,
        "kv": 10 * 2 * KV_SLOT * 2 // LAYERS,
        "other": 2 * (2 * LAYER_NORMS + 64),
    }
    propagated = Traffic(adapter, None, propagates=True).step_breakdown(2, 10)
    assert propagated["backbone"] == 2 * 2 * WEIGHTS + 3 * 2 * 2 * (32 * 64)
    tested = Traffic(adapter, None, tests_read_head=True).step_breakdown(2, 10, 3)
    assert tested["head"] == 4 * head


def test_a_block_reads_one_row_of_the_embedding_for_each_of_its_tokens(rivers):
    traffic = traffic_of("llama", rivers, None)
    one, four = traffic.step_breakdown(3, 10), traffic.step_breakdown(3, 10, block=4)
    assert four == {**one, "other": one["other"] + 3 * 2 * 64}
