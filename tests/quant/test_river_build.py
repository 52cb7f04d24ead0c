"""The river built from a backbone: which backend, how many bytes, and what stays untouched."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from river_llm.cache import SlotCache
from river_llm.config import HqqInt4Config, NoQuantConfig, RtnInt4Config, RtnInt8Config
from river_llm.decoding import FullQuant
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.weights import ResidentLayers
from river_llm.errors import UserError
from river_llm.exits import Never
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import model_fingerprint
from river_llm.quant.int4_linear import Int4Linear
from river_llm.quant.int8_linear import Int8Linear
from river_llm.quant.linear import KernelLinear
from river_llm.quant.river import RiverLayers, build_river
from river_llm.quant.store import quantized_layers
from tiny import COPIED, KINDS, LAYERS, PROMPT, QUANT, SLOTS, run, tiny_model

INT8 = RtnInt8Config()
LINEARS = 7 * LAYERS
# q, k, v, o, gate, up, down of the tiny models with heads of 16.
ELEMENTS = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64
# Their outputs.
ROWS = 64 + 2 * 32 + 64 + 2 * 96 + 64


def river_of(model, cache, config=QUANT, **settings) -> tuple[BackboneAdapter, RiverLayers]:
    adapter = BackboneAdapter(model)
    fingerprint = model_fingerprint(model)
    return adapter, build_river(adapter, config, fingerprint, cache=cache, **settings)


def odd_model(**sizes: int) -> torch.nn.Module:
    """Two layers in bf16, with some sizes that are no multiple of 16."""
    torch.manual_seed(0)
    usual = {"intermediate_size": 96, "num_key_value_heads": 1, "head_dim": 16}
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        **(usual | sizes),
    )
    return AutoModelForCausalLM.from_config(config).eval().bfloat16()


@pytest.mark.parametrize(
    ("make", "config", "words"),
    [
        (lambda: tiny_model("llama"), QUANT, "NO 4-BIT KERNEL: .*float32"),
        (lambda: tiny_model("llama"), INT8, "NO 8-BIT KERNEL: .*float32"),
        (lambda: tiny_model("qwen2", torch.float16), QUANT, "NO 4-BIT KERNEL: .*float16"),
        (lambda: tiny_model("qwen2", torch.float16), INT8, "NO 8-BIT KERNEL: .*float16"),
        # Key and value projections with 24 outputs.
        (lambda: odd_model(head_dim=24), QUANT, "NO 4-BIT .*multiple of 16 outputs, not 24"),
        # A down projection with 72 inputs.
        (
            lambda: odd_model(intermediate_size=72),
            INT8,
            "NO 8-BIT KERNEL: .*multiple of 16 inputs, not 72",
        ),
    ],
)
def test_a_river_without_kernel_says_so_in_one_loud_line(make, config, words, rivers, capsys):
    adapter, river = river_of(make(), rivers, config)
    lines = [line for line in capsys.readouterr().err.splitlines() if "KERNEL" in line]
    assert len(lines) == 1
    assert re.search(words, lines[0])
    assert river.backend_counts() == {"dequantized": 7 * adapter.num_layers}


@pytest.mark.parametrize(
    ("config", "settings", "backend"),
    [
        (QUANT, {}, "int4_cpu"),
        (HqqInt4Config(group_size=32), {}, "int4_cpu"),
        (INT8, {}, "int8_cpu"),
        (QUANT, {"kernels": False}, "dequantized"),
        (INT8, {"kernels": False}, "dequantized"),
        (COPIED, {}, "copied"),
    ],
)
def test_a_river_as_asked_for_is_quiet(config, settings, backend, rivers, capsys):
    _, river = river_of(tiny_model("qwen2", torch.bfloat16), rivers, config, **settings)
    assert "KERNEL" not in capsys.readouterr().err
    assert river.backend_counts() == {backend: LINEARS}
    assert [set(layer.values()) for layer in river.backends] == [{backend}] * LAYERS


def full_quant(adapter: BackboneAdapter, river: RiverLayers) -> FullQuant:
    cache = SlotCache(
        LAYERS, 1, adapter.kv_heads, SLOTS, adapter.head_dim, adapter.dtype, adapter.device
    )
    backbone = ResidentLayers(adapter.layers)
    executor = EagerExecutor(adapter, cache, Never(LAYERS), backbone, river, adapter.head)
    return FullQuant(executor, cache)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama_bias", "qwen2"])
@pytest.mark.parametrize("config", [QUANT, INT8])
def test_every_dtype_gives_logits_close_to_the_dequantized_weights(kind, dtype, config, rivers):
    """The kernel's river against dequantized copies in float32, on the same rounded weights."""
    model = tiny_model(kind, dtype)
    logits = run(full_quant(*river_of(model, rivers, config)), [PROMPT], 1)[1]
    oracle = river_of(model.float(), rivers, config, kernels=False)
    expected = run(full_quant(*oracle), [PROMPT], 1)[1]
    assert logits.isfinite().all()
    distance = (logits.float() - expected).norm() / expected.norm()
    assert distance < (0.05 if dtype == torch.bfloat16 else 0.01)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [QUANT, INT8])
def test_wide_steps_compute_what_narrow_steps_compute(kind, config, rivers):
    """The scratch linears are filled anew for each layer, also when an earlier one returns."""
    model = tiny_model(kind, torch.bfloat16)
    adapter, river = river_of(model, rivers, config)
    _, dense = river_of(model, rivers, config, kernels=False)
    quantized = list(quantized_layers(adapter, config, model_fingerprint(model), rivers))
    hidden = torch.randn(1, 4, 64, generator=torch.Generator().manual_seed(4)).bfloat16()
    rotary = tuple(table[None] for table in adapter.rotary_table(4))

    class Plain:
        def update(self, k, v, *_, **__):
            return k, v

    outs = {}
    with torch.no_grad():
        for layer in (0, 3, 1, 0, 4, 2):
            module = river.acquire(layer, river.wide_step - 1)
            narrow = adapter.run_layer(module, hidden, None, rotary, Plain())
            module = river.acquire(layer, river.wide_step)
            for name, weight in quantized[layer].items():
                filled = module.get_submodule(name).weight
                assert torch.equal(filled, weight.dequantize(torch.bfloat16)), name
            wide = adapter.run_layer(module, hidden, None, rotary, Plain())
            distance = (wide - narrow).float().norm() / (narrow - hidden).float().norm()
            assert distance < 0.05, layer
            # Bit for bit what a river of dequantized copies computes, not what the backbone does.
            copies = adapter.run_layer(dense.acquire(layer, 1), hidden, None, rotary, Plain())
            backbone = adapter.run_layer(adapter.layers[layer], hidden, None, rotary, Plain())
            assert torch.equal(wide, copies)
            assert not torch.equal(wide, backbone)
            outs.setdefault(layer, wide)
            assert torch.equal(outs[layer], wide)


@pytest.mark.parametrize(("config", "linear"), [(QUANT, Int4Linear), (INT8, Int8Linear)])
def test_only_steps_from_the_stated_width_on_take_the_dense_path(config, linear, rivers):
    _, river = river_of(tiny_model("llama", torch.bfloat16), rivers, config)

    def packed(tokens):
        return sum(type(m) is linear for m in river.acquire(0, tokens).modules())

    width = linear.wide_step
    assert [packed(n) for n in (1, width - 1, width, 10 * width)] == [7, 7, 0, 0]


@pytest.mark.parametrize("settings", [{"config": COPIED}, {"config": INT8, "kernels": False}])
def test_a_river_without_kernel_has_no_wide_steps(settings, rivers):
    _, river = river_of(tiny_model("llama", torch.bfloat16), rivers, **settings)
    layer = river.acquire(0, 1)
    assert river.acquire(0, 10_000) is layer
    assert river.scratch_nbytes() == 0
    assert not any(isinstance(m, KernelLinear) for m in layer.modules())


@pytest.mark.parametrize(
    ("config", "dtype", "per_layer"),
    [
        # Half a byte an element; a scale and a zero of 2 bytes for each group.
        (RtnInt4Config(group_size=32), torch.bfloat16, ELEMENTS // 2 + ELEMENTS // 32 * 4),
        (RtnInt4Config(group_size=32), torch.float32, ELEMENTS * 4),
        # A byte an element; a scale of 2 bytes for each output.
        (INT8, torch.bfloat16, ELEMENTS + ROWS * 2),
        (INT8, torch.float32, ELEMENTS * 4),
        (NoQuantConfig(), torch.bfloat16, ELEMENTS * 2),
    ],
)
def test_bytes_are_those_of_the_real_storage(config, dtype, per_layer, rivers):
    model = tiny_model("llama_bias", dtype)
    adapter, river = river_of(model, rivers, config)
    assert [river.layer_nbytes(n) for n in range(LAYERS)] == [per_layer] * LAYERS
    assert river.linear_nbytes() == LAYERS * per_layer
    backbone = {t.untyped_storage().data_ptr() for t in model.state_dict().values()}
    storages = {}
    for layer in range(LAYERS):
        for tensor in river.acquire(layer, 1).state_dict().values():
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    own = sum(size for place, size in storages.items() if place not in backbone)
    biases = LAYERS * ROWS * adapter.dtype.itemsize
    # quant=none copies the biases too; they are left out of the figure.
    assert own - river.linear_nbytes() == (biases if isinstance(config, NoQuantConfig) else 0)


@pytest.mark.parametrize("config", [QUANT, HqqInt4Config(group_size=32), INT8, COPIED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_head_and_embedding_stay_as_they_are_and_tied(config, dtype, rivers):
    model = tiny_model("llama", dtype)
    head, embedding = model.lm_head, model.model.embed_tokens
    weight, kept = head.weight, head.weight.clone()
    everything = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    river_of(model, rivers, config)
    assert model.lm_head is head
    assert model.model.embed_tokens is embedding
    assert head.weight is embedding.weight is weight
    assert torch.equal(weight, kept)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, everything[name]), name


def test_a_group_that_does_not_divide_stops_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match=r"0\.mlp\.down_proj.*\b96\b.*\b64\b"):
        river_of(tiny_model("llama"), tmp_path, RtnInt4Config(group_size=64))
    assert list(tmp_path.iterdir()) == []


def test_8_bits_take_any_width(rivers):
    adapter, river = river_of(odd_model(intermediate_size=72, head_dim=24), rivers, INT8)
    assert river.backend_counts() == {"dequantized": 14}
    assert adapter.linears(0)["mlp.down_proj"].weight.shape == (64, 72)


@pytest.mark.parametrize("row", [0, 63])
@pytest.mark.parametrize("config", [QUANT, INT8])
def test_nan_weights_are_refused_and_leave_nothing_behind(row, config, tmp_path):
    model = tiny_model("llama")
    model.model.layers[3].self_attn.o_proj.weight.data[row, 5] = torch.nan
    with pytest.raises(UserError, match=r"3\.self_attn\.o_proj"):
        river_of(model, tmp_path, config)
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".lock"] == []
