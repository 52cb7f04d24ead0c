"""Exit depth along the text: figures by hand, and what the picture shows."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from river_llm.analysis.depth_positions import depth_by_position, depth_position_figure
from river_llm.errors import UserError


def forced(**depths: list[int]) -> dict[str, Any]:
    return {"samples": {key: {"depths": own} for key, own in depths.items()}}


TWO = forced(a=[1, 2, 3, 4, 4], b=[2, 4, 4], without_steps=[])
FIXED = forced(a=[4, 4], b=[4])


def test_bins_by_hand() -> None:
    first, last = depth_by_position(TWO, bin_steps=3)
    # Steps 0 to 2: 1 + 2 + 3 of a, 2 + 4 + 4 of b; a alone has 2, b 10 / 3.
    assert (first.first, first.end, first.texts, first.steps) == (0, 3, 2, 6)
    assert first.depth == (pytest.approx(16 / 6), pytest.approx(2), pytest.approx(10 / 3))
    # b has ended, and one text has no interval.
    assert (last.first, last.end, last.texts, last.steps) == (3, 5, 1, 2)
    assert last.depth == (4.0, None, None)


def texts_of(fig: Figure) -> str:
    parts = [fig, *fig.subfigs]
    return " ".join(text.get_text() for part in parts for text in part.texts)


def test_every_step_is_a_dot_in_the_panel_of_its_run() -> None:
    runs = {"moving": TWO, "still": FIXED, "other": forced(a=[1, 2])}
    fig = depth_position_figure(runs, 4, "title")
    moving, other = fig.subfigs[0].axes
    dots = [line for line in moving.lines if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in dots] == [[1, 2, 3, 4, 4], [2, 4, 4]]
    # Texts are spread within a step, and stay in it.
    assert [int(x) for x in dots[0].get_xdata()] == [0, 1, 2, 3, 4]
    assert [int(x) for x in dots[1].get_xdata()] == [0, 1, 2]
    assert dots[0].get_xdata()[0] != dots[1].get_xdata()[0]
    # One bin of 16 steps holds all: 24 / 8.
    bars = [line for line in moving.lines if line.get_color() == "black" and len(line.get_xdata())]
    assert next((list(bar.get_xdata()), list(bar.get_ydata())) for bar in bars) == ([0, 5], [3, 3])
    assert moving.get_title("left") == "moving: mean 3.0, n = 8 steps of 2 texts"
    assert other.get_title("left") == "other: mean 1.5, n = 2 steps of 1 text"
    assert "one depth at every step: still (4)" in texts_of(fig)


@pytest.mark.parametrize(
    ("runs", "word"),
    [
        ({}, "no run whose exit depth changes"),
        ({"still": FIXED}, "no run whose exit depth changes"),
        ({"empty": forced(a=[])}, "no decode steps"),
    ],
)
def test_nothing_to_draw_is_told(runs: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        depth_position_figure(runs, 4, "title")
