"""The quantized LM head: the same for every arm, and nothing else changes."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from river_llm.config import RtnInt4Config, RtnInt8Config
from river_llm.decoding import FullQuant, NoExit, River
from river_llm.errors import UserError
from river_llm.evaluation.traffic import Traffic
from river_llm.exits import Confidence, Never
from river_llm.models.adapter import BackboneAdapter
from river_llm.quant import head as head_module
from river_llm.quant import rtn_int4, rtn_int8
from river_llm.quant.grid import split_groups
from river_llm.quant.head import build_head, head_backend, head_record
from river_llm.quant.int4_linear import Int4Linear
from river_llm.quant.int8_linear import Int8Linear
from tiny import COPIED, KINDS, LAYERS, PROMPT, QUANT, VOCAB, Scripted, make_executor, run
from tiny import tiny_model as tiny

TOKENS = 12
BITS = ("int8", "int4")


def by_hand(bits, weight: torch.Tensor) -> torch.Tensor:
    """What the head's weights are rounded to, from the grids' definitions."""
    weight = weight.detach().float()
    if bits == "int8":
        step = (weight.abs().amax(1, keepdim=True) / 127).bfloat16().float()
        return (weight / step).round().clamp(-127, 127) * step
    groups = weight.view(len(weight), -1, 64)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = ((high - low) / 15).bfloat16().float()
    zero = (low + 8 * (high - low) / 15).bfloat16().float()
    codes = ((groups - zero) / step + 8).round().clamp(0, 15)
    return ((codes - 8) * step + zero).view(weight.shape)


def twin(model, bits):
    """A copy whose LM head holds the rounded weights, and whose embedding does not."""
    model = copy.deepcopy(model)
    config = model.config
    config.tie_word_embeddings = False
    weight = by_hand(bits, model.lm_head.weight)
    model.lm_head.weight = nn.Parameter(weight, requires_grad=False)
    return model


def with_kernels(dtype=torch.bfloat16, vocab=96):
    """A model whose vocabulary the kernels take."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return AutoModelForCausalLM.from_config(config).eval().to(dtype)


def generate(model, count=TOKENS):
    """Greedy tokens and logits of transformers' own `generate`."""
    model.set_attn_implementation("sdpa")
    ids = torch.tensor([PROMPT])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[0, len(PROMPT) :].tolist(), torch.cat(out.logits)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_exit_equals_transformers_with_the_dequantized_head(kind, bits, rivers):
    model = tiny(kind)
    decoder = NoExit(*make_executor(model, Never(LAYERS), rivers, COPIED, head=bits))
    tokens, logits, _ = run(decoder, [PROMPT], TOKENS)
    expected, expected_logits = generate(twin(model, bits))
    assert tokens[0] == expected
    assert torch.allclose(logits[0], expected_logits, atol=1e-4)
    assert not torch.allclose(generate(model)[1], expected_logits, atol=1e-2)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_every_arm_has_the_same_head(kind, bits, rivers):
    """A river of copied weights gives no_exit at any depth, as it does with 16 bits."""
    model = tiny(kind)

    def arm(strategy, criterion, quant=COPIED):
        return strategy(*make_executor(model, criterion, rivers, quant, head=bits))

    expected = run(arm(NoExit, Never(LAYERS)), [PROMPT], TOKENS)
    for decoder in (arm(River, Scripted()), arm(FullQuant, Never(LAYERS))):
        tokens, logits, _ = run(decoder, [PROMPT], TOKENS)
        assert tokens == expected[0]
        assert torch.allclose(logits, expected[1], atol=1e-5)
    # Where the river does differ, its logits still come from this head.
    decoder = arm(River, Scripted(), QUANT)
    _, logits, _ = run(decoder, [PROMPT], 3)
    normed = model.model.norm(decoder.executor.hidden()[:, -1])
    weight = by_hand(bits, model.lm_head.weight)
    assert torch.allclose(logits[:, -1], normed @ weight.T, atol=1e-4)


@pytest.mark.parametrize("bits", BITS)
def test_confidence_asks_this_head(bits, rivers):
    model = tiny("llama")
    executor, _ = make_executor(model, Confidence(LAYERS, 2.0), rivers, COPIED, head=bits)
    NoExit(executor, executor.cache).prefill([PROMPT])
    normed = model.model.norm(executor.hidden()[:, -1])
    weight = by_hand(bits, model.lm_head.weight)
    expected = (normed @ weight.T).softmax(-1).amax(-1)
    assert torch.allclose(executor.score(), expected, atol=1e-5)
    usual = (normed @ model.lm_head.weight.T).softmax(-1).amax(-1)
    assert not torch.allclose(usual, expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_backbone_and_embedding_stay_as_they_are_and_tied(kind, bits, dtype):
    model = tiny(kind, dtype)
    tied = kind == "llama"
    everything = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapter = BackboneAdapter(model)
    head = build_head(adapter, bits)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert adapter.head.linear is model.lm_head
    assert adapter.head.norm is head.norm is model.model.norm
    assert {name for name, _ in model.named_parameters()} <= set(everything)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, everything[name]), name
    ids = torch.tensor([PROMPT])
    assert torch.equal(adapter.embed(ids)[0], everything["model.embed_tokens.weight"][PROMPT])
    storages = {t.untyped_storage().data_ptr() for t in model.state_dict().values()}
    own = [*head.linear.parameters(), *head.linear.buffers()]
    assert storages.isdisjoint(t.untyped_storage().data_ptr() for t in own)


def test_16_bits_are_the_backbones_own_head():
    adapter = BackboneAdapter(tiny("llama"))
    head = build_head(adapter, "none")
    assert head is adapter.head
    assert head_backend(adapter, head) is None
    assert head_record("none") is None


@pytest.mark.parametrize(
    ("bits", "kind", "backend"),
    [("int8", Int8Linear, "int8_cpu"), ("int4", Int4Linear, "int4_cpu")],
)
def test_a_head_in_bf16_runs_on_the_kernel(bits, kind, backend, capsys):
    model = with_kernels()
    adapter = BackboneAdapter(model)
    head = build_head(adapter, bits)
    assert type(head.linear) is kind
    assert head_backend(adapter, head) == backend
    assert "KERNEL" not in capsys.readouterr().err
    hidden = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.no_grad():
        logits = head(hidden)
        expected = model.model.norm(hidden).float() @ by_hand(bits, model.lm_head.weight).T
        usual = adapter.head(hidden)
    assert logits.shape == (2, 3, 96)
    distance = (logits.float() - expected).norm() / expected.norm()
    assert distance < 0.01
    if bits == "int4":
        assert (usual.float() - expected).norm() / expected.norm() > 0.05


@pytest.mark.parametrize(
    ("bits", "make", "words"),
    [
        ("int8", lambda: with_kernels(torch.float32), "NO 8-BIT KERNEL: .*float32; the LM head"),
        (
            "int4",
            lambda: with_kernels(torch.float16),
            "NO 4-BIT KERNEL: .*float16 activations; the LM",
        ),
        ("int4", lambda: with_kernels(vocab=97), "NO 4-BIT KERNEL: .*16 outputs, not 97; the LM"),
    ],
)
def test_a_head_without_kernel_says_so_in_one_loud_line(bits, make, words, capsys):
    model = make()
    adapter = BackboneAdapter(model)
    head = build_head(adapter, bits)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "KERNEL" in line]
    assert re.search(words, line)
    assert head_backend(adapter, head) == "dequantized"
    expected = by_hand(bits, model.lm_head.weight).to(adapter.dtype)
    assert torch.equal(head.linear.weight, expected)


def test_a_copy_on_request_is_quiet(capsys):
    adapter = BackboneAdapter(with_kernels())
    head = build_head(adapter, "int8", kernels=False)
    assert head_backend(adapter, head) == "dequantized"
    assert "KERNEL" not in capsys.readouterr().err


@pytest.mark.parametrize("bits", BITS)
def test_some_rows_at_a_time_give_what_all_at_once_give(bits, monkeypatch):
    adapter = BackboneAdapter(with_kernels())
    weight = adapter.model.lm_head.weight.detach()
    whole = {
        "int8": lambda: rtn_int8.quantize(weight.float()),
        "int4": lambda: rtn_int4.quantize(split_groups(weight, 64, "w")),
    }[bits]()
    monkeypatch.setattr(head_module, "_ROWS", 25)
    head = build_head(adapter, bits, kernels=False)
    assert torch.equal(head.linear.weight, whole.dequantize(torch.bfloat16))


@pytest.mark.parametrize(
    ("bits", "dtype", "vocab", "linear"),
    [
        # A byte a weight and a scale of 2 bytes for each of 96 outputs.
        ("int8", torch.bfloat16, 96, 96 * 64 + 96 * 2),
        # Half a byte a weight; a scale and a zero of 2 bytes for each group of 64.
        ("int4", torch.bfloat16, 96, 96 * 64 // 2 + 96 * 4),
        ("int4", torch.bfloat16, 97, 97 * 64 * 2),
        ("int8", torch.float32, 96, 96 * 64 * 4),
        ("none", torch.bfloat16, 96, 96 * 64 * 2),
    ],
)
def test_bytes_are_those_that_are_read(bits, dtype, vocab, linear):
    adapter = BackboneAdapter(with_kernels(dtype, vocab))
    head = build_head(adapter, bits)
    assert head.linear_nbytes == linear
    assert head.nbytes == linear + 64 * dtype.itemsize
    usual, own = Traffic(adapter, None), Traffic(adapter, None, head=head)
    saved = vocab * 64 * dtype.itemsize - linear
    assert usual.step_bytes(2, 5) - own.step_bytes(2, 5) == saved
    assert usual.total([2, 1], 5) - own.total([2, 1], 5) == 2 * saved
    testing = Traffic(adapter, None, tests_read_head=True, head=head)
    assert testing.step_bytes(2, 5, tests=3) - own.step_bytes(2, 5) == 3 * head.nbytes


def test_a_width_without_whole_groups_is_refused_for_4_bits_alone():
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=96,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
    )
    adapter = BackboneAdapter(AutoModelForCausalLM.from_config(config).eval())
    with pytest.raises(UserError, match=r"quant\.head=int4: the width 96 .*int8 or none"):
        build_head(adapter, "int4")
    assert build_head(adapter, "int8").linear.weight.shape == (VOCAB, 96)


def test_nan_in_the_head_is_refused():
    model = tiny("qwen2")
    model.lm_head.weight.data[5, 5] = torch.nan
    with pytest.raises(UserError, match="lm_head"):
        build_head(BackboneAdapter(model), "int8")


def test_records_tell_the_heads_quantizer():
    assert head_record("int8")["name"] == RtnInt8Config().name
    four = head_record("int4")
    assert (four["name"], four["group_size"], four["bits"]) == (RtnInt4Config().name, 64, 4)
    assert "head" not in four
