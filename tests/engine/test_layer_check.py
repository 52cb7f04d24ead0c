"""What the compiled engine refuses to serve, and that wrong layers are found before they serve."""

from __future__ import annotations

import copy
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from pair import LAYERS, both, ids, make_model
from torch import nn

from river_llm.cache import Source
from river_llm.config import NoQuantConfig, RtnInt4Config, RtnInt8Config
from river_llm.engine.check import check_layers
from river_llm.engine.executor import EngineUnavailable, StepInputs
from river_llm.engine.native.executor import NarrowExecutor, check_model
from river_llm.engine.native.weights import LayerRecord, layer_records, linear_record
from river_llm.engine.weights import ResidentLayers
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import model_fingerprint
from river_llm.quant.river import build_river
from traced import TracedRegions


def check(model, rivers, quant=None):
    adapter = BackboneAdapter(model)
    river = build_river(adapter, quant or NoQuantConfig(), model_fingerprint(model), cache=rivers)
    check_layers(adapter, ResidentLayers(adapter.layers), river, adapter.head)


# --- what it does not compute ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: make_model(32, torch.float16), "not in torch.float16"),
        (lambda: make_model(32, torch.float32, hidden_act="gelu"), "no activation 'gelu'"),
        (lambda: make_model(320, torch.float32), "no heads of width 320"),
    ],
    ids=["fp16", "gelu", "wide heads"],
)
def test_a_model_that_it_does_not_compute_is_refused(model, reason, rivers):
    with pytest.raises(EngineUnavailable, match=reason):
        check(model(), rivers)


class UpsideDown(TracedRegions):
    """Takes the backbone's layers in the wrong order."""

    def __init__(self, adapter, cache, criterion, backbone, *others):
        wrong = ResidentLayers(list(reversed(adapter.layers)))
        super().__init__(adapter, cache, criterion, wrong, *others)


def test_regions_are_compared_in_fp16_too():
    """The compiled engine refuses fp16, but CUDA graphs take it."""
    adapter = BackboneAdapter(make_model(32, torch.float16))
    parts = adapter, ResidentLayers(adapter.layers), None, adapter.head
    check_layers(*parts, TracedRegions)
    with pytest.raises(EngineUnavailable, match="backbone layer 0 is off"):
        check_layers(*parts, UpsideDown)


def test_another_device_is_refused():
    config = SimpleNamespace(hidden_act="silu")
    adapter = SimpleNamespace(
        device=torch.device("cuda"), dtype=torch.bfloat16, model=SimpleNamespace(config=config)
    )
    with pytest.raises(EngineUnavailable, match="on the CPU, not on cuda"):
        check_model(adapter)


def test_heads_that_blocks_of_int4_part_are_refused(rivers):
    model = make_model(16, torch.bfloat16, num_key_value_heads=4)
    with pytest.raises(EngineUnavailable, match="which parts heads of 16"):
        check(model, rivers, RtnInt4Config(group_size=64))


def test_a_layer_with_other_parts_is_refused():
    layer = make_model(32, torch.float32).model.layers[0]
    more = copy.deepcopy(layer)
    more.mlp.gate_norm = nn.LayerNorm(8)
    with pytest.raises(EngineUnavailable, match=r"mlp\.gate_norm"):
        layer_records([more])
    for name in ("input_layernorm", "post_attention_layernorm"):
        less = copy.deepcopy(layer)
        delattr(less, name)
        with pytest.raises(EngineUnavailable, match=name):
            layer_records([less])


def test_weights_that_it_cannot_read_are_refused():
    parted, nothing = nn.Linear(8, 8, bias=False), nn.Identity()
    parted.weight = nn.Parameter(torch.zeros(8, 8).T[:, ::2])
    nothing.bias = None
    with pytest.raises(EngineUnavailable, match="not contiguous"):
        linear_record(parted)
    with pytest.raises(EngineUnavailable, match="no kernel for Linear"):
        linear_record(nn.Linear(8, 8, bias=False).half())
    with pytest.raises(EngineUnavailable, match="no kernel for Identity"):
        linear_record(nothing)


# --- what it computes wrongly ---------------------------------------------------------------


@pytest.mark.parametrize("quant", [NoQuantConfig(), RtnInt8Config(), RtnInt4Config(group_size=64)])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_right_layers_pass_in_bf16(kind, quant, rivers):
    check(make_model(64, torch.bfloat16, kind), rivers, quant)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_right_layers_pass_in_fp32(kind, rivers):
    check(make_model(32, torch.float32, kind), rivers)


SWAPS = [("k", "v"), ("gate", "up"), ("input_norm", "post_norm"), ("q_norm", "k_norm")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stack", ["backbone", "river"])
@pytest.mark.parametrize("layer", [0, LAYERS - 1])
@pytest.mark.parametrize(("one", "other"), SWAPS)
def test_a_layer_with_two_parts_swapped_is_found(
    one, other, layer, stack, dtype, rivers, monkeypatch
):
    original = NarrowExecutor._records

    def swapped(self, layers):
        records = original(self, layers)
        if isinstance(layers, ResidentLayers) == (stack == "backbone"):
            parts = {name: getattr(records[layer], name) for name, _ in LayerRecord._fields_}
            parts[one], parts[other] = parts[other], parts[one]
            records[layer] = LayerRecord(**parts)
        return records

    monkeypatch.setattr(NarrowExecutor, "_records", swapped)
    with pytest.raises(EngineUnavailable, match=f"{stack} layer {layer} is off"):
        check(make_model(64, dtype, "qwen3"), rivers)


def model_changes():
    return {
        "epsilon": lambda record: setattr(record, "epsilon", record.epsilon * 1000),
        "scaling": lambda record: setattr(record, "scaling", record.scaling * 1.5),
        "rotary": lambda record: setattr(record, "sin", record.cos),
    }


@pytest.mark.parametrize("change", model_changes())
def test_a_wrong_number_of_the_model_is_found(change, rivers, monkeypatch):
    original = NarrowExecutor._model_record

    def changed(self, head):
        record = original(self, head)
        model_changes()[change](record)
        return record

    monkeypatch.setattr(NarrowExecutor, "_model_record", changed)
    with pytest.raises(EngineUnavailable, match="backbone layer 0 is off"):
        check(make_model(64, torch.float32), rivers)


@pytest.mark.parametrize("part", ["final_norm", "head"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_head_is_found(part, dtype, rivers, monkeypatch):
    original = NarrowExecutor._model_record

    def changed(self, head):
        record = original(self, head)
        if part == "final_norm":
            record.final_norm = self._layer_records[Source.BACKBONE][0].input_norm
        else:
            record.head.weight = record.embedding
        return record

    monkeypatch.setattr(NarrowExecutor, "_model_record", changed)
    with pytest.raises(EngineUnavailable, match="the LM head is off"):
        check(make_model(64, dtype), rivers)


def test_a_layer_that_gives_nan_is_found(rivers, monkeypatch):
    original = NarrowExecutor._model_record

    def changed(self, head):
        record = original(self, head)
        record.scaling = float("nan")
        return record

    monkeypatch.setattr(NarrowExecutor, "_model_record", changed)
    with pytest.raises(EngineUnavailable, match="off from transformers' by nan"):
        check(make_model(64, torch.float32), rivers)


# --- what would make it write or read beyond its buffers ------------------------------------


@pytest.fixture(scope="module")
def narrow(rivers):
    return both(make_model(32, torch.float32), rivers, batch=2)[1]


@pytest.mark.parametrize(
    "inputs",
    [
        StepInputs([0], [0, 0, 0], ids=ids(3, 1)),
        StepInputs(range(17), [0], ids=ids(1, 17)),
        StepInputs([-1], [0], ids=ids(1, 1)),
        StepInputs([0, 1], [0, 0], ids=[[1, 2], [3]]),
        StepInputs([0], [0], hidden=torch.zeros(1, 2, 128)),
        StepInputs([0], [0], hidden=torch.zeros(1, 1, 129)),
    ],
    ids=["rows", "tokens", "slot", "ragged", "more states", "wider states"],
)
def test_inputs_that_do_not_fit_are_refused(inputs, narrow):
    with pytest.raises(ValueError):
        narrow.begin(inputs)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_outside_the_vocabulary_is_refused(token, narrow):
    with pytest.raises(IndexError, match="outside the vocabulary"):
        narrow.begin(StepInputs([0], [0], ids=[[token]]))


@pytest.mark.parametrize("call", ["backbone", "river", "kv_only"])
@pytest.mark.parametrize("part", [(0, LAYERS + 1), (-1, 1)])
def test_layers_that_are_not_there_are_refused(call, part, narrow):
    narrow.begin(StepInputs([0], [0], ids=[[1]]))
    with pytest.raises(IndexError, match=f"of {LAYERS}"):
        getattr(narrow, call)(*part)


def test_an_executor_keeps_the_weights_whose_addresses_it_holds(rivers):
    eager, narrow = both(make_model(32, torch.float32), rivers)
    river = weakref.ref(eager._stacks[Source.RIVER].acquire(0, 1))
    del eager
    gc.collect()
    assert river() is not None
    del narrow
    gc.collect()
    assert river() is None
