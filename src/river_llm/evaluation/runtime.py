"""A loaded backbone with its rivers, and the decoders built on them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from river_llm.cache import SlotCache
from river_llm.config import (
    CriterionConfig,
    FixedConfig,
    FullQuantConfig,
    NeverConfig,
    NoExitConfig,
    QuantConfig,
    ReplayConfig,
    RiverConfig,
    RunConfig,
    SimilarityConfig,
)
from river_llm.decoding import Decoder, FullQuant, NoExit, River
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.weights import ResidentLayers
from river_llm.errors import UserError
from river_llm.exits import Criterion, Fixed, Never, Replay, Similarity
from river_llm.models.loading import LoadedModel, load_model
from river_llm.quant.river import RiverLayers, build_river
from river_llm.records import RunFolder

Depths = Mapping[str, tuple[int, Sequence[int]]]


class Runtime:
    """What several runs on one model share: weights, and a river for each quantizer.

    Args:
        model: the loaded backbone.
    """

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.adapter = model.adapter
        self._rivers: dict[QuantConfig, RiverLayers] = {}

    @classmethod
    def load(cls, config: RunConfig) -> Runtime:
        """Loads the model that a run asks for."""
        return cls(load_model(config.model))

    def river(self, config: QuantConfig) -> RiverLayers:
        """The river of a quantizer, built at the first call."""
        if config not in self._rivers:
            self._rivers[config] = build_river(self.adapter, config, self.model.fingerprint)
        return self._rivers[config]

    def river_of(self, config: RunConfig) -> RiverLayers | None:
        """The river that a run's method needs; None: it needs none."""
        return None if isinstance(config.method, NoExitConfig) else self.river(config.quant)

    def decoder(self, config: RunConfig, criterion: Criterion, slots: int) -> Decoder:
        """The decoder of a run, for one sequence of up to `slots` tokens."""
        adapter = self.adapter
        cache = SlotCache(
            adapter.num_layers,
            1,
            adapter.kv_heads,
            slots,
            adapter.head_dim,
            adapter.dtype,
            adapter.device,
        )
        executor = EagerExecutor(
            adapter, cache, criterion, ResidentLayers(adapter.layers), self.river_of(config)
        )
        match config.method:
            case NoExitConfig():
                return NoExit(executor, cache)
            case FullQuantConfig():
                return FullQuant(executor, cache)
            case RiverConfig(prefill=prefill, pool=pool):
                return River(executor, cache, prefill, pool)

    def criterion(self, config: RunConfig, depths: Depths | None) -> Criterion:
        """The exit criterion of a run.

        Args:
            config: the run.
            depths: recorded depths for `replay`.

        Raises:
            UserError: a depth outside the model.
        """
        layers = self.adapter.num_layers
        if not isinstance(config.method, RiverConfig):
            return Never(layers)
        return build_criterion(config.criterion, layers, depths)

    def memory(self, config: RunConfig, decoder: Decoder) -> dict[str, Any]:
        """Bytes of the real storage of each part that the run's method uses."""
        backbone = sum(
            linear.weight.nbytes
            for layer in range(self.adapter.num_layers)
            for linear in self.adapter.linears(layer).values()
        )
        river = self.river_of(config)
        return {
            "backbone_bytes": 0 if isinstance(config.method, FullQuantConfig) else backbone,
            "river_bytes": 0 if river is None else river.linear_nbytes(),
            "scratch_bytes": 0 if river is None else river.scratch_nbytes(),
            "shared_bytes": self.adapter.shared_nbytes(),
            "kv_bytes": decoder.cache.nbytes,
        }


def build_criterion(config: CriterionConfig, layers: int, depths: Depths | None) -> Criterion:
    """The criterion of a configuration for a model of `layers` layers.

    Raises:
        UserError: a depth outside the model.
    """
    match config:
        case SimilarityConfig(tau=tau, min_depth=lowest, max_depth=deepest):
            if not 1 <= lowest < layers:
                raise UserError(
                    f"criterion.min_depth={lowest}: scores are tested at depths 1 to {layers - 1}"
                )
            if deepest is not None and deepest < lowest:
                raise UserError(
                    f"criterion.max_depth={deepest} is below criterion.min_depth={lowest}"
                )
            return Similarity(layers, tau, lowest, deepest)
        case FixedConfig(depth=depth):
            if not 0 <= depth <= layers:
                raise UserError(f"criterion.depth={depth}: this model has depths 0 to {layers}")
            return Fixed(layers, depth)
        case NeverConfig():
            return Never(layers)
        case ReplayConfig(from_run=source):
            if depths is None:
                raise TypeError("replay needs recorded depths")
            return Replay(layers, depths, source)


def recorded_depths(config: RunConfig) -> Depths | None:
    """The depths that `criterion=replay` names; None for every other criterion.

    Raises:
        UserError: the run folder holds no samples.
    """
    if not (isinstance(config.method, RiverConfig) and isinstance(config.criterion, ReplayConfig)):
        return None
    source = config.criterion.from_run
    records = RunFolder(Path(source)).samples()
    if not records:
        raise UserError(f"criterion.from_run={source} holds no samples: give a run's folder")
    return {r.id: (r.prefill_depth, r.exit_depths) for r in records}


def depths_fingerprint(depths: Depths) -> str:
    """Hash of recorded depths, for the run identity."""
    content = json.dumps({key: [p, list(d)] for key, (p, d) in depths.items()}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
