"""The river: the backbone's layers with quantized linears, everything else shared."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import torch
from torch import nn

from river_llm.config import NoQuantConfig, QuantConfig
from river_llm.models.adapter import BackboneAdapter
from river_llm.quant.kernels import kernel_linear, kernel_obstacle, tell_no_kernel
from river_llm.quant.linear import Backend, KernelLinear, dense_linear
from river_llm.quant.store import LayerWeights, quantized_layers


class RiverLayers:
    """The stack of exit layers; norms and rotary tables are the backbone's own modules.

    Args:
        layers: L decoder layers with other linears.
        backends: for each layer, the backend of each linear by name.
        wide: for each layer, the same layer over the shared scratch linears; None where the
            layers themselves serve wide steps.
        wide_step: tokens from which a step goes through `wide`.

    Attributes:
        backends, wide_step: as given.
    """

    def __init__(
        self,
        layers: list[nn.Module],
        backends: list[dict[str, Backend]],
        wide: list[nn.Module] | None = None,
        wide_step: int = 0,
    ) -> None:
        self._layers = layers
        self._wide = wide
        self.backends = backends
        self.wide_step = wide_step

    def acquire(self, layer: int, tokens: int) -> nn.Module:
        """The layer, ready for a step of `tokens` tokens; valid until the next acquire.

        A wide step gets the layer over scratch linears, filled here with its weights.
        """
        if self._wide is None or tokens < self.wide_step:
            return self._layers[layer]
        scratch = dict(self._wide[layer].named_modules())
        for name, module in self._layers[layer].named_modules():
            if isinstance(module, KernelLinear):
                module.dequantize_into(scratch[name].weight)
        return self._wide[layer]

    def linear_nbytes(self) -> int:
        """Bytes of the river's own weights in the storage they really have, biases aside."""
        return sum(self.layer_nbytes(layer) for layer in range(len(self._layers)))

    def layer_nbytes(self, layer: int) -> int:
        """Bytes of one layer's own weights, which a decode step through it reads."""
        total = 0
        for module in self._layers[layer].modules():
            if isinstance(module, KernelLinear):
                total += module.nbytes
            elif isinstance(module, nn.Linear):
                total += module.weight.nbytes
        return total

    def scratch_nbytes(self) -> int:
        """Bytes of the shared scratch linears that wide steps go through."""
        if self._wide is None:
            return 0
        linears = (m for m in self._wide[0].modules() if isinstance(m, nn.Linear))
        return sum(linear.weight.nbytes for linear in linears)

    def backend_counts(self) -> dict[str, int]:
        """How many linears run on each backend."""
        return dict(Counter(b for layer in self.backends for b in layer.values()))


def build_river(
    adapter: BackboneAdapter,
    config: QuantConfig,
    fingerprint: str | None,
    *,
    cache: Path | None = None,
    kernels: bool = True,
) -> RiverLayers:
    """Builds the river of a backbone.

    Args:
        adapter: the backbone; not changed.
        config: quantizer with its settings, or no quantization (copied linears).
        fingerprint: hash of the backbone's weights, key of the packed weights on disk; None: the
            packed weights are not kept there.
        cache: root of the cache; None: the user's.
        kernels: False: dequantized copies everywhere (the numerics oracle).

    Raises:
        UserError: a linear that cannot be quantized.
    """
    if isinstance(config, NoQuantConfig):
        return _copied(adapter)
    weights = quantized_layers(adapter, config, fingerprint, cache)
    first = next(weights)
    weights = chain([first], weights)
    obstacle = _obstacle(adapter, first) if kernels else "dequantized on request"
    if obstacle is not None:
        if kernels:
            tell_no_kernel(config, obstacle, "the river")
        return _dequantized(adapter, weights)
    return _packed(adapter, weights)


def _obstacle(adapter: BackboneAdapter, layer: LayerWeights) -> str | None:
    """First reason against the kernel; one backend for the whole river keeps timings clear.

    Every layer of a known architecture has the same shapes, so one speaks for all.
    """
    for weight in layer.values():
        reason = kernel_obstacle(weight, adapter.dtype, adapter.device)
        if reason is not None:
            return reason
    return None


def _packed(adapter: BackboneAdapter, weights: Iterator[LayerWeights]) -> RiverLayers:
    # The same shapes in every layer: one scratch matrix a name.
    scratch = {name: torch.empty_like(m.weight) for name, m in adapter.linears(0).items()}

    def packed(layer: int, quantized: LayerWeights) -> Callable[[str], nn.Module]:
        linears = adapter.linears(layer)
        return lambda name: kernel_linear(quantized[name], linears[name].bias)

    def over_scratch(layer: int) -> Callable[[str], nn.Module]:
        linears = adapter.linears(layer)
        return lambda name: dense_linear(scratch[name], linears[name].bias)

    layers = [adapter.rebuild_layer(n, packed(n, layer)) for n, layer in enumerate(weights)]
    wide = [adapter.rebuild_layer(n, over_scratch(n)) for n in range(adapter.num_layers)]
    # One kind of weight in the whole river, so one kernel.
    kernel = next(m for m in layers[0].modules() if isinstance(m, KernelLinear))
    return RiverLayers(layers, _same_backend(adapter, kernel.backend), wide, kernel.wide_step)


def _dequantized(adapter: BackboneAdapter, weights: Iterator[LayerWeights]) -> RiverLayers:
    def dense(layer: int, quantized: LayerWeights) -> Callable[[str], nn.Module]:
        linears = adapter.linears(layer)
        return lambda name: dense_linear(
            quantized[name].dequantize(adapter.dtype), linears[name].bias
        )

    layers = [adapter.rebuild_layer(n, dense(n, layer)) for n, layer in enumerate(weights)]
    return RiverLayers(layers, _same_backend(adapter, "dequantized"))


def _copied(adapter: BackboneAdapter) -> RiverLayers:
    def copied(layer: int) -> Callable[[str], nn.Module]:
        linears = adapter.linears(layer)
        return lambda name: copy.deepcopy(linears[name])

    layers = [adapter.rebuild_layer(n, copied(n)) for n in range(adapter.num_layers)]
    return RiverLayers(layers, _same_backend(adapter, "copied"))


def _same_backend(adapter: BackboneAdapter, backend: Backend) -> list[dict[str, Backend]]:
    return [dict.fromkeys(adapter.linears(n), backend) for n in range(adapter.num_layers)]
