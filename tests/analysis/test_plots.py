"""The accuracy-speed figure: what is drawn where, and what is said where nothing can be drawn."""

from __future__ import annotations

import struct
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from invented import NOT_GRADED, fidelity, matched, summary
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text

from river_llm.analysis.labels import place_labels
from river_llm.analysis.plots import STYLES, accuracy_speed, accuracy_speed_figure
from river_llm.errors import UserError

NAN = float("nan")


def arms(label: str = "GSM-mini") -> list[dict[str, Any]]:
    none = {"decode": {"matched": None}}
    return [
        summary(label=label, method="no_exit", arm="no_exit", fidelity=None, speedup=none),
        summary(label=label, method="full_quant", arm="full_quant", speedup=matched(1.9)),
        summary(label=label, arm="river A", speedup=matched(1.5), fidelity=fidelity(0.95)),
        summary(label=label, arm="river B", speedup=matched(1.7, low=None, high=None)),
        summary(label=label, arm="river C", speedup=matched(2.3)),
    ]


def points(axes: Axes) -> list[tuple[float, float]]:
    """The drawn markers with error bars, in drawing order."""
    bars = [item for item in axes.containers if isinstance(item, ErrorbarContainer)]
    return [
        (float(bar[0].get_xdata()[0]), pytest.approx(float(bar[0].get_ydata()[0]))) for bar in bars
    ]


def titles(fig: Figure) -> list[str]:
    return [axes.get_title("left") for axes in fig.axes]


def test_agreement_stands_above_accuracy_and_tasks_side_by_side() -> None:
    fig = accuracy_speed_figure([*arms(), *arms("HumanEval")])
    assert titles(fig) == [
        "GSM-mini: n = 320 tokens of 5 answers",
        "HumanEval: n = 320 tokens of 5 answers",
        "GSM-mini: n = 5 graded answers",
        "HumanEval: n = 5 graded answers",
    ]
    assert points(fig.axes[0]) == [(1.0, 100.0), (1.9, 90.0), (1.5, 95.0), (1.7, 90.0), (2.3, 90.0)]
    assert points(fig.axes[2]) == [(x, 20.0) for x in (1.0, 1.9, 1.5, 1.7, 2.3)]


def test_error_bars_are_the_intervals() -> None:
    fig = accuracy_speed_figure([summary(speedup=matched(1.8))], "accuracy")
    (bar,) = fig.axes[0].containers
    ends = [collection.get_segments()[0].tolist() for collection in bar[2]]
    assert ends == [
        [[pytest.approx(1.7), pytest.approx(20)], [pytest.approx(1.9), pytest.approx(20)]],
        [[pytest.approx(1.8), pytest.approx(3.6)], [pytest.approx(1.8), pytest.approx(62.4)]],
    ]


def test_one_prompt_has_no_error_bar() -> None:
    alone = summary(speedup=matched(1.8, low=None, high=None))
    (bar,) = accuracy_speed_figure([alone], "agreement").axes[0].containers
    assert not bar.has_xerr and not bar.has_yerr


def test_bound_is_marked_and_a_speedup_above_it_is_named() -> None:
    fig = accuracy_speed_figure(
        [summary(speedup=matched(2.3, flags=["reference below par"]))], "accuracy"
    )
    ticks = [line for line in fig.axes[0].lines if line.get_marker() == "|"]
    bounds = [line for line in ticks if list(line.get_xdata()) == [2.0]]
    assert bounds
    (label,) = [text.get_text() for text in fig.axes[0].texts]
    assert label == "river tau=0.5 sequence  2.30x\nreference below par"


def test_nan_leaves_a_gap_and_not_an_empty_chart() -> None:
    runs = arms()
    runs[2]["accuracy"] = {**NOT_GRADED, "value": NAN}
    runs[3]["speedup"] = matched(NAN)
    runs[4]["speedup"] = {"decode": {"matched": None}}
    fig = accuracy_speed_figure(runs, "accuracy")
    assert points(fig.axes[0]) == [(1.0, 20.0), (1.9, 20.0)]
    assert titles(fig) == [
        "GSM-mini: n = 5 graded answers\n"
        "not drawn, no accuracy: river A; no speedup: river B, river C"
    ]


def test_panel_without_figures_says_so() -> None:
    ungraded = [{**run, "accuracy": NOT_GRADED} for run in arms("HumanEval")]
    fig = accuracy_speed_figure([*arms(), *ungraded])
    assert points(fig.axes[3]) == []
    assert [text.get_text() for text in fig.axes[3].texts] == ["not run"]


def test_row_without_any_figure_is_left_out() -> None:
    unfaithful = [{**run, "fidelity": None} for run in arms()]
    assert titles(accuracy_speed_figure(unfaithful)) == ["GSM-mini: n = 5 graded answers"]


def test_two_models_do_not_share_a_panel() -> None:
    fig = accuracy_speed_figure([summary(model="small"), summary(model="large")], "accuracy")
    assert [title.split(":")[0] for title in titles(fig)] == ["GSM-mini, small", "GSM-mini, large"]


def test_methods_are_told_apart_without_colour() -> None:
    markers = [marker for _, marker in STYLES.values()]
    assert len(set(markers)) == len(markers)


def test_title_is_not_cut_off() -> None:
    fig = accuracy_speed_figure([summary(model="a_model_with_a_rather_long_name")])
    (title,) = [text for text in fig.texts if "speedup" in text.get_text()]
    box = title.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= fig.bbox.width


def test_png_is_written_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    path = tmp_path / "new" / "figure.png"
    accuracy_speed(arms(), path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width >= 1000 and height >= 1000
    accuracy_speed(arms(), tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == data


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no runs to draw"):
        accuracy_speed([], tmp_path / "figure.png")


def test_ticks_are_shares() -> None:
    floor = {"value": 0.0, "low": 0.0, "high": 0.434, "graded": 5, "extra": {}}
    for run in (summary(accuracy=floor), summary(fidelity=fidelity(0.4))):
        for axes in accuracy_speed_figure([run]).axes:
            ticks = axes.get_yticks()
            assert len(ticks) >= 3 and ticks.min() >= 0 and ticks.max() <= 100
            low, high = axes.get_ylim()
            assert low < 0 or high > 100  # the margin is there all the same


def test_label_is_not_read_as_that_of_a_neighbour() -> None:
    fig = Figure(figsize=(6, 4), dpi=150)
    canvas = FigureCanvasAgg(fig)
    axes = fig.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    anchors = [(0.3, 0.5), (0.6, 0.5)]
    names = ["a name wider than the gap"] * 2
    boxes = place_labels(axes, canvas.get_renderer(), anchors, names, ["k"] * 2, [])
    pixels = axes.transData.transform(anchors)
    for i, box in enumerate(boxes):
        gaps = [
            max(box.x0 - x, x - box.x1, 0) ** 2 + max(box.y0 - y, y - box.y1, 0) ** 2
            for x, y in pixels
        ]
        assert min(gaps) == gaps[i]


@pytest.mark.parametrize(
    "anchors",
    [
        [(0.5, 0.5)] * 5,
        [(0.5 + 0.01 * i, 0.02) for i in range(5)],
        [(0.98, 0.98), (0.99, 0.97), (0.01, 0.01), (0.02, 0.03), (0.98, 0.02)],
    ],
)
def test_crowded_labels_do_not_cover_each_other(anchors: list[tuple[float, float]]) -> None:
    fig = Figure(figsize=(6, 4), dpi=150)
    canvas = FigureCanvasAgg(fig)
    axes = fig.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    names = [f"river tau=0.{i} sequence" for i in range(5)]
    boxes = place_labels(axes, canvas.get_renderer(), anchors, names, ["k"] * 5, [])
    fig.draw_without_rendering()
    # An annotation's own extent takes in its leader line.
    drawn = [Text.get_window_extent(text) for text in axes.texts]
    assert len(drawn) == 5
    for box, text in zip(boxes, drawn, strict=True):
        assert text.x0 == pytest.approx(box.x0, abs=2) and text.y1 == pytest.approx(box.y1, abs=2)
        assert axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
        assert axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
