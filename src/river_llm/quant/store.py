"""Quantized weights of a whole backbone: made once with progress, kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from river_llm.artifacts import ensure_folder
from river_llm.models.adapter import BackboneAdapter
from river_llm.paths import cache_root
from river_llm.quant.quantizers import (
    QuantizedWeight,
    Quantizer,
    check_width,
    quant_record,
    quantize,
    weight_type,
)

FORMAT = 1
"""Raised when codes or file layout change."""

_WEIGHTS = "codes.safetensors"

LayerWeights = dict[str, QuantizedWeight]
"""Quantized linears of one layer, by their name inside it."""


def quantized_layers(
    adapter: BackboneAdapter,
    config: Quantizer,
    fingerprint: str,
    cache: Path | None = None,
) -> list[LayerWeights]:
    """The quantized linears of every backbone layer, from disk where they are there.

    Args:
        adapter: the backbone.
        config: the quantizer with its settings.
        fingerprint: hash of the backbone's weights.
        cache: root of the cache; None: :func:`river_llm.paths.cache_root`.

    Raises:
        UserError: a linear that cannot be quantized (its name, width and the group size).
    """
    origin = {"format": FORMAT, "backbone": fingerprint, "quant": quant_record(config)}
    key = hashlib.sha256(repr(sorted(origin.items())).encode()).hexdigest()[:16]
    root = cache_root() if cache is None else cache
    # Refused before anything is written: every width is known.
    for name, weight in _named_weights(adapter):
        check_width(config, weight, name)

    def make(folder: Path) -> None:
        _write(folder / _WEIGHTS, adapter, config)

    folder = ensure_folder(root / "rivers" / key, origin, frozenset({_WEIGHTS}), make)
    return _load(folder / _WEIGHTS, adapter, config)


def _named_weights(adapter: BackboneAdapter) -> Iterator[tuple[str, torch.Tensor]]:
    for layer in range(adapter.num_layers):
        for name, linear in adapter.linears(layer).items():
            yield f"{layer}.{name}", linear.weight


def _write(path: Path, adapter: BackboneAdapter, config: Quantizer) -> None:
    tensors: dict[str, torch.Tensor] = {}
    named = list(_named_weights(adapter))
    with torch.no_grad():
        for name, weight in tqdm(named, desc="quantizing the river", unit="linear"):
            for part, tensor in quantize(config, weight, name).stored().items():
                tensors[f"{name}.{part}"] = tensor.cpu()
    save_file(tensors, path)


def _load(path: Path, adapter: BackboneAdapter, config: Quantizer) -> list[LayerWeights]:
    stored: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(path, device=str(adapter.device)).items():
        name, part = key.rsplit(".", 1)
        stored.setdefault(name, {})[part] = tensor
    return [
        {
            name: weight_type(config).from_stored(stored[f"{layer}.{name}"])
            for name in adapter.linears(layer)
        }
        for layer in range(adapter.num_layers)
    ]
