"""A river of int4 kernels on CUDA: backends, wide steps, and graphs against the eager engine."""

from __future__ import annotations

import re

import pytest
import torch

from river_llm.cache import SlotCache
from river_llm.config import (
    AutoConfig,
    CudaGraphsConfig,
    HqqInt4Config,
    RtnInt4Config,
    RtnInt8Config,
)
from river_llm.decoding import River
from river_llm.engine.build import build_executor, resolve_engine
from river_llm.engine.cuda_graphs import CudaGraphsExecutor
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.weights import ResidentLayers
from river_llm.models.adapter import BackboneAdapter
from river_llm.quant.head import build_head, head_backend
from river_llm.quant.linear import KernelLinear
from river_llm.quant.river import RiverLayers, build_river
from tiny import LAYERS, PROMPT, SLOTS, Scripted, tiny_model

QUANTS = {"rtn": RtnInt4Config(group_size=32), "hqq": HqqInt4Config(group_size=32)}
LINEARS = 7 * LAYERS
STEPS = 24
TOLERANCE = 0.15
"""Relative L2 error of logits: bf16 rounds at other places, some tens of times on the way.

On a CPU, with traced regions in place of graphs, at most 0.05; with two layers swapped 0.9.
"""


def model_of(kind: str, dtype: torch.dtype = torch.bfloat16) -> BackboneAdapter:
    return BackboneAdapter(tiny_model(kind, dtype))


def decode(kind, adapter: BackboneAdapter, river: RiverLayers, forced: list[int] | None = None):
    """Logits [STEPS + 1, V] with mixed depths, tokens, source bytes; fed with given tokens."""
    device = adapter.device
    cache = SlotCache(LAYERS, 1, adapter.kv_heads, SLOTS, adapter.head_dim, adapter.dtype, device)
    stacks = ResidentLayers(adapter.layers), river
    decoder = River(kind(adapter, cache, Scripted(), *stacks, adapter.head), cache)
    outputs = [decoder.prefill([PROMPT])]
    for step in range(STEPS):
        outputs.append(decoder.step(None if forced is None else [forced[step]]))
    tokens = [output.tokens[0][0] for output in outputs]
    return torch.cat([output.logits[0] for output in outputs]).float(), tokens, cache.source


def errors(ours: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Relative L2 error of each step's logits."""
    return (ours - right).norm(dim=-1) / right.norm(dim=-1)


@pytest.mark.parametrize("kind", ["llama", "llama_bias", "qwen2", "qwen3"])
@pytest.mark.parametrize("quant", QUANTS)
def test_graphs_equal_the_eager_engine_but_for_rounding(kind, quant, capsys):
    adapter = model_of(kind)
    river = build_river(adapter, QUANTS[quant], None)
    assert river.backend_counts() == {"int4_cuda": LINEARS}
    assert "KERNEL" not in capsys.readouterr().err
    right, tokens, source = decode(EagerExecutor, adapter, river)
    ours, chosen, ours_source = decode(CudaGraphsExecutor, adapter, river, tokens)
    assert errors(ours, right).max() < TOLERANCE
    assert sum(a == b for a, b in zip(chosen, tokens, strict=True)) >= STEPS - 4
    assert torch.equal(ours_source[..., : len(PROMPT) + STEPS], source[..., : len(PROMPT) + STEPS])


@pytest.mark.parametrize("kind", ["llama_bias", "qwen2"])
@pytest.mark.parametrize("quant", QUANTS)
def test_the_kernels_river_is_that_of_dequantized_copies_but_for_rounding(kind, quant):
    adapter = model_of(kind)
    copies = build_river(adapter, QUANTS[quant], None, kernels=False)
    right, tokens, _ = decode(EagerExecutor, adapter, copies)
    ours, _, _ = decode(EagerExecutor, adapter, build_river(adapter, QUANTS[quant], None), tokens)
    assert errors(ours, right).max() < TOLERANCE


def test_wide_steps_go_through_the_very_weights_of_dequantized_copies():
    adapter = model_of("qwen2")
    river = build_river(adapter, QUANTS["hqq"], None)
    copies = build_river(adapter, QUANTS["hqq"], None, kernels=False)
    for layer in range(LAYERS):
        narrow = river.acquire(layer, river.wide_step - 1)
        assert sum(isinstance(module, KernelLinear) for module in narrow.modules()) == 7
        wide = river.acquire(layer, river.wide_step).state_dict()
        right = copies.acquire(layer, 1).state_dict()
        assert wide.keys() == right.keys()
        assert all(torch.equal(wide[name], right[name]) for name in right)


def test_the_automatic_engine_is_that_of_graphs(capsys):
    adapter = model_of("llama")
    stacks = ResidentLayers(adapter.layers), build_river(adapter, QUANTS["rtn"], None)
    engine = resolve_engine(AutoConfig(), adapter, *stacks, adapter.head)
    assert isinstance(engine, CudaGraphsConfig)
    assert "ENGINE" not in capsys.readouterr().err
    cache = SlotCache(
        LAYERS, 1, adapter.kv_heads, SLOTS, adapter.head_dim, adapter.dtype, adapter.device
    )
    executor = build_executor(engine, adapter, cache, Scripted(), *stacks, adapter.head)
    assert isinstance(executor, CudaGraphsExecutor)


@pytest.mark.parametrize(
    ("dtype", "quant", "words"),
    [
        (torch.float32, QUANTS["rtn"], "NO 4-BIT KERNEL: .* not float32"),
        (torch.float16, QUANTS["rtn"], "NO 4-BIT KERNEL: .* not float16"),
        (torch.bfloat16, RtnInt4Config(group_size=16), "NO 4-BIT KERNEL: .* group size 16"),
        (torch.bfloat16, RtnInt8Config(), "NO 8-BIT KERNEL: .* device cuda"),
    ],
)
def test_what_the_kernel_does_not_serve_runs_on_copies_and_says_so(dtype, quant, words, capfd):
    river = build_river(model_of("llama", dtype), quant, None)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "KERNEL" in line]
    assert re.search(words, line)
    assert river.backend_counts() == {"dequantized": LINEARS}


def test_an_int4_head_runs_on_the_kernel():
    adapter = model_of("llama")
    # 97 rows are no multiple of 8.
    assert head_backend(adapter, build_head(adapter, "int4")) == "dequantized"
    weight = torch.randn(96, 64, device=adapter.device).bfloat16()
    adapter.head.linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    head = build_head(adapter, "int4")
    assert head_backend(adapter, head) == "int4_cuda"
    hidden = torch.randn(2, 3, 64, device=adapter.device).bfloat16()
    with torch.no_grad():
        ours, right = head(hidden), build_head(adapter, "int4", kernels=False)(hidden)
    assert ours.shape == (2, 3, 96)
    assert errors(ours.float(), right.float()).max() < 0.01
