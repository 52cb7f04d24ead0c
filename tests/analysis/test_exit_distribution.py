"""Exit depths beside the oracle's: histograms by hand, and what the picture shows."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from invented import summary

from river_llm.analysis.exit_distribution import (
    exit_distribution_figure,
    mean_depth,
    oracle_row,
    river_rows,
)
from river_llm.errors import UserError

STEPS = pd.DataFrame({"id": ["a", "a", "b"], "oracle_depth": [2, 4, 3]})


def river(tau: float, prefill: str = "sequence", **changes: Any) -> dict[str, Any]:
    settings = {"prefill": prefill, "criterion": {"name": "similarity", "tau": tau}}
    depth = {"mean": 1.0, "layers": 4, "histogram": [0, 9, 0, 0, 0]}
    return summary(**{"settings": settings, "exit_depth": depth, **changes})


def forced(**samples: tuple[int, list[int]]) -> dict[str, Any]:
    rows = {key: {"prefill_depth": p, "depths": depths} for key, (p, depths) in samples.items()}
    return {"samples": rows}


def test_the_oracle_of_a_text_is_its_deepest_token() -> None:
    row = oracle_row(STEPS, 4)
    assert row.tokens == [0, 0, 1, 1, 1]
    assert row.texts == [0, 0, 0, 1, 1]


def test_rivers_rows_are_its_sequence_runs_by_mean_depth() -> None:
    deep = forced(a=(3, [4, 4, 1]), b=(2, [4]))
    shallow = forced(a=(1, [1, 1, 2]), b=(1, [1]))
    runs = [
        river(0.9),
        river(0.5),
        river(0.4, prefill="backbone"),
        river(0.3),
        summary(method="mask"),
    ]
    rows = river_rows(runs, [deep, shallow, shallow, None, shallow])
    assert [row.name for row in rows] == ["River\nτ = 0.5", "River\nτ = 0.9"]
    assert [row.tokens for row in rows] == [[0, 3, 1, 0, 0], [0, 1, 0, 0, 3]]
    assert [row.texts for row in rows] == [[0, 2, 0, 0, 0], [0, 0, 1, 1, 0]]
    assert mean_depth(rows[1].tokens) == 3.25


def test_the_picture_shows_shares_and_means() -> None:
    rows = [oracle_row(STEPS, 4), *river_rows([river(0.5)], [forced(a=(1, [1, 1, 2]), b=(1, [1]))])]
    fig = exit_distribution_figure(rows, "title", ["caption"])
    oracle, _, tokens, texts = fig.axes
    assert [bar.get_height() for bar in tokens.patches] == [0, 75, 25, 0, 0]
    assert [bar.get_height() for bar in texts.patches] == [0, 100, 0, 0, 0]
    assert [bar.get_height() for bar in oracle.patches] == pytest.approx([0, 0, *[100 / 3] * 3])
    assert [text.get_text() for text in tokens.texts] == ["mean 1.2"]
    assert list(tokens.lines[0].get_xdata()) == [1.25, 1.25]


def test_other_models_and_nothing_are_refused() -> None:
    with pytest.raises(UserError, match=r"models with \[4, 6\] layers"):
        exit_distribution_figure([oracle_row(STEPS, 4), oracle_row(STEPS, 6)], "title")
    with pytest.raises(UserError, match="no exit depths to draw"):
        exit_distribution_figure([], "title")
