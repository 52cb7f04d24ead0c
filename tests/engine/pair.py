"""The eager and the compiled engine side by side on one model: same stacks, a cache each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama import LlamaForCausalLM

from river_llm.cache import SlotCache
from river_llm.config import NoQuantConfig, QuantConfig
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.executor import Executor, StepInputs
from river_llm.engine.native.executor import NarrowExecutor
from river_llm.engine.weights import ResidentLayers
from river_llm.exits import Never
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import model_fingerprint
from river_llm.quant.river import build_river

LAYERS = 4
VOCAB = 211
CONTEXT = 512


def make_model(
    head_dim: int, dtype: torch.dtype, kind: str = "llama", **changes: object
) -> PreTrainedModel:
    """A seeded random model: 4 query and 2 key/value heads, every width a multiple of 64."""
    torch.manual_seed(3)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
        "attention_bias": True,
        **changes,
    }
    model = (
        LlamaForCausalLM(LlamaConfig(**sizes))
        if kind == "llama"
        else Qwen3ForCausalLM(Qwen3Config(**sizes))
    ).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    return model.to(dtype)


def both(
    model: PreTrainedModel,
    rivers,
    quant: QuantConfig | None = None,
    batch: int = 1,
    slots: int = 64,
) -> tuple[EagerExecutor, NarrowExecutor]:
    """The two executors over the same backbone and river."""
    adapter = BackboneAdapter(model)
    quant = quant or NoQuantConfig()
    river = build_river(adapter, quant, model_fingerprint(model), cache=rivers)
    stacks = ResidentLayers(adapter.layers), river
    caches = [
        SlotCache(
            LAYERS, batch, adapter.kv_heads, slots, adapter.head_dim, adapter.dtype, adapter.device
        )
        for _ in range(2)
    ]
    never = Never(LAYERS)
    return (
        EagerExecutor(adapter, caches[0], never, *stacks, adapter.head),
        NarrowExecutor(adapter, caches[1], never, *stacks, adapter.head),
    )


def through(executor: Executor, inputs: StepInputs, depth: int, river: bool = True) -> None:
    """One pass: the backbone to a depth, the river from there on."""
    executor.begin(inputs)
    executor.backbone(0, depth)
    if river:
        executor.river(depth, LAYERS)


def error(ours: torch.Tensor, right: torch.Tensor) -> float:
    """Relative L2 error."""
    return float((ours.float() - right.float()).norm() / right.float().norm())


def share_entries(source: Executor, target: Executor) -> None:
    """Gives one cache the entries and source bytes of the other."""
    for name in ("k", "v", "source"):
        getattr(target.cache, name).copy_(getattr(source.cache, name))  # type: ignore[attr-defined]


def ids(rows: int, tokens: int, seed: int = 0) -> list[list[int]]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    drawn: Sequence[Sequence[int]] = torch.randint(
        0, VOCAB, (rows, tokens), generator=generator
    ).tolist()
    return [list(row) for row in drawn]
