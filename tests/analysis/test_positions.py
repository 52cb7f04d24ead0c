"""Fidelity by position and exit depths: figures by hand, and what the pictures show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from invented import summary
from light_script import run_light
from matplotlib.figure import Figure
from matplotlib.text import Text

from river_llm.analysis.position_plots import MOST_RUNS, depth_figure, position_figure
from river_llm.analysis.positions import (
    FORCED,
    FREE,
    DepthHistogram,
    depth_histogram,
    fidelity_by_position,
    positions_frame,
)
from river_llm.analysis.saved import forced_scores
from river_llm.errors import UserError


def scores(equal: list[int], excess: list[float], depths: list[int] | None = None) -> Any:
    return {
        "equal": [bool(flag) for flag in equal],
        "nll": [1.0] * len(equal),
        "excess_nll": excess,
        "depths": [0] * (len(equal) - 1) if depths is None else depths,
    }


def forced(**samples: Any) -> dict[str, Any]:
    return {"tokens": 6, "no_exit_run": "no_exit-1", "samples": samples}


THREE = forced(
    a=scores([1, 1, 0, 1, 0, 0], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [1, 2, 4, 4, 4]),
    b=scores([1, 0, 1], [0.2, 0.4, 0.6], [1, 1]),
    c=scores([1, 1], [0.1, 0.2], [3]),
)


def test_bins_by_hand() -> None:
    first, second = fidelity_by_position(THREE, bin_tokens=4)
    # Positions 0 to 3: 4 tokens of a (3 equal), 3 of b (2) and 2 of c (2), 7 of 9.
    assert (first.first, first.end, first.samples, first.tokens) == (0, 4, 3, 9)
    assert first.agreement.value == pytest.approx(7 / 9)
    assert first.excess_nll.value == pytest.approx((0.6 + 1.2 + 0.3) / 9)
    # Positions 4 and 5: a alone, so no interval; the texts that ended count for nothing.
    assert (second.first, second.end, second.samples, second.tokens) == (4, 6, 1, 2)
    assert second.agreement == (0.0, None, None)
    assert second.excess_nll == (pytest.approx(0.45), None, None)


def test_interval_is_over_texts_and_not_over_tokens() -> None:
    # Two texts of 8 tokens, one all equal, one all different. Resampling texts gives shares of
    # 0, 1/2 and 1, with 1/4 of the weight on each end; over tokens it would be about 0.25 to 0.75.
    pair = forced(a=scores([1] * 8, [0.0] * 8), b=scores([0] * 8, [1.0] * 8))
    (only,) = fidelity_by_position(pair)
    assert only.agreement == (0.5, 0.0, 1.0)
    assert only.excess_nll == (0.5, 0.0, 1.0)


def test_default_bins_are_sixteen_tokens_wide() -> None:
    bins = fidelity_by_position(forced(a=scores([1] * 40, [0.0] * 40)))
    assert [(b.first, b.end, b.tokens) for b in bins] == [(0, 16, 16), (16, 32, 16), (32, 40, 8)]


def test_bins_add_up_to_the_figure_over_all_tokens() -> None:
    bins = fidelity_by_position(THREE, bin_tokens=2)
    assert sum(b.tokens for b in bins) == 11
    equal = sum(b.tokens * float(b.agreement.value or 0) for b in bins)
    excess = sum(b.tokens * float(b.excess_nll.value or 0) for b in bins)
    assert equal == pytest.approx(3 + 2 + 2)
    assert excess == pytest.approx(1.5 + 1.2 + 0.3)


def test_scores_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="sample 'a' has 2 predictions and 1 likelihoods"):
        fidelity_by_position(forced(a=scores([1, 1], [0.0])))
    with pytest.raises(UserError, match="no forced tokens to show"):
        fidelity_by_position(forced())


def run(**changes: Any) -> dict[str, Any]:
    depth = {"mean": 2.0, "layers": 4, "histogram": [0, 0, 7, 0, 1]}
    return summary(**{"exit_depth": depth, "commits": ["abc"], **changes})


def test_depths_are_those_of_the_forced_steps() -> None:
    histogram = depth_histogram(run(), THREE)
    # 1 2 4 4 4, 1 1, 3.
    assert histogram == DepthHistogram([0, 3, 1, 1, 3], FORCED)
    assert histogram.mean == pytest.approx((3 + 2 + 3 + 12) / 8)


def test_without_forced_steps_depths_are_those_of_the_own_text() -> None:
    assert depth_histogram(run(), None) == DepthHistogram([0, 0, 7, 0, 1], FREE)
    one_token = forced(a=scores([1], [0.0]))
    assert depth_histogram(run(), one_token).source == FREE
    assert DepthHistogram([0, 0], FREE).mean is None


def test_depth_of_another_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"exit depths 1 to 5 lie outside 0\.\.4"):
        depth_histogram(run(), forced(a=scores([1, 1, 1], [0.0] * 3, [1, 5])))


def curves(fig: Figure, panel: int) -> dict[str, list[tuple[float, float]]]:
    return {
        str(line.get_label()): [
            (pytest.approx(float(x)), pytest.approx(float(y)))
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
        ]
        for line in fig.axes[panel].lines
        if not str(line.get_label()).startswith("_")
    }


def words(fig: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in fig.findobj(Text)).split())


def test_each_run_is_a_line_over_the_middle_of_its_bins() -> None:
    bins = fidelity_by_position(THREE, bin_tokens=4)
    fig = position_figure({"river": bins}, "title", 0.987, ["Without scores: mask."])
    assert curves(fig, 0) == {"river": [(2, 700 / 9), (5, 0)]}
    assert curves(fig, 1) == {"river": [(2, 2.1 / 9), (5, 0.45)]}
    bottom, top = fig.axes[1].get_ylim()
    assert bottom > top  # more loss is further down
    (band,) = fig.axes[0].patches
    assert (band.get_bbox().y0, band.get_bbox().y1) == (pytest.approx(98.7), 100)
    text = words(fig)
    assert "3 texts in the first bin, 1 in the last" in text and "Without scores: mask." in text
    # An interval where there are several texts, none for a single one.
    bars = [c.has_yerr for c in fig.axes[0].containers]
    assert bars == [True, False]


def test_runs_of_one_bin_stand_side_by_side_and_look_different() -> None:
    bins = fidelity_by_position(THREE, bin_tokens=4)
    fig = position_figure({f"run {i}": bins for i in range(MOST_RUNS)}, "title", 0.9)
    lines = [line for line in fig.axes[0].lines if str(line.get_label()).startswith("run")]
    starts = [float(line.get_xdata()[0]) for line in lines]
    assert starts == sorted(set(starts)) and starts[0] > 0 and starts[-1] < 4
    assert len({line.get_marker() for line in lines}) == MOST_RUNS
    (legend,) = fig.subfigs[0].legends
    fig.draw_without_rendering()
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.y0 >= 0 and box.y1 <= fig.axes[1].bbox.y0
    with pytest.raises(UserError, match=f"give 1 to {MOST_RUNS}"):
        position_figure({f"run {i}": bins for i in range(MOST_RUNS + 1)}, "title")
    with pytest.raises(UserError, match="0 runs"):
        position_figure({}, "title")


def test_noise_floor_that_was_not_measured_is_said() -> None:
    fig = position_figure({"river": fidelity_by_position(THREE)}, "title")
    assert "Noise floor: not run." in words(fig)
    assert not fig.axes[0].patches


def test_each_run_has_a_panel_of_depths() -> None:
    runs = {
        "river": DepthHistogram([0, 3, 1, 1, 3], FORCED),
        "mask": DepthHistogram([0, 0, 8, 0, 0], FREE),
        "none": DepthHistogram([0, 0, 0, 0, 0], FREE),
        "x": DepthHistogram([1, 0, 0, 0, 0], FREE),
        "y": DepthHistogram([0, 0, 0, 0, 1], FREE),
    }
    fig = depth_figure(runs, "title")
    shown = [axes for axes in fig.axes if axes.get_visible()]
    assert len(shown) == 5
    heights = [patch.get_height() for patch in shown[0].patches]
    assert heights == [0, 37.5, 12.5, 12.5, 37.5]
    assert shown[0].get_title("left") == "river\nmean 2.5, 8 forced steps"
    assert shown[0].lines[0].get_xdata()[0] == 2.5
    assert shown[1].get_title("left") == "mask\nmean 2.0, 8 free-running steps"
    assert shown[2].get_title("left") == "none\nno decode steps"
    assert list(shown[4].get_xticks()) == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match="no runs to draw"):
        depth_figure({}, "title")


def test_table_has_a_row_per_run_and_bin() -> None:
    frame = positions_frame({"river": fidelity_by_position(THREE, bin_tokens=4)})
    assert frame.to_dict("records")[1] == {
        "Arm": "river",
        "Positions": "4 to 5",
        "Texts": "1",
        "Tokens": "2",
        "Agreement % [95%]": "0.0 [no interval]",
        "Excess NLL [95%]": "0.4500 [no interval]",
    }


def save(folder: Path, content: dict[str, Any], given: dict[str, Any] | None) -> Path:
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(content))
    if given is not None:
        (folder / "forced_scores.json").write_text(json.dumps(given))
    return folder


def test_unreadable_scores_are_said(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", run(), None)
    assert forced_scores(folder) is None
    (folder / "forced_scores.json").write_text('{"samples": ')
    with pytest.raises(UserError, match=r"forced_scores\.json cannot be read"):
        forced_scores(folder)


def test_script_writes_pictures_and_figures(tmp_path: Path) -> None:
    folders = [
        save(tmp_path / "a", run(), THREE),
        save(tmp_path / "b", run(identity="ffff"), THREE),  # the same name as the first
        save(tmp_path / "c", run(arm="mask tau=0.5"), None),
    ]
    stem = tmp_path / "new" / "positions"
    done = run_light("plot_positions.py", *map(str, folders), "--out", str(stem))
    assert done.returncode == 0, done.stderr
    kinds = ("png", "svg", "pdf")
    assert {path.name for path in stem.parent.iterdir()} == {
        "positions.csv",
        *(f"positions.{kind}" for kind in kinds),
        *(f"positions-depths.{kind}" for kind in kinds),
    }
    lines = (stem.parent / "positions.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == [
        "river tau=0.5 sequence ab12cd34",
        "river tau=0.5 sequence ffff",
    ]


def test_runs_on_different_texts_are_refused(tmp_path: Path) -> None:
    other = {**THREE, "no_exit_run": "no_exit-2"}
    folders = [save(tmp_path / "a", run(), THREE), save(tmp_path / "b", run(), other)]
    done = run_light("plot_positions.py", *map(str, folders), "--out", str(tmp_path / "x"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: the runs were forced on texts of no_exit-1, no_exit-2")
    assert not list(tmp_path.glob("x*"))


def test_runs_without_scores_are_refused(tmp_path: Path) -> None:
    done = run_light("plot_positions.py", str(save(tmp_path / "a", run(), None)))
    assert done.returncode == 2
    assert done.stderr.startswith("error: none of these runs has forced scores")
