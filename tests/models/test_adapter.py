"""Layers called one by one against the transformers model they belong to."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

from river_llm.decoding import NoExit
from river_llm.errors import UserError
from river_llm.exits import Never
from river_llm.models import adapter as adapter_module
from river_llm.models import attention
from river_llm.models.adapter import BackboneAdapter
from tiny import COPIED, KINDS, LAYERS, PROMPT, VOCAB, make_executor, tiny_model

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
ROPES = {
    "linear": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
}


def llama_with_rope(kind: str, **settings):
    torch.manual_seed(0)
    rope = {"rope_type": kind, "rope_theta": 10000.0, **settings}
    return AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, rope_parameters=rope)).eval()


class Passing:
    """A cache that keeps nothing: enough for one pass over whole texts."""

    def __init__(self):
        self.keys = []

    def update(self, k, v, *_, **__):
        self.keys.append(k)
        return k, v


MODELS = {kind: lambda kind=kind: tiny_model(kind) for kind in KINDS} | {
    f"rope {kind}": lambda kind=kind: llama_with_rope(kind, **ROPES[kind]) for kind in ROPES
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_layers_one_by_one_give_the_models_hidden_states(make):
    model = make()
    torch.manual_seed(1)
    ids = torch.randint(VOCAB, (2, 20))
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        expected = plain(ids, output_hidden_states=True)
        adapter = BackboneAdapter(model)
        cos, sin = adapter.rotary_table(20)
        hidden = adapter.embed(ids)
        cache = Passing()
        for index, layer in enumerate(adapter.layers):
            assert hidden.shape == (2, 20, 64)
            assert torch.allclose(hidden, expected.hidden_states[index], atol=1e-3), index
            hidden = adapter.run_layer(layer, hidden, None, (cos[None], sin[None]), cache)
            assert len(cache.keys) == index + 1
            assert cache.keys[-1].shape == (2, 2, 20, adapter.head_dim)
        logits = adapter.head(hidden)
    assert hidden.shape == (2, 20, 64)
    assert logits.shape == (2, 20, VOCAB)
    assert torch.allclose(logits, expected.logits, atol=2e-3)
    assert not torch.allclose(logits[0], logits[1], atol=0.1), "rows that differ"


def test_the_head_norms_exactly_once():
    """hidden_states[-1] of transformers is normed already; the adapter's hidden state is not."""
    model = tiny_model("llama_bias")
    adapter = BackboneAdapter(model)
    hidden = torch.randn(2, 64)
    normed = hidden * (hidden.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
    expected = (normed * model.model.norm.weight) @ model.lm_head.weight.T
    with torch.no_grad():
        assert torch.allclose(adapter.head(hidden), expected, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes(kind):
    adapter = BackboneAdapter(tiny_model(kind))
    assert adapter.num_layers == len(adapter.layers) == LAYERS
    assert (adapter.hidden_size, adapter.kv_heads, adapter.vocab_size) == (64, 2, VOCAB)
    assert adapter.head_dim == (32 if kind == "qwen3" else 16)
    assert adapter.context == 256
    assert (adapter.dtype, adapter.device) == (torch.float32, torch.device("cpu"))
    assert [len(adapter.linears(n)) for n in range(LAYERS)] == [7] * LAYERS


@pytest.mark.parametrize(
    ("kind", "shared", "head"),
    [
        # Embedding 97 x 64, tied; two norms of 64 in each of 5 layers, and the last one.
        ("llama", (97 * 64 + 5 * 2 * 64 + 64) * 4, (97 * 64 + 64) * 4),
        # A head of its own.
        ("llama_bias", (2 * 97 * 64 + 5 * 2 * 64 + 64) * 4, (97 * 64 + 64) * 4),
        # Two more norms of 32 in each layer.
        ("qwen3", (2 * 97 * 64 + 5 * (2 * 64 + 2 * 32) + 64) * 4, (97 * 64 + 64) * 4),
    ],
)
def test_bytes_that_both_stacks_share(kind, shared, head):
    adapter = BackboneAdapter(tiny_model(kind))
    assert adapter.shared_nbytes() == shared
    assert adapter.head.nbytes == head
    assert adapter.untied_head_nbytes() == (0 if kind == "llama" else 97 * 64 * 4)


def test_cache_argument_of_this_transformers():
    version = Version(transformers.__version__)
    expected = "cache" if version >= Version("5.24") else "past_key_values"
    assert BackboneAdapter(tiny_model("qwen2"))._cache_argument == expected


class _Old(nn.Module):
    def forward(self, hidden_states, past_key_values=None, **kwargs): ...


class _New(nn.Module):
    def forward(self, hidden_states, cache=None, **kwargs): ...


class _Both(nn.Module):
    def forward(self, hidden_states, past_key_values=None, cache=None, **kwargs): ...


class _Unknown(nn.Module):
    def forward(self, hidden_states, key_cache=None, **kwargs): ...


@pytest.mark.parametrize(
    ("layer", "name"), [(_Old, "past_key_values"), (_New, "cache"), (_Both, "cache")]
)
def test_cache_argument_is_read_from_the_signature(layer, name):
    assert adapter_module._cache_argument(layer) == name


def test_a_layer_that_takes_no_known_cache_is_refused():
    with pytest.raises(RuntimeError, match="_Unknown"):
        adapter_module._cache_argument(_Unknown)


class _Wrapped(nn.Module):
    """A decoder layer whose cache is updated `times` times by a call."""

    def __init__(self, layer: nn.Module, times: int) -> None:
        super().__init__()
        self.layer = layer
        self.times = times

    def forward(self, hidden, **settings):
        name = next(n for n in ("cache", "past_key_values") if n in settings)
        cache = settings.pop(name)
        if self.times == 0:
            # As when an argument of an unknown name is swallowed.
            return self.layer(hidden, **settings)
        for _ in range(self.times - 1):
            zeros = torch.zeros(1, 2, 1, 16)
            cache.update(zeros, zeros, 3)
        return self.layer(hidden, **settings, **{name: cache})


@pytest.mark.parametrize("times", [0, 2, 3])
def test_a_layer_that_does_not_update_its_cache_once_is_refused(times):
    model = tiny_model("llama")
    model.model.layers[3] = _Wrapped(model.model.layers[3], times)
    with pytest.raises(RuntimeError, match=f"layer 3 updated the cache {times} times"):
        BackboneAdapter(model)


def test_a_wrapped_layer_that_updates_once_is_accepted():
    model = tiny_model("llama")
    model.model.layers[3] = _Wrapped(model.model.layers[3], 1)
    assert BackboneAdapter(model).num_layers == LAYERS


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2), "'gpt2'"),
        (
            Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1),
            "sliding_attention",
        ),
        (
            Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=0),
            "sliding_attention",
        ),
        (
            LlamaConfig(
                **SIZES,
                rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
            ),
            "'dynamic'",
        ),
    ],
    ids=["architecture", "some layers slide", "all layers slide", "rope by length"],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(config, words):
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(UserError, match=words) as error:
        BackboneAdapter(model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_forced_generate_gives_the_logits_of_our_own_forced_steps(kind, rivers):
    model = tiny_model(kind)
    torch.manual_seed(3)
    tokens = torch.randint(VOCAB, (9,)).tolist()
    decoder = NoExit(*make_executor(model, Never(LAYERS), rivers, COPIED))
    outputs = [decoder.prefill([PROMPT])] + [decoder.step(forced=[t]) for t in tokens[:-1]]
    own = torch.cat([out.logits for out in outputs], dim=1)[0]
    theirs = decoder.executor.adapter.generate_forced(PROMPT, tokens)
    assert theirs.shape == (9, VOCAB)
    assert torch.allclose(own, theirs, atol=1e-4)
    assert own.argmax(-1).tolist() != tokens, "tokens that the model would not choose"


def test_forced_generate_asks_sdpa_and_restores_this_projects_attention(monkeypatch):
    adapter = BackboneAdapter(tiny_model("llama"))
    used = []
    original = adapter.model.generate

    def watched(*arguments, **settings):
        used.append(adapter.model.config._attn_implementation)
        return original(*arguments, **settings)

    monkeypatch.setattr(adapter.model, "generate", watched)
    assert adapter.model.config._attn_implementation == attention.NAME
    adapter.generate_forced(PROMPT, [1, 2])
    assert used == ["sdpa"]
    assert adapter.model.config._attn_implementation == attention.NAME


def test_forced_generate_restores_the_model_after_an_error():
    adapter = BackboneAdapter(tiny_model("llama"))
    settings = adapter.model.generation_config
    with pytest.raises(IndexError):
        adapter.generate_forced(PROMPT, [1, VOCAB + 5])
    assert adapter.model.config._attn_implementation == attention.NAME
    assert adapter.model.generation_config is settings


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.7, "temperature": 0.3, "top_p": 0.5, "do_sample": True},
        {"suppress_tokens": [5], "no_repeat_ngram_size": 1, "max_length": 5},
        {"eos_token_id": 5},
        {"eos_token_id": [90, 5]},
        {"num_beams": 2},
    ],
    ids=str,
)
def test_forced_generate_ignores_the_models_own_generation_settings(settings):
    """Published checkpoints bring such settings along."""
    adapter = BackboneAdapter(tiny_model("qwen2"))
    tokens = [3, 5, 5, 8]
    expected = adapter.generate_forced(PROMPT, tokens)
    adapter.model.generation_config.update(**settings)
    actual = adapter.generate_forced(PROMPT, tokens)
    assert actual.shape == (4, VOCAB)
    assert torch.equal(actual, expected)
    for name, value in settings.items():
        assert getattr(adapter.model.generation_config, name) == value
