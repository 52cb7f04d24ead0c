"""A loaded backbone with its rivers, and the decoders built on them."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

from river_llm.cache import SlotCache
from river_llm.config import (
    FullQuantConfig,
    HeadBits,
    ModelConfig,
    QuantConfig,
    ResolvedEngine,
    RiverShuffledConfig,
    RunConfig,
    StaticRankedConfig,
)
from river_llm.decoding import Decoder
from river_llm.engine.build import build_executor, resolve_engine
from river_llm.engine.offload import OffloadedLayers, engine_for_offload, offload_layers
from river_llm.engine.weights import Layers, ResidentLayers
from river_llm.errors import UserError
from river_llm.evaluation.criteria import Depths, build_criterion
from river_llm.evaluation.methods import build_decoder
from river_llm.evaluation.ranking import rank_layers
from river_llm.exits import Criterion, Never
from river_llm.models.head import Head
from river_llm.models.loading import LoadedModel, load_model
from river_llm.quant.footprint import check_room, footprint
from river_llm.quant.head import build_head
from river_llm.quant.river import RiverLayers, build_river

_kept: dict[ModelConfig, Runtime] = {}
"""The last model that :meth:`Runtime.shared` gave."""


class Runtime:
    """What several runs on one model share: its weights, and the river of one quantizer.

    Args:
        model: the loaded backbone.
    """

    def __init__(self, model: LoadedModel) -> None:
        # What is loaded stays: Python's collector need not look through it between steps.
        gc.collect()
        gc.freeze()
        self.model = model
        self.adapter = model.adapter
        self._rivers: dict[QuantConfig, RiverLayers] = {}
        self._heads: dict[HeadBits, Head] = {}
        self._offloaded: dict[int, OffloadedLayers] = {}

    @classmethod
    def load(cls, config: RunConfig) -> Runtime:
        """Loads the model that a run asks for.

        Raises:
            UserError: it cannot be loaded, or does not fit into memory with the run's river.
        """
        return cls(load_model(config.model, config.quant if config.method.needs_river else None))

    @classmethod
    def shared(cls, config: RunConfig) -> Runtime:
        """The model of the last call, kept for as long as runs in a row ask for the same."""
        if config.model not in _kept:
            # The model before leaves memory first: two may not fit.
            _kept.clear()
            _kept[config.model] = cls.load(config)
        return _kept[config.model]

    def river(self, config: QuantConfig) -> RiverLayers:
        """The river of a quantizer; the last one is kept, two would fill memory for nothing."""
        # The head is no part of it.
        config = replace(config, head="none")
        if config not in self._rivers:
            stored_as = self.model.fingerprint if self.model.keep_packed else None
            # The one before leaves memory first: two may not fit.
            self._rivers = {}
            self._check_room(config)
            self._rivers = {config: build_river(self.adapter, config, stored_as)}
        return self._rivers[config]

    def _check_room(self, config: QuantConfig) -> None:
        """Refuses a river for which the backbone, which is there, leaves no room."""
        adapter = self.adapter
        need = footprint(adapter.model.config, adapter.dtype, adapter.device, config)
        check_room(replace(need, backbone=0), adapter.device, f"quant={config.name}")

    def head(self, config: QuantConfig) -> Head:
        """Final norm and LM head at the bits that every arm of these settings has."""
        if config.head not in self._heads:
            self._heads[config.head] = build_head(self.adapter, config.head)
        return self._heads[config.head]

    def river_of(self, config: RunConfig) -> RiverLayers | None:
        """The river that a run's method needs; None: it needs none."""
        return self.river(config.quant) if config.method.needs_river else None

    def offloaded(self, config: RunConfig) -> OffloadedLayers | None:
        """The backbone of a run that keeps part of it out of device memory; None: it does not.

        The model itself keeps all layers in this process, since no_exit runs them.
        """
        first = config.offload.after
        method = config.method
        if first is None or not method.needs_river or isinstance(method, FullQuantConfig):
            return None
        if not isinstance(first, int):
            raise TypeError(f"offload.after={first} is not resolved yet")
        if first not in self._offloaded:
            stored_as = self.model.fingerprint if self.model.keep_packed else None
            self._offloaded = {}
            self._offloaded = {first: offload_layers(self.adapter, first, stored_as)}
        return self._offloaded[first]

    def _backbone(self, config: RunConfig) -> Layers:
        return self.offloaded(config) or ResidentLayers(self.adapter.layers)

    def with_engine(self, config: RunConfig) -> RunConfig:
        """The settings with `engine=auto` by its outcome, which is what identities count.

        Raises:
            UserError: the engine cannot serve this model here.
        """
        if config.offload.after is not None:
            asked = engine_for_offload(config.engine, self.adapter.device)
            config = replace(config, engine=asked)
        return replace(config, engine=self._engine(config))

    def _engine(self, config: RunConfig) -> ResolvedEngine:
        return resolve_engine(
            config.engine,
            self.adapter,
            ResidentLayers(self.adapter.layers),
            self.river_of(config),
            self.head(config.quant),
        )

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
        executor = build_executor(
            self._engine(config),
            adapter,
            cache,
            criterion,
            self._backbone(config),
            self.river_of(config),
            self.head(config.quant),
        )
        ranked = isinstance(config.method, StaticRankedConfig)
        ranking = rank_layers(self, config) if ranked else ()
        return build_decoder(config.method, executor, cache, ranking)

    def criterion(self, config: RunConfig, depths: Depths | None) -> Criterion:
        """The exit criterion of a run.

        Args:
            config: the run.
            depths: recorded depths for `replay`.

        Raises:
            UserError: a depth outside the model.
        """
        layers = self.adapter.num_layers
        if not config.method.exits:
            return Never(layers)
        # Shuffled depths give another text, which may be longer than the record.
        cycle = isinstance(config.method, RiverShuffledConfig)
        criterion = build_criterion(config.criterion, layers, depths, cycle)
        if config.offload.on_miss == "exit_at_k" and isinstance(config.offload.after, int):
            if config.offload.after < criterion.min_depth:
                raise UserError(
                    f"offload.after={config.offload.after} with offload.on_miss=exit_at_k is below "
                    f"criterion.min_depth={criterion.min_depth}"
                )
            criterion.max_depth = min(criterion.max_depth, config.offload.after)
        return criterion

    def memory(self, config: RunConfig, decoder: Decoder) -> dict[str, Any]:
        """Bytes of the real storage of each part that the run's method uses."""
        offloaded = self.offloaded(config)
        resident = self.adapter.num_layers if offloaded is None else offloaded.first
        backbone = sum(
            linear.weight.nbytes
            for layer in range(resident)
            for linear in self.adapter.linears(layer).values()
        )
        river = self.river_of(config)
        head = self.head(config.quant)
        quantized = head is not self.adapter.head
        return {
            "backbone_bytes": 0 if isinstance(config.method, FullQuantConfig) else backbone,
            "staging_bytes": 0 if offloaded is None else offloaded.staging_nbytes,
            "river_bytes": 0 if river is None else river.linear_nbytes(),
            "scratch_bytes": 0 if river is None else river.scratch_nbytes(),
            "shared_bytes": self.adapter.shared_nbytes()
            - (self.adapter.untied_head_nbytes() if quantized else 0),
            "head_bytes": head.linear_nbytes if quantized else 0,
            "kv_bytes": decoder.cache.nbytes,
        }
