"""Tiny random models and the arms built on them, for tests in float32."""

from __future__ import annotations

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from river_llm.cache import SlotCache
from river_llm.config import HeadBits, NoQuantConfig, QuantConfig, RtnInt4Config
from river_llm.decoding import Decoder
from river_llm.engine.compiled import CompiledExecutor
from river_llm.engine.cuda_graphs import CudaGraphsExecutor
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.executor import Executor
from river_llm.engine.halves import HalvesExecutor
from river_llm.engine.weights import Layers, ResidentLayers
from river_llm.exits import Criterion
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import model_fingerprint
from river_llm.quant.head import build_head
from river_llm.quant.river import build_river
from traced import TracedExecutor

KINDS = ("llama", "llama_bias", "qwen2", "qwen3")
LAYERS = 5
VOCAB = 97
SLOTS = 96
PROMPT = [5, 9, 31, 7, 2, 88, 40]
OTHER_PROMPT = [3, 17, 60, 61]


class MixedExecutor(CompiledExecutor):
    """Passes of 3 tokens and more go to the eager half: both write and read one cache."""

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        self.narrow.most_rows = 2


ENGINES: dict[str, type[EagerExecutor] | type[HalvesExecutor]] = {
    "eager": EagerExecutor,
    "compiled": CompiledExecutor,
    "mixed": MixedExecutor,
    "traced": TracedExecutor,
}
"""Those of the CPU; the fixture `engine` says which serve on the device of the tests."""
ON_GPU: dict[str, type[HalvesExecutor]] = {"cuda_graphs": CudaGraphsExecutor}
engine = "eager"
"""Which of them `make_executor` builds; the fixture `engine` sets it."""

QUANT = RtnInt4Config(group_size=32)
COPIED = NoQuantConfig()


class Scripted(Criterion):
    """Plans depths from a cycle, full depth in the prefill."""

    def __init__(self, cycle=(4, 1, 3, 5, 2, 5, 1)):
        super().__init__(LAYERS)
        self.cycle = cycle

    def plan(self, step):
        return LAYERS if step is None else self.cycle[step % len(self.cycle)]


def tiny_model(kind: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A seeded random model of 5 layers with 4 query and 2 key/value heads.

    Norm weights and biases are random too, so that a norm or bias that is left out shows.
    """
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "initializer_range": 0.3,
    }
    config = {
        "llama": lambda: LlamaConfig(**sizes, tie_word_embeddings=True),
        "llama_bias": lambda: LlamaConfig(**sizes, attention_bias=True, mlp_bias=True),
        "qwen2": lambda: Qwen2Config(**sizes),
        "qwen3": lambda: Qwen3Config(**sizes, head_dim=32, attention_bias=True),
    }[kind]()
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    return model.to(dtype)


def make_executor(
    model: PreTrainedModel,
    criterion: Criterion,
    cache_root,
    quant: QuantConfig = QUANT,
    batch: int = 1,
    slots: int = SLOTS,
    head: HeadBits = "none",
) -> tuple[Executor, SlotCache]:
    """An executor with a river, and its cache; a quantized head is a dequantized copy too."""
    adapter = BackboneAdapter(model)
    river: Layers = build_river(
        adapter, quant, model_fingerprint(model), cache=cache_root, kernels=False
    )
    cache = SlotCache(
        LAYERS, batch, adapter.kv_heads, slots, adapter.head_dim, adapter.dtype, adapter.device
    )
    backbone = ResidentLayers(adapter.layers)
    end = build_head(adapter, head, kernels=False)
    return {**ENGINES, **ON_GPU}[engine](adapter, cache, criterion, backbone, river, end), cache


def run(decoder: Decoder, prompts: list[list[int]], count: int):
    """Generates `count` tokens: (tokens per row, logits [B, count, V], decode depths)."""
    outputs = [decoder.prefill(prompts)] + [decoder.step() for _ in range(count - 1)]
    tokens = [[out.tokens[row][0] for out in outputs] for row in range(len(prompts))]
    logits = torch.cat([out.logits for out in outputs], dim=1)
    return tokens, logits, [out.trace.depth for out in outputs[1:]]
