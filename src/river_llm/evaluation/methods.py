"""The decoder of a method's settings."""

from __future__ import annotations

from collections.abc import Sequence

from river_llm.cache import SlotCache
from river_llm.config import (
    FullQuantConfig,
    MaskConfig,
    Method,
    MonoDecreasingConfig,
    NoExitConfig,
    QuantDecodeConfig,
    RecomputeConfig,
    RiverConfig,
    RiverShuffledConfig,
    StatePropagationConfig,
    StaticFirstConfig,
    StaticLastConfig,
    StaticRankedConfig,
)
from river_llm.decoding import (
    Decoder,
    FullQuant,
    Mask,
    MonoDecreasingCap,
    MonoDecreasingSchedule,
    NoExit,
    Recompute,
    River,
    Schedule,
    StatePropagation,
    Static,
)
from river_llm.engine.executor import Executor
from river_llm.errors import UserError


def build_decoder(
    method: Method, executor: Executor, cache: SlotCache, ranking: Sequence[int] = ()
) -> Decoder:
    """Builds the KV strategy over an executor.

    Args:
        method: the method's settings.
        executor: with a river where the method needs one, bound to the criterion.
        cache: the executor's cache.
        ranking: all layers, the most useful at 16 bits first; only `static_ranked` needs it.

    Raises:
        UserError: settings outside the model, or depth 0 for a method without a river.
    """
    layers = executor.num_layers
    match method:
        case NoExitConfig():
            return NoExit(executor, cache)
        case FullQuantConfig():
            return FullQuant(executor, cache)
        case RiverConfig(prefill=prefill, pool=pool):
            return River(executor, cache, prefill, pool)
        case RiverShuffledConfig():
            return River(executor, cache)
        case MaskConfig():
            return Mask(executor, cache)
        case StatePropagationConfig():
            return StatePropagation(executor, cache)
        case RecomputeConfig(max_pending=most, restart=restart):
            if most is not None and most < 1:
                raise UserError(f"method.max_pending={most}: a block holds 1 token or more")
            return Recompute(executor, cache, most, restart)
        case MonoDecreasingConfig(form="cap"):
            return MonoDecreasingCap(executor, cache)
        case MonoDecreasingConfig():
            return MonoDecreasingSchedule(executor, cache, _schedule(method, layers))
        case QuantDecodeConfig():
            return Static(executor, cache, ())
        case StaticFirstConfig(k=k):
            return Static(executor, cache, range(_count(k, layers)))
        case StaticLastConfig(k=k):
            return Static(executor, cache, range(layers - _count(k, layers), layers))
        case StaticRankedConfig(k=k):
            if sorted(ranking) != list(range(layers)):
                raise TypeError(f"static_ranked needs a ranking of all {layers} layers")
            return Static(executor, cache, ranking[: _count(k, layers)])


def _count(k: int, layers: int) -> int:
    if not 0 <= k <= layers:
        raise UserError(f"method.k={k}: this model has {layers} layers; give 0 to {layers}")
    return k


def _schedule(method: MonoDecreasingConfig, layers: int) -> Schedule:
    most = layers if method.most is None else method.most
    if not 1 <= method.fewest <= most <= layers:
        raise UserError(
            f"method.fewest={method.fewest} and method.most={most}: 1 <= fewest <= most <= {layers}"
        )
    if method.length < 1 or not 0 <= method.warm_up <= method.fewest:
        raise UserError(
            f"method.length={method.length} and method.warm_up={method.warm_up}: give a length of "
            f"1 or more and a warm-up of 0 to {method.fewest} (method.fewest) layers"
        )
    return Schedule(most, method.fewest, method.length, method.warm_up, method.place)
