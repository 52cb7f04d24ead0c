"""The paper's four model classes, from checkpoints as the hub has them to tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Mistral3ForConditionalGeneration

from river_llm.cache import SlotCache
from river_llm.config import HqqInt4Config, ModelConfig, NoQuantConfig, RtnInt4Config, RtnInt8Config
from river_llm.decoding import (
    Decoder,
    FullQuant,
    Mask,
    MonoDecreasingCap,
    NoExit,
    Recompute,
    River,
    StatePropagation,
    Static,
)
from river_llm.engine.check import check_layers
from river_llm.engine.executor import EngineUnavailable
from river_llm.engine.weights import ResidentLayers
from river_llm.errors import UserError
from river_llm.evaluation.traffic import Traffic
from river_llm.exits import Criterion, Never
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import LoadedModel, load_model
from river_llm.quant import rtn_int4
from river_llm.quant.grid import split_groups
from river_llm.quant.river import build_river
from tiny import ENGINES
from tiny_checkpoints import (
    HEADS,
    HIDDEN,
    KINDS,
    LAYERS,
    VOCAB,
    Planned,
    mark_as_fp8,
    save_checkpoint,
)

TOKENS = 20
SLOTS = 96
COPIED = NoQuantConfig()
INT4 = RtnInt4Config(group_size=64)
FOUR = tuple(KINDS)
INTERMEDIATE = 384
HEAD_DIM = HIDDEN // HEADS
KV = 2 * HEAD_DIM


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {kind: save_checkpoint(kind, root / kind) for kind in FOUR}


def load(folder: Path, dtype: str = "fp32") -> LoadedModel:
    return load_model(ModelConfig(name="tiny", path=str(folder), dtype=dtype, device="cpu"))


def oracle(folder: Path):
    """Transformers' own model, the multimodal one where the checkpoint is multimodal."""
    multimodal = folder.name.startswith("ministral")
    kind = Mistral3ForConditionalGeneration if multimodal else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def generate(model, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    model.set_attn_implementation("eager")
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


@cache
def prompt_of(length: int = 23) -> list[int]:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(10, VOCAB, (length,), generator=generator).tolist()


def decoder(
    adapter: BackboneAdapter,
    method: type[Decoder],
    criterion: Criterion,
    quant=COPIED,
    engine: str = "eager",
    batch: int = 1,
    **settings,
) -> Decoder:
    river = build_river(adapter, quant, None)
    slots = SlotCache(
        LAYERS, batch, adapter.kv_heads, SLOTS, adapter.head_dim, adapter.dtype, adapter.device
    )
    backbone = ResidentLayers(adapter.layers)
    executor = ENGINES[engine](adapter, slots, criterion, backbone, river, adapter.head)
    return method(executor, slots, **settings)


def tokens_of(running: Decoder, prompts: list[list[int]], count: int) -> list[list[int]]:
    steps = [running.prefill(prompts)] + [running.step() for _ in range(count - 1)]
    return [[step.tokens[row][0] for step in steps] for row in range(len(prompts))]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", FOUR)
def test_no_exit_equals_transformers_generate(kind, engine, folders):
    expected = generate(oracle(folders[kind]), prompt_of(), TOKENS)
    running = decoder(load(folders[kind]).adapter, NoExit, Never(LAYERS), engine=engine)
    assert tokens_of(running, [prompt_of()], TOKENS) == [expected]
    assert len(set(expected)) > 5, "a model that repeats one token would prove little"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", FOUR)
def test_river_of_copied_weights_equals_no_exit_at_mixed_depths(kind, engine, folders):
    expected = generate(oracle(folders[kind]), prompt_of(), TOKENS)
    running = decoder(load(folders[kind]).adapter, River, Planned(), engine=engine)
    assert tokens_of(running, [prompt_of()], TOKENS) == [expected]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", FOUR)
def test_full_quant_equals_transformers_with_every_linear_dequantized(kind, engine, folders):
    """Also that no linear is left out, fused ones included: by hand, not by the river's list."""
    twin = load(folders[kind]).adapter.model
    changed = 0
    for name, parameter in twin.named_parameters():
        if ".layers." in name and parameter.dim() == 2:
            groups = split_groups(parameter.data, 64, name)
            parameter.data = rtn_int4.quantize(groups).dequantize(torch.float32)
            changed += 1
    assert changed == LAYERS * (4 if kind == "phi4_mini" else 7)
    expected = generate(twin, prompt_of(), TOKENS)
    running = decoder(load(folders[kind]).adapter, FullQuant, Never(LAYERS), INT4, engine)
    assert tokens_of(running, [prompt_of()], TOKENS) == [expected]
    assert expected != generate(oracle(folders[kind]), prompt_of(), TOKENS)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", FOUR)
def test_rows_of_a_padded_batch_give_what_each_gives_alone(kind, engine, folders):
    prompts = [prompt_of(), prompt_of(7)]
    adapter = load(folders[kind]).adapter
    running = decoder(adapter, NoExit, Never(LAYERS), engine=engine, batch=2)
    model = oracle(folders[kind])
    assert tokens_of(running, prompts, TOKENS) == [generate(model, p, TOKENS) for p in prompts]


@pytest.mark.parametrize("kind", FOUR)
def test_propagated_entries_are_those_of_whole_layers(kind, folders):
    adapter = load(folders[kind]).adapter
    cos, sin = adapter.rotary_table(12)
    hidden = torch.randn(1, 12, HIDDEN, generator=torch.Generator().manual_seed(1))

    class Seen:
        def update(self, k, v, *_, **__):
            self.entries = k, v
            return k, v

    with torch.no_grad():
        for layer in adapter.layers:
            whole, only = Seen(), Seen()
            rotary = cos[None], sin[None]
            adapter.run_layer(layer, hidden, None, rotary, whole, torch.arange(12)[None])
            adapter.project_kv(layer, hidden, rotary, only)
            for right, ours in zip(whole.entries, only.entries, strict=True):
                assert torch.allclose(ours, right, atol=1e-5)


@pytest.mark.parametrize("method", [StatePropagation, Recompute, Mask, MonoDecreasingCap])
@pytest.mark.parametrize("kind", FOUR)
def test_other_kv_strategies_are_the_same_on_both_engines(kind, method, folders):
    adapter = load(folders[kind]).adapter
    texts = [
        tokens_of(decoder(adapter, method, Planned(), engine=engine), [prompt_of()], TOKENS)
        for engine in ("eager", "compiled")
    ]
    assert texts[0] == texts[1]
    assert texts[0] != [generate(oracle(folders[kind]), prompt_of(), TOKENS)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", FOUR)
def test_static_layers_of_copied_weights_equal_no_exit(kind, engine, folders):
    expected = generate(oracle(folders[kind]), prompt_of(), TOKENS)
    adapter = load(folders[kind]).adapter
    running = decoder(adapter, Static, Never(LAYERS), engine=engine, backbone_layers=[1, 3])
    assert tokens_of(running, [prompt_of()], TOKENS) == [expected]


@pytest.mark.parametrize("kind", FOUR)
def test_bytes_of_a_decode_step(kind, folders):
    adapter = load(folders[kind]).adapter
    layer = 4 * (HIDDEN * (2 * HIDDEN + 2 * KV) + 3 * HIDDEN * INTERMEDIATE)
    river = build_river(adapter, COPIED, None)
    parts = Traffic(adapter, river).step_breakdown(depth=1, extent=10)
    assert parts["backbone"] == layer
    assert parts["river"] == (LAYERS - 1) * layer
    assert parts["head"] == 4 * (VOCAB + 1) * HIDDEN
    assert parts["kv"] == LAYERS * 10 * 2 * KV * 4
    propagating = Traffic(adapter, None, propagates=True).step_breakdown(depth=1, extent=10)
    assert propagating["backbone"] == layer + (LAYERS - 1) * 4 * 2 * KV * HIDDEN


@pytest.mark.parametrize("quant", [HqqInt4Config(), RtnInt8Config()], ids=["int4", "int8"])
@pytest.mark.parametrize("kind", FOUR)
def test_both_engines_compute_the_same_layers_in_bf16(kind, quant, folders):
    adapter = load(folders[kind], "bf16").adapter
    river = build_river(adapter, quant, None)
    linears = 4 if kind == "phi4_mini" else 7
    assert sum(river.backend_counts().values()) == LAYERS * linears
    assert "dequantized" not in river.backend_counts()
    check_layers(adapter, ResidentLayers(adapter.layers), river, adapter.head)


def test_parts_of_a_fused_linear_taken_from_other_rows_are_noticed(folders, monkeypatch):
    adapter = load(folders["phi4_mini"], "bf16").adapter
    river = build_river(adapter, HqqInt4Config(), None)
    module = "river_llm.engine.native.weights._first_rows"
    swapped = (0, HIDDEN + KV, HIDDEN)
    monkeypatch.setattr(module, lambda modules, place: swapped if "qkv" in place else (0, 384))
    with pytest.raises(EngineUnavailable, match="backbone layer 0"):
        check_layers(adapter, ResidentLayers(adapter.layers), river, adapter.head)


@pytest.mark.parametrize("kind", FOUR)
def test_what_is_loaded(kind, folders):
    loaded = load(folders[kind], "bf16")
    adapter = loaded.adapter
    ends = KINDS[kind][1]
    assert loaded.chat
    assert loaded.eos_ids == set(ends.ids(ends.ends))
    assert adapter.untied_head_nbytes() == (
        0 if kind in ("llama3.2_1b", "phi4_mini") else VOCAB * HIDDEN * 2
    )
    assert not any("vision" in name for name, _ in adapter.model.named_modules())
    stored = load_file(folders[kind] / "model.safetensors")
    count = sum(t.numel() for n, t in stored.items() if not n.startswith(("vision", "multi_modal")))
    assert sum(p.numel() for p in adapter.model.parameters()) == count
    ids = loaded.tokenizer("12 apples and 30 pears")["input_ids"]
    assert loaded.decode(ids) == "12 apples and 30 pears"


def test_names_of_weights_as_transformers_5_has_them_in_memory(folders, tmp_path):
    """`model.language_model.*` and `lm_head.*`, for checkpoints that were saved so."""
    folder = copy_of(folders["ministral3_8b"], tmp_path)
    stored = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("language_model.lm_head", "lm_head").replace(
            "language_model.model", "model.language_model"
        ): tensor
        for name, tensor in stored.items()
    }
    assert "model.language_model.norm.weight" in renamed
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    expected = load(folders["ministral3_8b"]).adapter.model.state_dict()
    actual = load(folder).adapter.model.state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "lost", ["language_model.lm_head.weight", "language_model.model.layers.2.mlp.up_proj.weight"]
)
def test_a_text_tower_that_lacks_weights_is_refused(lost, folders, tmp_path):
    folder = copy_of(folders["ministral3_8b"], tmp_path)
    stored = load_file(folder / "model.safetensors")
    del stored[lost]
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="lacks") as error:
        load(folder)
    assert lost.removeprefix("language_model.") in str(error.value)


def test_a_weight_that_only_another_model_has_is_refused(folders, tmp_path):
    folder = copy_of(folders["ministral3_8b"], tmp_path)
    stored = load_file(folder / "model.safetensors")
    stored["language_model.model.layers.1.self_attn.q_norm.weight"] = torch.ones(HEAD_DIM)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"layers\.1\.self_attn\.q_norm"):
        load(folder)


def test_loading_a_text_tower_reports_no_weights_of_the_vision_tower(folders, capfd):
    load(folders["ministral3_8b"])
    assert "vision" not in capfd.readouterr().err


def test_quantized_weights_are_refused_and_the_16_bit_variant_named(folders, tmp_path):
    folder = mark_as_fp8(copy_of(folders["ministral3_8b"], tmp_path))
    with pytest.raises(UserError, match="fp8") as error:
        load(folder)
    assert "mistralai/Ministral-3-8B-Instruct-2512-BF16" in str(error.value)
    assert "\n" not in str(error.value)
    other = mark_as_fp8(copy_of(folders["llama3.2_1b"], tmp_path / "other"))
    with pytest.raises(UserError, match="use a 16-bit checkpoint"):
        load(other)


def copy_of(folder: Path, root: Path) -> Path:
    import shutil

    return Path(shutil.copytree(folder, root / folder.name))
