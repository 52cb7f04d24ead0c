"""Which engine serves a model, and its executor."""

from __future__ import annotations

import sys
import weakref

import torch

from river_llm.cache import SlotCache
from river_llm.config import (
    AutoConfig,
    CompiledConfig,
    CudaGraphsConfig,
    EagerConfig,
    EngineConfig,
    ResolvedEngine,
)
from river_llm.engine.check import check_layers
from river_llm.engine.compiled import CompiledExecutor
from river_llm.engine.cuda_graphs import CudaGraphsExecutor
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.executor import EngineUnavailable, Executor
from river_llm.engine.halves import HalvesExecutor
from river_llm.engine.threads import use_threads
from river_llm.engine.weights import Layers
from river_llm.errors import UserError
from river_llm.exits import Criterion
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.head import Head

_KINDS: dict[type[ResolvedEngine], type[HalvesExecutor]] = {
    CompiledConfig: CompiledExecutor,
    CudaGraphsConfig: CudaGraphsExecutor,
}
_checked: weakref.WeakKeyDictionary[object, set[type]] = weakref.WeakKeyDictionary()
"""The engines in which models, rivers and heads were compared with transformers', once each."""


def resolve_engine(
    engine: EngineConfig,
    adapter: BackboneAdapter,
    backbone: Layers,
    river: Layers | None,
    head: Head,
) -> ResolvedEngine:
    """What an engine's settings come to on this machine, for these stacks; sets the threads.

    `auto` is the fast engine of the device (CUDA graphs, else the compiled one) where it can serve
    and computes what transformers computes, else the eager one, which is said aloud.

    Raises:
        UserError: a fast engine was asked for by name and cannot serve.
    """
    use_threads(engine.threads)
    if isinstance(engine, EagerConfig):
        return engine
    chosen = _of_device(engine, adapter.device) if isinstance(engine, AutoConfig) else engine
    kind = _KINDS[type(chosen)]
    parts = [adapter, head] if river is None else [adapter, head, river]
    try:
        if not all(kind in _checked.get(part, ()) for part in parts):
            check_layers(adapter, backbone, river, head, kind.narrow_kind)
            for part in parts:
                _checked.setdefault(part, set()).add(kind)
    except EngineUnavailable as error:
        if not isinstance(engine, AutoConfig):
            raise UserError(
                f"engine={engine.name} cannot serve here: {error}; use engine=eager"
            ) from error
        name = chosen.name.upper().replace("_", " ")
        print(
            f"river_llm: NO {name} ENGINE: {error}; layers run on the eager one, right in value "
            "but several times slower",
            file=sys.stderr,
        )
        return EagerConfig(threads=engine.threads)
    return chosen


def _of_device(engine: AutoConfig, device: torch.device) -> CompiledConfig | CudaGraphsConfig:
    kind = CudaGraphsConfig if device.type == "cuda" else CompiledConfig
    return kind(threads=engine.threads)


def build_executor(
    engine: ResolvedEngine,
    adapter: BackboneAdapter,
    cache: SlotCache,
    criterion: Criterion,
    backbone: Layers,
    river: Layers | None,
    head: Head,
) -> Executor:
    """The executor of a resolved engine; see :class:`river_llm.engine.eager.EagerExecutor`."""
    kind: type[HalvesExecutor | EagerExecutor] = _KINDS.get(type(engine), EagerExecutor)
    return kind(adapter, cache, criterion, backbone, river, head)
