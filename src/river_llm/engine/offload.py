"""Backbone layers that are out of device memory until a token needs one (paper, offloading)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from river_llm.config import AutoConfig, EagerConfig, EngineConfig
from river_llm.engine.layer_links import (
    Layout,
    Link,
    MappedLink,
    PinnedLink,
    open_layers,
    pinned_layers,
)
from river_llm.errors import UserError
from river_llm.models.adapter import BackboneAdapter
from river_llm.quant.linear import dense_linear

STAGING = 2
"""Staging layers: one that is computed with, and one for the next."""


class Fetches(NamedTuple):
    """Counts since the stack was built.

    Attributes:
        needed: how often a pass came to an offloaded layer.
        layers: copies into a staging layer, prefetched ones that were not needed included.
    """

    needed: int
    layers: int


class OffloadedLayers:
    """The backbone with layers 0..`first`-1 in memory and the others in two staging layers.

    Layer n goes through staging layer n mod 2, and stays there until n + 2, or another of its
    parity, is needed. When a pass comes to an offloaded layer, the one behind it is prefetched
    into the other staging layer. Norms and biases are few bytes, which the river needs too: they
    stay. Every layer has a module of its own over its staging layer, whose addresses never change.

    Args:
        resident: decoder layers 0..first-1.
        staged: the others, in order, over the staging layers.
        link: how layers come.
        layer_nbytes: of a staging layer.

    Attributes:
        first: index of the first offloaded layer.
        layer_nbytes: as given.
    """

    def __init__(
        self,
        resident: Sequence[nn.Module],
        staged: Sequence[nn.Module],
        link: Link,
        layer_nbytes: int,
    ) -> None:
        self.first = len(resident)
        self.layer_nbytes = layer_nbytes
        self._layers = [*resident, *staged]
        self._link = link
        self._holds: list[int | None] = [None] * STAGING
        self._needed = 0
        self._fetched = 0
        for layer in range(self.first, len(self._layers)):
            self._layers[layer].register_forward_pre_hook(self._guard(layer))

    def acquire(self, layer: int, tokens: int) -> nn.Module:
        """The layer, ready for a step; an offloaded one is valid until the next acquire.

        Raises:
            RuntimeError: (from the layer, when it is called) another layer has taken its place.
        """
        if layer >= self.first:
            self._needed += 1
            slot = layer % STAGING
            if self._holds[slot] != layer:
                self._link.fill(layer, slot)
                self._filled(layer)
            self._link.wait(slot)
            self._prefetch(layer + 1)
        return self._layers[layer]

    def _prefetch(self, layer: int) -> None:
        slot = layer % STAGING
        wanted = layer < len(self._layers) and self._holds[slot] != layer
        if wanted and self._link.prefetch(layer, slot):
            self._filled(layer)

    def _filled(self, layer: int) -> None:
        self._holds[layer % STAGING] = layer
        self._fetched += 1

    def _guard(self, layer: int) -> Callable[[nn.Module, object], None]:
        def check(module: nn.Module, inputs: object) -> None:
            holds = self._holds[layer % STAGING]
            if holds != layer:
                raise RuntimeError(
                    f"backbone layer {layer} is used after it left memory: its staging layer "
                    f"holds layer {holds}"
                )

        return check

    @property
    def layers(self) -> list[nn.Module]:
        """All layers; those from `first` on hold whatever their staging layer holds."""
        return list(self._layers)

    @property
    def staging_nbytes(self) -> int:
        """Bytes of the staging layers."""
        return STAGING * self.layer_nbytes

    def fetches(self) -> Fetches:
        """What was needed and fetched so far."""
        return Fetches(self._needed, self._fetched)


def offload_layers(
    adapter: BackboneAdapter, first: int, fingerprint: str | None, cache: Path | None = None
) -> OffloadedLayers:
    """Keeps a backbone's linears from layer `first` on out of device memory.

    The adapter is not changed: :func:`river_llm.models.release.release_linears` frees what it
    still holds.

    Args:
        adapter: the backbone, all of its layers in memory.
        first: index of the first offloaded layer, below L.
        fingerprint: see :func:`river_llm.engine.layer_links.open_layers`.
        cache: root of the cache; None: the user's.

    Raises:
        UserError: the cache cannot be written.
    """
    layout = Layout(adapter.linears(0))
    device = adapter.device
    staging = [torch.zeros(layout.nbytes, dtype=torch.uint8, device=device) for _ in range(STAGING)]
    link: Link
    if device.type == "cuda":
        link = PinnedLink(pinned_layers(adapter, first, layout), first, staging)
    else:
        with open_layers(adapter, layout, fingerprint, cache) as file:
            link = MappedLink(file, layout, staging)
    weights = [layout.weights(stretch) for stretch in staging]

    def over_staging(layer: int) -> Callable[[str], nn.Module]:
        linears = adapter.linears(layer)
        return lambda name: dense_linear(weights[layer % STAGING][name], linears[name].bias)

    staged = [adapter.rebuild_layer(n, over_staging(n)) for n in range(first, adapter.num_layers)]
    return OffloadedLayers(adapter.layers[:first], staged, link, layout.nbytes)


def engine_for_offload(engine: EngineConfig, device: torch.device) -> EngineConfig:
    """The engine to ask for where layers are fetched: on a GPU the eager one, said aloud.

    A captured graph reads weights where they lay when it was captured, and a fetch is asked for by
    the host in the middle of a step.

    Raises:
        UserError: another engine was asked for by name, on a GPU.
    """
    if device.type != "cuda" or isinstance(engine, EagerConfig):
        return engine
    if not isinstance(engine, AutoConfig):
        raise UserError(
            f"engine={engine.name} cannot serve with offload.after on a GPU: its layers must lie "
            "in memory; use engine=eager or offload.after=null"
        )
    print(
        "river_llm: NO CAPTURED ENGINE: offload.after fetches layers in the middle of a step; "
        "layers run on the eager one, right in value but several times slower",
        file=sys.stderr,
    )
    return EagerConfig(threads=engine.threads)
