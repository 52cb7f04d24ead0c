"""The record of KV similarity: figures by hand, Pearson's r, and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from river_llm.analysis.correlation import pearson
from river_llm.analysis.kv import (
    KVRecord,
    correlation,
    early_against_last,
    entry_profiles,
    read_kv,
    similarity_profile,
    summarize_kv,
)
from river_llm.analysis.kv_plot import kv_figure
from river_llm.errors import UserError


def test_r_by_hand() -> None:
    # x and y less their means: (-1, 0, 1) and (-1, 1, 0): r = 1 / 2.
    found = pearson([1, 2, 3], [1, 3, 2], ["a", "a", "a"])
    assert found.value == pytest.approx(0.5)
    assert found.interval is None
    assert pearson([1, 2, 3], [9, 7, 5], ["a"] * 3).value == pytest.approx(-1)
    # A shift does not drown the spread.
    assert pearson([1e6 + 1, 1e6 + 2, 1e6 + 3], [1, 3, 2], ["a"] * 3).value == pytest.approx(0.5)


def test_interval_is_over_texts() -> None:
    # Within text a y rises with x, within b it falls; texts drawn twice give exactly 1 and -1,
    # each a quarter of all draws, so both are ends of the interval.
    found = pearson([0, 1, 0, 1], [0, 1, 1, 0], ["a", "a", "b", "b"])
    assert found == (pytest.approx(0), pytest.approx(-1), pytest.approx(1))
    # Texts that all say the same leave no doubt.
    same = pearson([1, 2, 3] * 4, [1, 3, 2] * 4, np.repeat(["a", "b", "c", "d"], 3))
    assert same == (pytest.approx(0.5),) * 3


def test_r_of_many_agrees_with_numpy() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=300)
    y = 0.5 * x + rng.normal(size=300)
    found = pearson(x, y, np.repeat(np.arange(30), 10))
    assert found.value == pytest.approx(np.corrcoef(x, y)[0, 1])
    low, high = found.interval or (None, None)
    assert low is not None and high is not None
    assert low < found.value < high < low + 0.4


def test_what_does_not_vary_has_no_r() -> None:
    assert pearson([1, 1], [1, 2], ["a", "b"]) == (None, None, None)
    assert pearson([], [], []) == (None, None, None)
    with pytest.raises(ValueError, match="shapes differ"):
        pearson([1, 2], [1, 2], ["a"])
    with pytest.raises(ValueError, match="finite"):
        pearson([1, float("nan")], [1, 2], ["a", "a"])


SIMILARITY = {  # text, step -> by layer
    ("a", 0): [0.1, 0.8, 0.9],
    ("a", 1): [0.2, 0.6, 0.7],
    ("b", 0): [0.3, 0.7, 0.8],
}
VALUES = {  # of river 1 backbone, by layer
    ("a", 0): [1.0, 0.9, 0.5],
    ("a", 1): [1.0, 0.8, 0.9],
    ("b", 0): [1.0, 0.7, 0.7],
}


def record() -> KVRecord:
    layers = pd.DataFrame(
        [
            (text, step, layer, value)
            for (text, step), row in SIMILARITY.items()
            for layer, value in enumerate(row)
        ],
        columns=["id", "step", "layer", "similarity"],
    )
    rows = []
    for arm, depth, prefill, less in (
        ("other_token", 3, "", 0.5),
        ("layer_alone", 0, "", 0.0),
        ("full_quant", 0, "sequence", 0.3),
        ("river", 1, "backbone", 0.0),
        ("river", 1, "sequence", 0.1),
        ("river", 3, "backbone", 0.0),
    ):
        for (text, step), values in VALUES.items():
            for layer, value in enumerate(values):
                rows.append((arm, depth, prefill, text, step, layer, 0.99, value - less))
    names = ["arm", "depth", "prefill", "id", "step", "layer", "key_cosine", "value_cosine"]
    entries = pd.DataFrame(rows, columns=names)
    return KVRecord({"layers": 3}, layers, entries)


def test_profiles_by_hand() -> None:
    of = record()
    profile = similarity_profile(of.layers)
    assert profile["layer"].tolist() == [0, 1, 2]
    assert profile["mean"].tolist() == pytest.approx([0.2, 0.7, 0.8])
    # Of three ordered figures the first decile lies a fifth of the way to the middle one.
    assert profile["low"].tolist() == pytest.approx([0.12, 0.62, 0.72])
    assert profile["high"].tolist() == pytest.approx([0.28, 0.78, 0.88])
    values = entry_profiles(of.entries)
    assert values[values["arm"] == "full_quant"]["value_cosine"].tolist() == pytest.approx(
        [0.7, 0.5, 0.4]
    )


def test_early_is_the_tested_block_and_last_the_top_layers_value() -> None:
    of = record()
    pairs = early_against_last(of.layers, of.entries, 1, "backbone")
    assert pairs.to_dict("list") == {
        "id": ["a", "a", "b"],
        "step": [0, 1, 0],
        "early": [0.1, 0.2, 0.3],
        "last": [0.5, 0.9, 0.7],
    }
    # (-1, 0, 1) and (-1, 1, 0) up to scale.
    assert correlation(pairs).value == pytest.approx(0.5)
    other = early_against_last(of.layers, of.entries, 1, "backbone", block=1)
    assert other["early"].tolist() == [0.8, 0.6, 0.7]
    # (1, -1, 0) and (-1, 1, 0).
    assert correlation(other).value == pytest.approx(-1)
    with pytest.raises(UserError, match="no river run at exit depth 2 with prefill backbone"):
        early_against_last(of.layers, of.entries, 2, "backbone")


def test_the_summary_by_hand() -> None:
    of = record()
    # Both prefills of each depth are measured together.
    entries = of.entries[of.entries["depth"] != 3]
    found = summarize_kv(of.layers, entries)
    assert (found["samples"], found["steps"], found["layers"]) == (2, 3, 3)
    assert found["similarity"] == pytest.approx([0.2, 0.7, 0.8])
    arms = [(arm["arm"], arm["depth"], arm["prefill"]) for arm in found["entries"]]
    assert arms == [
        ("layer_alone", 0, ""),
        ("full_quant", 0, "sequence"),
        ("river", 1, "backbone"),
        ("river", 1, "sequence"),
    ]
    assert found["entries"][3]["value_cosine"] == pytest.approx([0.9, 0.7, 0.6])
    first = found["early_last"][0]
    assert (first["depth"], first["prefill"], first["block"]) == (1, "backbone", 0)
    assert first["r"] == pytest.approx(0.5)
    json.dumps(found, allow_nan=False)


def test_a_record_is_read_back(tmp_path: Path) -> None:
    of = record()
    of.layers.to_parquet(tmp_path / "layers.parquet")
    of.entries.to_parquet(tmp_path / "entries.parquet")
    with pytest.raises(UserError, match="no readable record of KV similarity"):
        read_kv(tmp_path)
    (tmp_path / "summary.json").write_text('{"layers": 3}')
    found = read_kv(tmp_path)
    assert found.summary == {"layers": 3}
    pd.testing.assert_frame_equal(found.layers, of.layers)
    pd.testing.assert_frame_equal(found.entries, of.entries)


def lines(axes: Any) -> dict[str, list[float]]:
    return {
        str(line.get_label()): [pytest.approx(float(y)) for y in line.get_ydata()]
        for line in axes.lines
    }


def test_the_picture_shows_each_arm_by_layer_and_the_pairs() -> None:
    fig = kv_figure(record(), "title", ["n = 3."])
    similar, scatter, keys, values = fig.axes
    assert lines(similar) == {"mean": [0.2, 0.7, 0.8]}
    assert lines(values) == {
        "each river layer alone": [1.0, 0.8, 0.7],
        "full_quant": [0.7, 0.5, 0.4],
        "river, exit depth 1": [0.9, 0.7, 0.6],
        "paper: above 0.97": [0.97, 0.97],
    }
    assert keys.get_ylim() == values.get_ylim()
    assert scatter.collections[0].get_offsets().tolist() == [
        pytest.approx([0.1, 0.4]),
        pytest.approx([0.2, 0.8]),
        pytest.approx([0.3, 0.6]),
    ]
    assert "r = 0.50" in scatter.get_title("left")
    of = record()
    without = KVRecord(of.summary, of.layers, of.entries[of.entries["depth"] != 1])
    with pytest.raises(UserError, match="no river run at a depth 1 to 2"):
        kv_figure(without, "title")
