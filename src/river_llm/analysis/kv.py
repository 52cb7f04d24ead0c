"""The record of `scripts/analyze_kv.py`: similarity by layer, entries, early against last.

Whose entries are compared with the backbone's: those that each river layer leaves when it is fed
with the backbone's own state (`layer_alone`), those of a river run at a planned exit depth
(`river`), those of a run without any backbone layer (`full_quant`), and, to know what a cosine of
unrelated entries is, the backbone's own of the token before (`other_token`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd

from river_llm.analysis.correlation import pearson
from river_llm.analysis.points import Estimate
from river_llm.errors import UserError

LAYER_ALONE, FULL_QUANT, RIVER = "layer_alone", "full_quant", "river"
OTHER_TOKEN = "other_token"
SUMMARY, LAYERS, ENTRIES = "summary.json", "layers.parquet", "entries.parquet"
ARM = ["arm", "depth", "prefill"]
TOKEN = ["id", "step"]


@dataclass(frozen=True)
class KVRecord:
    """What `scripts/analyze_kv.py` left in a folder.

    Attributes:
        summary: content of summary.json.
        layers: per token and layer: id, step, layer, similarity.
        entries: per arm, token and layer: arm, depth, prefill, id, step, layer, key_cosine,
            value_cosine.
    """

    summary: dict[str, Any]
    layers: pd.DataFrame
    entries: pd.DataFrame


def read_kv(folder: str | Path) -> KVRecord:
    """Reads a record back.

    Raises:
        UserError: a file that is not there or cannot be read.
    """
    path = Path(folder)
    try:
        summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
        return KVRecord(summary, *(pd.read_parquet(path / name) for name in (LAYERS, ENTRIES)))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} holds no readable record of KV similarity ({error}): "
            "run scripts/analyze_kv.py first"
        ) from error


def similarity_profile(layers: pd.DataFrame) -> pd.DataFrame:
    """State transition similarity by layer.

    Args:
        layers: see :class:`KVRecord`.

    Returns:
        One row per layer: layer, mean, and low and high, between which 80 % of tokens lie.
    """
    by_layer = layers.groupby("layer")["similarity"]
    return pd.DataFrame(
        {"mean": by_layer.mean(), "low": by_layer.quantile(0.1), "high": by_layer.quantile(0.9)}
    ).reset_index()


def entry_profiles(entries: pd.DataFrame) -> pd.DataFrame:
    """Mean cosine of river and backbone entries by arm and layer.

    Args:
        entries: see :class:`KVRecord`.

    Returns:
        One row per arm and layer: arm, depth, prefill, layer, key_cosine, value_cosine.
    """
    return entries.groupby([*ARM, "layer"], sort=False, as_index=False).mean(numeric_only=True)[
        [*ARM, "layer", "key_cosine", "value_cosine"]
    ]


def early_against_last(
    record_layers: pd.DataFrame,
    entries: pd.DataFrame,
    depth: int,
    prefill: str,
    block: int | None = None,
) -> pd.DataFrame:
    """Early similarity of each token beside what becomes of its last layer's value.

    Args:
        record_layers: see :class:`KVRecord`.
        entries: the same.
        depth: exit depth of the river run, 1..L-1.
        prefill: of that run.
        block: whose similarity; None: `depth - 1`, the one that is tested for an exit at `depth`.

    Returns:
        One row per token: id, step, early (state transition similarity of the block), last
        (cosine of river and backbone value entry in the last layer).

    Raises:
        UserError: the record holds no such run or block.
    """
    tested = depth - 1 if block is None else block
    early = record_layers[record_layers["layer"] == tested]
    top = entries["layer"].max()
    chosen = (
        (entries["arm"] == RIVER)
        & (entries["depth"] == depth)
        & (entries["prefill"] == prefill)
        & (entries["layer"] == top)
    )
    if early.empty or not chosen.any():
        raise UserError(
            f"the record has no river run at exit depth {depth} with prefill {prefill} and block "
            f"{tested}: run scripts/analyze_kv.py with this depth among --depths"
        )
    pairs = early.merge(entries[chosen], on=TOKEN, validate="one_to_one")
    names = {"similarity": "early", "value_cosine": "last"}
    return pairs.rename(columns=names)[[*TOKEN, "early", "last"]]


def correlation(pairs: pd.DataFrame) -> Estimate:
    """Pearson's r of early and last with its 95 % bootstrap interval over texts.

    Args:
        pairs: see :func:`early_against_last`.
    """
    return pearson(pairs["early"].to_numpy(), pairs["last"].to_numpy(), pairs["id"].to_numpy())


def exit_depths(entries: pd.DataFrame, layers: int) -> list[int]:
    """Exit depths of the record's river runs that end the backbone after a test, ascending."""
    depths = entries.loc[entries["arm"] == RIVER, "depth"].unique()
    return sorted(int(depth) for depth in depths if 0 < depth < layers)


def summarize_kv(layers: pd.DataFrame, entries: pd.DataFrame) -> dict[str, Any]:
    """The figures of summary.json.

    Args:
        layers, entries: see :class:`KVRecord`.

    Returns:
        samples, steps, layers; similarity (mean by layer); entries (per arm: arm, depth, prefill,
        key_cosine and value_cosine by layer); early_last (per river run that exits after a test:
        depth, prefill, block, r, low, high).
    """
    count = int(layers["layer"].max()) + 1
    profiles = entry_profiles(entries)
    arms: list[dict[str, Any]] = []
    for key, rows in profiles.groupby(ARM, sort=False):
        arm, depth, prefill = cast(tuple[str, int, str], key)
        named = {"arm": arm, "depth": int(depth), "prefill": prefill}
        arms.append(
            {**named, **{name: _figures(rows[name]) for name in ("key_cosine", "value_cosine")}}
        )
    early_last = []
    for depth in exit_depths(entries, count):
        for prefill in ("backbone", "sequence"):
            r, low, high = correlation(early_against_last(layers, entries, depth, prefill))
            head = {"depth": depth, "prefill": prefill, "block": depth - 1}
            early_last.append({**head, "r": r, "low": low, "high": high})
    return {
        "samples": int(layers["id"].nunique()),
        "steps": len(layers) // count,
        "layers": count,
        "similarity": _figures(similarity_profile(layers)["mean"]),
        "entries": arms,
        "early_last": early_last,
    }


def _figures(column: Iterable[float]) -> list[float]:
    return [float(value) for value in column]
