"""Positions that change how a model computes: scaled queries of Ministral 3, longrope of Phi.

The published lengths are thousands of tokens; here they are 16, so that short texts cross them.
"""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, Mistral3ForConditionalGeneration

from river_llm.cache import SlotCache
from river_llm.config import ModelConfig, NoQuantConfig
from river_llm.decoding import NoExit, River
from river_llm.engine import check
from river_llm.engine.check import check_layers
from river_llm.engine.executor import EngineUnavailable
from river_llm.engine.native.executor import NarrowExecutor
from river_llm.engine.weights import ResidentLayers
from river_llm.errors import UserError
from river_llm.evaluation.prompts import encode_all
from river_llm.exits import Never
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import load_model
from river_llm.quant.river import build_river
from tiny import ENGINES
from tiny_checkpoints import LAYERS, VOCAB, Planned, Rope, save_checkpoint

SWITCH = 16
CONTEXT = 256
PROMPTS = {"prompt below, text beyond": 11, "all beyond": 40, "beyond by two steps": 14}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkpoints")
    rope = Rope(SWITCH, CONTEXT)
    return {k: save_checkpoint(k, root / k, rope) for k in ("ministral3_8b", "phi4_mini")}


@pytest.fixture
def ministral(folders) -> BackboneAdapter:
    return adapter_of(folders["ministral3_8b"])


@pytest.fixture
def phi(folders) -> BackboneAdapter:
    return adapter_of(folders["phi4_mini"])


def adapter_of(folder, dtype: str = "fp32") -> BackboneAdapter:
    return load_model(ModelConfig(name="tiny", path=str(folder), dtype=dtype, device="cpu")).adapter


def prompt_of(length: int) -> list[int]:
    return torch.randint(10, VOCAB, (length,), generator=torch.Generator().manual_seed(5)).tolist()


def forced(adapter, engine, prompt, tokens, method=NoExit, criterion=None, slots=64):
    """Logits [n, V] of decode steps that are fed given tokens."""
    cache = SlotCache(
        LAYERS, 1, adapter.kv_heads, slots, adapter.head_dim, adapter.dtype, adapter.device
    )
    river = build_river(adapter, NoQuantConfig(), None)
    stacks = ResidentLayers(adapter.layers), river
    criterion = criterion or Never(LAYERS)
    executor = ENGINES[engine](adapter, cache, criterion, *stacks, adapter.head)
    running = method(executor, cache)
    outputs = [running.prefill([prompt])] + [running.step(forced=[t]) for t in tokens[:-1]]
    return torch.cat([out.logits for out in outputs], dim=1)[0]


def whole_pass(model, prompt, tokens):
    """The same logits from one pass of transformers' model over the whole text."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0]
    return logits[len(prompt) - 1 : -1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", PROMPTS.values(), ids=PROMPTS.keys())
def test_queries_are_scaled_on_both_sides_of_the_switch(length, engine, folders, ministral):
    model = Mistral3ForConditionalGeneration.from_pretrained(
        folders["ministral3_8b"], dtype=torch.float32
    ).eval()
    prompt, tokens = prompt_of(length), prompt_of(22)[2:]
    expected = whole_pass(model, prompt, tokens)
    ours = forced(ministral, engine, prompt, tokens)
    assert torch.allclose(ours, expected, atol=2e-4)
    mixed = forced(ministral, engine, prompt, tokens, River, Planned())
    assert torch.allclose(mixed, expected, atol=2e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_generate_of_transformers_goes_on_as_we_do_beyond_the_switch(engine, folders, ministral):
    model = Mistral3ForConditionalGeneration.from_pretrained(
        folders["ministral3_8b"], dtype=torch.float32
    ).eval()
    prompt = prompt_of(11)
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=30,
        min_new_tokens=30,
        do_sample=False,
        pad_token_id=0,
    )
    tokens = out[0, len(prompt) :].tolist()
    ours = forced(ministral, engine, prompt, tokens)
    assert ours.argmax(-1).tolist() == tokens


@pytest.mark.parametrize("engine", ENGINES)
def test_without_the_scale_only_positions_beyond_the_switch_differ(
    engine, folders, ministral, monkeypatch
):
    """The tests above can fail: by far more than their tolerance, and only where they should."""
    prompt, tokens = prompt_of(11), prompt_of(22)[2:]
    right = forced(ministral, engine, prompt, tokens)
    run_layer = BackboneAdapter.run_layer

    def at_the_start(self, layer, hidden, mask, rotary, cache, positions=None):
        return run_layer(self, layer, hidden, mask, rotary, cache, positions * 0)

    monkeypatch.setattr(BackboneAdapter, "run_layer", at_the_start)
    monkeypatch.setattr(BackboneAdapter, "query_scales", lambda self, length: None)
    wrong = forced(ministral, engine, prompt, tokens)
    below = SWITCH - len(prompt) + 1
    assert torch.allclose(wrong[:below], right[:below], atol=1e-5)
    assert ((wrong - right)[below:].abs().amax(-1) > 0.01).all()


def test_scales_by_position(ministral):
    scales = ministral.query_scales(2 * SWITCH + 1)
    assert ministral.query_switch == SWITCH
    assert scales[: SWITCH - 1].tolist() == [1.0] * (SWITCH - 1)
    assert scales[SWITCH].item() == pytest.approx(1 + 0.1 * math.log(2))
    assert scales[2 * SWITCH].item() == pytest.approx(1 + 0.1 * math.log(3))
    later = ministral.shifted(SWITCH - 1)
    assert torch.equal(later.query_scales(4), scales[SWITCH - 1 : SWITCH + 3])
    for ours, right in zip(later.rotary_table(4), ministral.rotary_table(20), strict=True):
        assert torch.equal(ours, right[SWITCH - 1 : SWITCH + 3])


def test_models_that_scale_no_queries_say_so(phi):
    assert phi.query_switch is None
    assert phi.query_scales(5) is None


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_check_of_the_compiled_engine_looks_beyond_the_switch(dtype, folders, monkeypatch):
    adapter = adapter_of(folders["ministral3_8b"], dtype)
    layers = ResidentLayers(adapter.layers)
    check_layers(adapter, layers, None, adapter.head)
    monkeypatch.setattr(BackboneAdapter, "query_scales", lambda self, length: None)
    with pytest.raises(EngineUnavailable, match="backbone layer"):
        check_layers(adapter, layers, None, adapter.head)


def test_a_check_of_the_first_positions_alone_would_miss_it(folders, monkeypatch):
    adapter = adapter_of(folders["ministral3_8b"])
    monkeypatch.setattr(BackboneAdapter, "query_scales", lambda self, length: None)
    layers = ResidentLayers(adapter.layers)
    check._check(adapter, layers, None, adapter.head, NarrowExecutor)


@pytest.mark.parametrize("engine", ENGINES)
def test_up_to_the_switch_longrope_is_transformers_short_one(engine, folders, phi):
    model = AutoModelForCausalLM.from_pretrained(folders["phi4_mini"], dtype=torch.float32).eval()
    prompt, tokens = prompt_of(7), prompt_of(SWITCH)[7:]
    ours = forced(phi, engine, prompt, tokens, slots=SWITCH)
    assert torch.allclose(ours, whole_pass(model, prompt, tokens), atol=2e-4)


def test_beyond_the_switch_transformers_turns_the_keys_of_earlier_positions_otherwise(folders):
    """Why a text must not cross: what a longer text makes of the same first positions differs."""
    model = AutoModelForCausalLM.from_pretrained(folders["phi4_mini"], dtype=torch.float32).eval()
    text = prompt_of(SWITCH + 1)
    with torch.no_grad():
        within = model(torch.tensor([text[:SWITCH]])).logits[0]
        beyond = model(torch.tensor([text])).logits[0, :SWITCH]
    assert (within - beyond)[1:].abs().amax(-1).min() > 0.01


def test_attention_factor_and_rotated_share_of_longrope(phi):
    """Length 1 for position 0, times sqrt(1 + ln(256/16) / ln(16)) = sqrt(2); 48 of 64 turn."""
    cos, sin = phi.rotary_table(3)
    assert cos.shape == (3, 48)
    assert torch.allclose(cos[0], torch.full((48,), math.sqrt(2)))
    angles = torch.tensor([1 / ((1 + 0.02 * n) * 1e4 ** (n / 24)) for n in range(24)])
    assert torch.allclose(sin[2, :24], math.sqrt(2) * torch.sin(2 * angles), atol=1e-6)


def test_a_text_that_would_cross_the_switch_is_refused(phi):
    assert phi.context == SWITCH
    with pytest.raises(UserError, match="17 positions exceed the model's 16") as error:
        phi.rotary_table(SWITCH + 1)
    assert "longrope switches there" in str(error.value)


def test_a_prompt_with_its_budget_beyond_the_switch_is_refused(folders):
    model = load_model(
        ModelConfig(name="t", path=str(folders["phi4_mini"]), device="cpu", chat="never")
    )

    class Task:
        def text(self, sample):
            return sample.id

    class Sample:
        id = "12"

    count = len(model.tokenizer("12")["input_ids"])
    fits = SWITCH - count
    assert len(encode_all(model, Task(), [Sample()], fits)) == 1
    with pytest.raises(UserError, match=f"use exp.max_new_tokens={fits} or less") as error:
        encode_all(model, Task(), [Sample()], fits + 1)
    for words in (f"{count} tokens and {fits + 1} new ones", "model's 16 positions", "longrope"):
        assert words in str(error.value)
    assert "\n" not in str(error.value)
