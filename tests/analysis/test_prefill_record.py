"""Time to first token: figures of a record by hand, and the picture."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from river_llm.analysis.prefill import read_prefill, summarize_prefill
from river_llm.analysis.prefill_plot import prefill_figure
from river_llm.errors import UserError

SECONDS = {
    ("no_exit", 32): [0.010, 0.020, 0.060],
    ("no_exit", 64): [0.040, 0.040, 0.040],
    ("river, prefill sequence", 32): [0.030, 0.010, 0.020],
    ("river, prefill sequence", 64): [0.020, 0.010, 0.030],
}
TIMES = pd.DataFrame(
    [
        (arm, length, number, seconds, 3 if "river" in arm else 4)
        for (arm, length), rounds in SECONDS.items()
        for number, seconds in enumerate(rounds)
    ],
    columns=["arm", "length", "round", "seconds", "depth"],
)


def test_figures_are_medians_and_quartiles_in_ms() -> None:
    points = summarize_prefill(TIMES)
    assert [(p["arm"], p["length"]) for p in points] == list(SECONDS)
    first = points[0]
    assert first["median_ms"] == pytest.approx(20)
    # Half-way between the middle one and its neighbours.
    assert (first["low_ms"], first["high_ms"]) == (pytest.approx(15), pytest.approx(40))
    assert (first["rounds"], first["depth"], points[2]["depth"]) == (3, 4, 3)


def test_the_picture_shows_ratios_to_no_exit_of_the_same_length() -> None:
    fig = prefill_figure(summarize_prefill(TIMES), "title", ["caption"])
    _, ratios = fig.axes
    drawn = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in ratios.lines}
    assert drawn["river, prefill sequence"] == [(32, pytest.approx(1)), (64, pytest.approx(0.5))]
    assert drawn["no_exit"] == [(32, 1), (64, 1)]
    with pytest.raises(UserError, match="no time of no_exit"):
        prefill_figure(summarize_prefill(TIMES)[2:], "title")


def test_a_missing_record_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run scripts/measure_prefill\.py first"):
        read_prefill(tmp_path)
