"""Quantized weights of a whole backbone: made once with progress, kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from river_llm.artifacts import ensure_folder
from river_llm.config import HqqInt4Config, NoQuantConfig, QuantConfig
from river_llm.models.adapter import BackboneAdapter
from river_llm.paths import cache_root
from river_llm.quant import hqq, rtn
from river_llm.quant.grid import GroupedInt4, split_groups

FORMAT = 1
"""Raised when codes or file layout change."""

_WEIGHTS = "codes.safetensors"

LayerWeights = dict[str, GroupedInt4]
"""Quantized linears of one layer, by their name inside it."""


def quant_record(config: QuantConfig) -> dict[str, Any]:
    """The quantizer and all its settings, as plain data for records."""
    if isinstance(config, NoQuantConfig):
        return asdict(config)
    settings = hqq.SETTINGS if isinstance(config, HqqInt4Config) else rtn.SETTINGS
    return {**asdict(config), **settings}


def quantized_layers(
    adapter: BackboneAdapter,
    config: QuantConfig,
    fingerprint: str,
    cache: Path | None = None,
) -> list[LayerWeights]:
    """The quantized linears of every backbone layer, from disk where they are there.

    Args:
        adapter: the backbone.
        config: quantizer and group size.
        fingerprint: hash of the backbone's weights.
        cache: root of the cache; None: :func:`river_llm.paths.cache_root`.

    Raises:
        UserError: a linear that cannot be quantized (its name, width and the group size).
    """
    if isinstance(config, NoQuantConfig):
        raise TypeError("quant=none has no quantized weights")
    origin = {"format": FORMAT, "backbone": fingerprint, "quant": quant_record(config)}
    key = hashlib.sha256(repr(sorted(origin.items())).encode()).hexdigest()[:16]
    root = cache_root() if cache is None else cache
    # Refused before anything is written: every width is known.
    for name, weight in _named_weights(adapter):
        split_groups(weight[:1], config.group_size, name)

    def make(folder: Path) -> None:
        quantize = hqq.quantize if isinstance(config, HqqInt4Config) else rtn.quantize
        _write(folder / _WEIGHTS, adapter, config.group_size, quantize)

    folder = ensure_folder(root / "rivers" / key, origin, frozenset({_WEIGHTS}), make)
    return _load(folder / _WEIGHTS, adapter)


def _named_weights(adapter: BackboneAdapter) -> Iterator[tuple[str, torch.Tensor]]:
    for layer in range(adapter.num_layers):
        for name, linear in adapter.linears(layer).items():
            yield f"{layer}.{name}", linear.weight


def _write(
    path: Path,
    adapter: BackboneAdapter,
    group_size: int,
    quantize: Callable[[torch.Tensor], GroupedInt4],
) -> None:
    tensors: dict[str, torch.Tensor] = {}
    named = list(_named_weights(adapter))
    with torch.no_grad():
        for name, weight in tqdm(named, desc="quantizing the river", unit="linear"):
            quantized = quantize(split_groups(weight, group_size, name))
            codes = quantized.codes.cpu()
            # Two codes a byte, even columns low.
            tensors[f"{name}.codes"] = codes[:, ::2] | codes[:, 1::2] << 4
            tensors[f"{name}.scale"] = quantized.scale.cpu()
            tensors[f"{name}.zero"] = quantized.zero.cpu()
    save_file(tensors, path)


def _load(path: Path, adapter: BackboneAdapter) -> list[LayerWeights]:
    tensors = load_file(path, device=str(adapter.device))
    layers: list[LayerWeights] = [{} for _ in range(adapter.num_layers)]
    for layer in range(adapter.num_layers):
        for name in adapter.linears(layer):
            halves = tensors[f"{layer}.{name}.codes"]
            codes = torch.stack((halves & 15, halves >> 4), dim=-1).flatten(1)
            layers[layer][name] = GroupedInt4(
                codes, tensors[f"{layer}.{name}.scale"], tensors[f"{layer}.{name}.zero"]
            )
    return layers
