"""Which engine serves a model, and its executor."""

from __future__ import annotations

import sys
import weakref

from river_llm.cache import SlotCache
from river_llm.config import CompiledConfig, EagerConfig, EngineConfig
from river_llm.engine.check import check_layers
from river_llm.engine.compiled import CompiledExecutor
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.executor import Executor
from river_llm.engine.native.compilation import EngineUnavailable
from river_llm.engine.threads import use_threads
from river_llm.engine.weights import Layers
from river_llm.errors import UserError
from river_llm.exits import Criterion
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.head import Head

_checked: weakref.WeakSet[object] = weakref.WeakSet()
"""Models, rivers and heads that were compared with transformers': they need it once."""


def resolve_engine(
    engine: EngineConfig,
    adapter: BackboneAdapter,
    backbone: Layers,
    river: Layers | None,
    head: Head,
) -> EagerConfig | CompiledConfig:
    """What an engine's settings come to on this machine, for these stacks; sets the threads.

    `auto` is the compiled engine where it can serve and computes what transformers computes, else
    the eager one, which is said aloud.

    Raises:
        UserError: the compiled engine was asked for by name and cannot serve.
    """
    use_threads(engine.threads)
    if isinstance(engine, EagerConfig):
        return engine
    parts = {adapter, head} if river is None else {adapter, head, river}
    try:
        if not parts <= set(_checked):
            check_layers(adapter, backbone, river, head)
            _checked.update(parts)
    except EngineUnavailable as error:
        if isinstance(engine, CompiledConfig):
            raise UserError(
                f"engine=compiled cannot serve here: {error}; use engine=eager"
            ) from error
        print(
            f"river_llm: NO COMPILED ENGINE: {error}; layers run on the eager one, right in value "
            "but several times slower",
            file=sys.stderr,
        )
        return EagerConfig(threads=engine.threads)
    return CompiledConfig(threads=engine.threads)


def build_executor(
    engine: EagerConfig | CompiledConfig,
    adapter: BackboneAdapter,
    cache: SlotCache,
    criterion: Criterion,
    backbone: Layers,
    river: Layers | None,
    head: Head,
) -> Executor:
    """The executor of a resolved engine; see :class:`river_llm.engine.eager.EagerExecutor`."""
    kind = CompiledExecutor if isinstance(engine, CompiledConfig) else EagerExecutor
    return kind(adapter, cache, criterion, backbone, river, head)
