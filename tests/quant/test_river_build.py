"""The river built from a backbone: which backend, how many bytes, and what stays untouched."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from river_llm.cache import SlotCache
from river_llm.config import HqqInt4Config, NoQuantConfig, RtnInt4Config
from river_llm.decoding import FullQuant
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.weights import ResidentLayers
from river_llm.errors import UserError
from river_llm.exits import Never
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import model_fingerprint
from river_llm.quant.linear import Int4Linear
from river_llm.quant.river import WIDE_STEP, RiverLayers, build_river
from river_llm.quant.store import quantized_layers
from tiny import COPIED, KINDS, LAYERS, PROMPT, QUANT, SLOTS, run, tiny_model

LINEARS = 7 * LAYERS
# q, k, v, o, gate, up, down of the tiny models with heads of 16.
ELEMENTS = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64


def river_of(model, cache, config=QUANT, **settings) -> tuple[BackboneAdapter, RiverLayers]:
    adapter = BackboneAdapter(model)
    fingerprint = model_fingerprint(model)
    return adapter, build_river(adapter, config, fingerprint, cache=cache, **settings)


def heads_of_24() -> torch.nn.Module:
    """Key and value projections with 24 outputs, no multiple of 16."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=24,
    )
    return AutoModelForCausalLM.from_config(config).eval().bfloat16()


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: tiny_model("llama"), "float32"),
        (lambda: tiny_model("qwen2", torch.float16), "float16"),
        (heads_of_24, "multiple of 16 outputs, not 24"),
    ],
)
def test_a_river_without_kernel_says_so_in_one_loud_line(make, word, rivers, capsys):
    adapter, river = river_of(make(), rivers)
    lines = [line for line in capsys.readouterr().err.splitlines() if "NO 4-BIT KERNEL" in line]
    assert len(lines) == 1
    assert word in lines[0]
    assert river.backend_counts() == {"dequantized": 7 * adapter.num_layers}


@pytest.mark.parametrize(
    ("config", "settings", "backend"),
    [
        (QUANT, {}, "int4_cpu"),
        (HqqInt4Config(group_size=32), {}, "int4_cpu"),
        (QUANT, {"kernels": False}, "dequantized"),
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
    return FullQuant(EagerExecutor(adapter, cache, Never(LAYERS), backbone, river), cache)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama_bias", "qwen2"])
def test_every_dtype_gives_logits_close_to_the_dequantized_weights(kind, dtype, rivers):
    """The kernel's river against dequantized copies in float32, on the same rounded weights."""
    model = tiny_model(kind, dtype)
    logits = run(full_quant(*river_of(model, rivers)), [PROMPT], 1)[1]
    oracle = river_of(model.float(), rivers, kernels=False)
    expected = run(full_quant(*oracle), [PROMPT], 1)[1]
    assert logits.isfinite().all()
    distance = (logits.float() - expected).norm() / expected.norm()
    assert distance < (0.05 if dtype == torch.bfloat16 else 0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_wide_steps_compute_what_narrow_steps_compute(kind, rivers):
    """The scratch linears are filled anew for each layer, also when an earlier one returns."""
    model = tiny_model(kind, torch.bfloat16)
    adapter, river = river_of(model, rivers)
    quantized = quantized_layers(adapter, QUANT, model_fingerprint(model), rivers)
    hidden = torch.randn(1, 4, 64, generator=torch.Generator().manual_seed(4)).bfloat16()
    rotary = tuple(table[None] for table in adapter.rotary_table(4))

    class Plain:
        def update(self, k, v, *_, **__):
            return k, v

    outs = {}
    with torch.no_grad():
        for layer in (0, 3, 1, 0, 4, 2):
            module = river.acquire(layer, WIDE_STEP - 1)
            narrow = adapter.run_layer(module, hidden, None, rotary, Plain())
            module = river.acquire(layer, WIDE_STEP)
            for name, weight in quantized[layer].items():
                filled = module.get_submodule(name).weight
                assert torch.equal(filled, weight.dequantize(torch.bfloat16)), name
            wide = adapter.run_layer(module, hidden, None, rotary, Plain())
            backbone = adapter.run_layer(adapter.layers[layer], hidden, None, rotary, Plain())
            distance = (wide - narrow).float().norm() / (narrow - hidden).float().norm()
            assert distance < 0.05, layer
            # Far less than what quantizing does, or the backbone's weights would pass as well.
            assert distance < 0.3 * (backbone - narrow).norm() / (narrow - hidden).norm()
            outs.setdefault(layer, wide)
            assert torch.equal(outs[layer], wide)


def test_only_steps_from_the_stated_width_on_take_the_dense_path(rivers):
    _, river = river_of(tiny_model("llama", torch.bfloat16), rivers)

    def packed(tokens):
        return sum(isinstance(m, Int4Linear) for m in river.acquire(0, tokens).modules())

    assert [packed(n) for n in (1, WIDE_STEP - 1, WIDE_STEP, 10 * WIDE_STEP)] == [7, 7, 0, 0]


@pytest.mark.parametrize(
    ("config", "dtype", "per_layer"),
    [
        # Half a byte an element; a scale and a zero of 2 bytes for each group.
        (RtnInt4Config(group_size=32), torch.bfloat16, ELEMENTS // 2 + ELEMENTS // 32 * 4),
        (RtnInt4Config(group_size=32), torch.float32, ELEMENTS * 4),
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
    biases = LAYERS * (64 + 32 + 32 + 64 + 96 + 96 + 64) * adapter.dtype.itemsize
    # quant=none copies the biases too; they are left out of the figure.
    assert own - river.linear_nbytes() == (biases if isinstance(config, NoQuantConfig) else 0)


@pytest.mark.parametrize("config", [QUANT, HqqInt4Config(group_size=32), COPIED])
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


@pytest.mark.parametrize("row", [0, 63])
def test_nan_weights_are_refused_and_leave_nothing_behind(row, tmp_path):
    model = tiny_model("llama")
    model.model.layers[3].self_attn.o_proj.weight.data[row, 5] = torch.nan
    with pytest.raises(UserError, match=r"3\.self_attn\.o_proj"):
        river_of(model, tmp_path)
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".lock"] == []
