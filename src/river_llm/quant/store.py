"""Quantized weights of a whole backbone: made once with progress, kept on disk.

They come layer by layer, so that a caller that packs each one holds no unpacked copy of the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
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
    fingerprint: str | None,
    cache: Path | None = None,
) -> Iterator[LayerWeights]:
    """The quantized linears of every backbone layer in order, from disk where they are there.

    Args:
        adapter: the backbone.
        config: the quantizer with its settings.
        fingerprint: hash of the backbone's weights; None: they are not kept on disk, and each
            layer is quantized when it is asked for.
        cache: root of the cache; None: :func:`river_llm.paths.cache_root`.

    Raises:
        UserError: a linear that cannot be quantized (its name, width and the group size).
    """
    # Refused before anything is written: every width is known.
    for name, weight in _named_weights(adapter):
        check_width(config, weight, name)
    if fingerprint is None:
        return _made(adapter, config)
    origin = {"format": FORMAT, "backbone": fingerprint, "quant": quant_record(config)}
    key = hashlib.sha256(repr(sorted(origin.items())).encode()).hexdigest()[:16]
    root = cache_root() if cache is None else cache

    def make(folder: Path) -> None:
        _write(folder / _WEIGHTS, adapter, config)

    folder = ensure_folder(root / "rivers" / key, origin, frozenset({_WEIGHTS}), make)
    return _load(folder / _WEIGHTS, adapter, config)


def _made(adapter: BackboneAdapter, config: Quantizer) -> Iterator[LayerWeights]:
    layers = range(adapter.num_layers)
    for layer in tqdm(layers, desc="quantizing the river", unit="layer"):
        with torch.no_grad():
            yield {
                name: quantize(config, linear.weight, f"{layer}.{name}")
                for name, linear in adapter.linears(layer).items()
            }


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


def _load(path: Path, adapter: BackboneAdapter, config: Quantizer) -> Iterator[LayerWeights]:
    with safe_open(path, framework="pt", device=str(adapter.device)) as file:
        stored: dict[str, dict[str, str]] = {}
        for key in file.keys():  # noqa: SIM118, the file is no dict
            name, part = key.rsplit(".", 1)
            stored.setdefault(name, {})[part] = key
        for layer in range(adapter.num_layers):
            yield {
                name: weight_type(config).from_stored(
                    {part: file.get_tensor(k) for part, k in stored[f"{layer}.{name}"].items()}
                )
                for name in adapter.linears(layer)
            }
