"""The layers of a fast engine against transformers' own, before they are used."""

from __future__ import annotations

import torch

from river_llm.cache import SlotCache
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.executor import EngineUnavailable, Executor, StepInputs
from river_llm.engine.halves import NarrowPasses
from river_llm.engine.native.executor import NarrowExecutor
from river_llm.engine.weights import Layers
from river_llm.exits import Never
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.head import Head

TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.04}
"""Largest relative error (L2 norm) of a layer's output, its entries and the logits.

A layer that is computed wrongly is off by far more; 16 bits are rounded at other places here.
"""
_PASSES = (range(5), range(5, 6))
"""Slots of a few tokens, then of one more: fast engines serve one token in another way."""
_SLOTS = 6


@torch.no_grad()
def check_layers(
    adapter: BackboneAdapter,
    backbone: Layers,
    river: Layers | None,
    head: Head,
    kind: type[NarrowPasses] = NarrowExecutor,
) -> None:
    """Runs every layer of each stack on the same states in both engines.

    Five tokens of seeded random states go through each layer from the eager engine's input to it,
    behind each other in the cache, then a sixth; outputs, cache entries and logits are compared.
    Where queries are scaled by position, that is done once more at the end of the context, where
    the scale is largest: by so little as it is at first, bf16 would not show that it is left out.

    Args:
        adapter: the backbone.
        backbone, river, head: as an executor gets them.
        kind: the half that serves narrow passes.

    Raises:
        EngineUnavailable: they differ, or a layer cannot be described.
    """
    _check(adapter, backbone, river, head, kind)
    if adapter.query_switch is not None:
        _check(adapter.shifted(adapter.context - _SLOTS), backbone, river, head, kind)


def _check(
    adapter: BackboneAdapter,
    backbone: Layers,
    river: Layers | None,
    head: Head,
    kind: type[NarrowPasses],
) -> None:
    stacks = {"backbone": backbone} if river is None else {"backbone": backbone, "river": river}
    both: list[Executor] = []
    for each in (EagerExecutor, kind):
        cache = SlotCache(
            adapter.num_layers,
            1,
            adapter.kv_heads,
            _SLOTS,
            adapter.head_dim,
            adapter.dtype,
            adapter.device,
        )
        both.append(each(adapter, cache, Never(adapter.num_layers), backbone, river, head))
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1, _SLOTS, adapter.hidden_size, generator=generator, device="cpu")
    start = start.to(adapter.device, adapter.dtype)
    for stack in stacks:
        for slots in _PASSES:
            hidden = start[:, slots.start : slots.stop]
            for layer in range(adapter.num_layers):
                inputs = StepInputs(slots=slots, pad=[0], hidden=hidden)
                outputs = [_through(executor, stack, layer, inputs) for executor in both]
                _compare(f"{stack} layer {layer}", adapter.dtype, *outputs)
                for name in ("k", "v"):
                    entries = [getattr(executor.cache, name)[layer] for executor in both]
                    _compare(f"{name} of {stack} layer {layer}", adapter.dtype, *entries)
                hidden = outputs[0]
    _compare("the LM head", adapter.dtype, *(executor.logits() for executor in both))


def _through(executor: Executor, stack: str, layer: int, inputs: StepInputs) -> torch.Tensor:
    executor.begin(inputs)
    getattr(executor, stack)(layer, layer + 1)
    return executor.hidden()


def _compare(what: str, dtype: torch.dtype, right: torch.Tensor, ours: torch.Tensor) -> None:
    error = float((ours.float() - right.float()).norm())
    size = float(right.float().norm())
    # NaN compares as false; zeros must be zeros.
    if not error <= TOLERANCE[dtype] * size:
        relative = error / size if size else error
        raise EngineUnavailable(f"{what} is off from transformers' by {relative:.2g}")
