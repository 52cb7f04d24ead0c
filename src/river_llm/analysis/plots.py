"""Figures drawn from summaries; no display and no global state of matplotlib is used."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox

from river_llm.analysis import cells
from river_llm.analysis.cells import Summary, figure
from river_llm.analysis.figures import DPI, boxes, error, plain_axes, text_color
from river_llm.analysis.labels import place_labels
from river_llm.analysis.styles import BAND, GREY, OTHER_STYLE, STYLES
from river_llm.errors import UserError
from river_llm.records import replacing

Measure = Literal["agreement", "accuracy"]

AXIS_LABELS = {
    "agreement": "Same next token as no_exit, % (up: closer)",
    "accuracy": "Correct answers, %",
}
PANEL_WIDTH, PANEL_HEIGHT = 5.4, 3.5
NOTE_COLUMNS = 76  # characters of small text over the width of a panel


@dataclass(frozen=True)
class Point:
    """One arm in one panel; y and its interval in percent, None where there is no interval."""

    arm: str
    mark: str
    method: str
    x: float
    x_interval: tuple[float, float] | None
    y: float
    y_interval: tuple[float, float] | None
    bound: float | None


def accuracy_speed(
    summaries: Sequence[Summary], path: str | Path, y: Literal["both"] | Measure = "both"
) -> None:
    """Write the figure of `accuracy_speed_figure` as a PNG; the file's folder is made."""
    fig = accuracy_speed_figure(summaries, y)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(Path(path)) as temporary:
        fig.savefig(temporary, format="png", metadata={"Software": None})


def accuracy_speed_figure(
    summaries: Sequence[Summary], y: Literal["both"] | Measure = "both"
) -> Figure:
    """Draw what each arm gains in speed and what it costs, one panel for each task.

    x is the matched decode speedup over no_exit, y the argmax agreement with no_exit (upper row)
    or the accuracy (lower row). Intervals are drawn where they exist, and a thin tick marks the
    speedup that the bytes read allow. no_exit stands at 1 and 100 % by definition. An arm that
    lacks a figure is named under the panel's title instead of being drawn.

    Args:
        summaries: Summaries of any number of runs, of any number of tasks.
        y: The rows wanted; "both" leaves out a row for which no run has a figure.

    Returns:
        The figure, on an Agg canvas; its labels are placed for its present size and resolution.

    Raises:
        UserError: No summaries.
    """
    if not summaries:
        raise UserError("no runs to draw: the list of summaries is empty, run the arms first")
    wanted: list[Measure] = ["agreement", "accuracy"] if y == "both" else [y]
    rows = [m for m in wanted if any(_measured(s, m) is not None for s in summaries)] or wanted[-1:]
    models = list(dict.fromkeys(summary["model"] for summary in summaries))
    panels: dict[str, list[Summary]] = {}
    for summary in summaries:
        name = summary["label"] + (f", {summary['model']}" if len(models) > 1 else "")
        panels.setdefault(name, []).append(summary)

    columns = len(panels)
    size = (max(PANEL_WIDTH * columns, 7.0), PANEL_HEIGHT * len(rows) + 1.1)
    fig = Figure(figsize=size, dpi=DPI, layout="constrained")
    canvas = FigureCanvasAgg(fig)
    grid = fig.subplots(len(rows), columns, squeeze=False, sharex=True, sharey="row")
    drawn: list[tuple[Axes, list[Point]]] = []
    for i, measure in enumerate(rows):
        for j, (name, runs) in enumerate(panels.items()):
            drawn.append((grid[i][j], _panel(grid[i][j], name, runs, measure)))
        grid[i][0].set_ylabel(AXIS_LABELS[measure])
        in_row = drawn[i * len(panels) :]
        _limit_y(grid[i][0], [point for _, points in in_row for point in points], measure)
    for axes in grid[-1]:
        axes.set_xlabel("Decode speedup over no_exit (right: faster)")
    _limit_x(grid[0][0], [point for _, points in drawn for point in points])
    _title(fig, rows, models)
    _legend(fig, rows)

    # Labels are placed in pixels, so the layout must be final before and stay so after.
    canvas.draw()
    fig.set_layout_engine("none")
    for axes, points in drawn:
        _label(axes, points, canvas)
    return fig


def _x(summary: Summary) -> float | None:
    if summary["method"] == cells.REFERENCE_METHOD:
        return 1.0
    return figure(cells.matched(summary), "value")


def _measured(summary: Summary, measure: Measure) -> float | None:
    path = ("accuracy", "value") if measure == "accuracy" else ("fidelity", "agreement")
    return figure(summary, *path)


def _y(summary: Summary, measure: Measure) -> float | None:
    if measure == "agreement" and summary["method"] == cells.REFERENCE_METHOD:
        return 1.0
    return _measured(summary, measure)


def _interval(summary: Summary, *path: str, prefix: str = "") -> tuple[float, float] | None:
    low, high = (figure(summary, *path, f"{prefix}{end}") for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


def _point(summary: Summary, measure: Measure) -> Point | None:
    x, y = _x(summary), _y(summary, measure)
    if x is None or y is None:
        return None
    reference = summary["method"] == cells.REFERENCE_METHOD
    matched = ("speedup", "decode", "matched")
    y_interval = (
        _interval(summary, "accuracy")
        if measure == "accuracy"
        else _interval(summary, "fidelity", prefix="agreement_")
    )
    return Point(
        arm=summary["arm"],
        mark=", ".join(cells.marks(summary)),
        method=summary["method"],
        x=x,
        x_interval=None if reference else _interval(summary, *matched),
        y=100 * y,
        y_interval=None if y_interval is None else (100 * y_interval[0], 100 * y_interval[1]),
        bound=None if reference else figure(summary, *matched, "bound_speedup"),
    )


def _panel(axes: Axes, name: str, runs: Sequence[Summary], measure: Measure) -> list[Point]:
    points: list[Point] = []
    absent: dict[str, list[str]] = {}
    for run in runs:
        point = _point(run, measure)
        if point is not None:
            points.append(point)
        else:
            absent.setdefault("speedup" if _x(run) is None else measure, []).append(run["arm"])
    title = f"{name}: {_counts(runs, measure)}"
    if points and absent:
        notes = [f"no {what}: {', '.join(arms)}" for what, arms in absent.items()]
        title += "\n" + textwrap.fill(f"not drawn, {'; '.join(notes)}", NOTE_COLUMNS)
    axes.set_title(title, loc="left", fontsize=9)
    plain_axes(axes)
    axes.axvline(1, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    if measure == "agreement":
        _noise_floor(axes, runs)
    for point in points:
        _draw(axes, point)
    if not points:
        axes.text(0.5, 0.5, cells.NOT_RUN, transform=axes.transAxes, ha="center", color=GREY)
    return points


def _counts(runs: Sequence[Summary], measure: Measure) -> str:
    if measure == "accuracy":
        graded = [run["accuracy"]["graded"] for run in runs if run["accuracy"]["graded"]]
        return f"n = {cells.span(graded or [0])} graded answers"
    counted = [run["fidelity"] for run in runs if run["fidelity"] is not None]
    if not counted:
        return cells.NOT_RUN
    tokens = cells.span([fidelity["tokens"] for fidelity in counted])
    return f"n = {tokens} tokens of {cells.span([f['samples'] for f in counted])} answers"


def _noise_floor(axes: Axes, runs: Sequence[Summary]) -> None:
    floors = [
        floor
        for run in runs
        if (floor := figure(run, "fidelity", "noise_floor", "agreement")) is not None
    ]
    if floors:
        axes.axhspan(100 * min(floors), 100, color=BAND, linewidth=0, zorder=0)


def _draw(axes: Axes, point: Point) -> None:
    color, marker = STYLES.get(point.method, OTHER_STYLE)
    if point.bound is not None:
        axes.plot([point.x, point.bound], [point.y] * 2, color=color, linewidth=0.7, alpha=0.5)
        axes.plot(point.bound, point.y, marker="|", markersize=11, color=color, linestyle="none")
    axes.errorbar(
        point.x,
        point.y,
        xerr=error(point.x, point.x_interval),
        yerr=error(point.y, point.y_interval),
        color=color,
        marker=marker,
        markersize=7,
        markeredgecolor="white",
        markeredgewidth=0.6,
        elinewidth=1.1,
        capsize=2.5,
        zorder=3,
    )


def _limit_x(axes: Axes, points: Sequence[Point]) -> None:
    ends = [1.0]
    for point in points:
        ends += [point.x, *(point.x_interval or ())]
        ends += [] if point.bound is None else [point.bound]
    margin = 0.2 * max(max(ends) - min(ends), 0.5)
    axes.set_xlim(min(ends) - margin, max(ends) + margin)


def _limit_y(axes: Axes, points: Sequence[Point], measure: Measure) -> None:
    ends = [end for point in points for end in (point.y, *(point.y_interval or ()))] or [0.0, 100.0]
    if measure == "agreement":
        ends.append(100.0)  # no_exit's, so that the cost is seen also where it is not drawn
    margin = 0.18 * max(max(ends) - min(ends), 5)
    low, high = min(ends) - margin, max(ends) + margin
    axes.set_ylim(low, high)
    # No ticks on the margin beyond what a share can be.
    axes.set_yticks([tick for tick in axes.get_yticks() if max(low, 0) <= tick <= min(high, 100)])


def _title(fig: Figure, rows: Sequence[Measure], models: Sequence[str]) -> None:
    title = f"Decode speedup and its cost in {' and '.join(rows)}"
    if len(models) == 1:
        title += f", {models[0]}"
    columns = int(fig.get_figwidth() * 9)
    fig.suptitle(textwrap.fill(title, columns), fontsize=12, fontweight="bold")


def _legend(fig: Figure, rows: Sequence[Measure]) -> None:
    interval = Line2D([], [], color=GREY, marker="o", markersize=5, label="95 % interval")
    bound = Line2D([], [], color=GREY, marker="|", markersize=11, linestyle="none")
    bound.set_label("bound: what the bytes read allow")
    handles: list[Artist] = [interval, bound]
    if "agreement" in rows:
        handles.append(Patch(color=BAND, label="noise floor of agreement"))
    fig.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def _label(axes: Axes, points: Sequence[Point], canvas: FigureCanvasAgg) -> None:
    marks = [box for point in points for box in _marks(axes, point)]
    place_labels(
        axes,
        canvas.get_renderer(),
        [(point.x, point.y) for point in points],
        [_text(point) for point in points],
        [text_color(STYLES.get(point.method, OTHER_STYLE)[0]) for point in points],
        marks,
    )


def _text(point: Point) -> str:
    if point.method == cells.REFERENCE_METHOD:
        return point.arm
    return f"{point.arm}  {point.x:.2f}x" + (f"\n{point.mark}" if point.mark else "")


def _marks(axes: Axes, point: Point) -> list[Bbox]:
    """Boxes in pixels around the marker, the error bars and the bound of a point."""
    x0, x1 = point.x_interval or (point.x, point.x)
    y0, y1 = point.y_interval or (point.y, point.y)
    bound = point.x if point.bound is None else point.bound
    lines = [
        ((point.x, point.y), (point.x, point.y), 9),
        ((x0, point.y), (x1, point.y), 4),
        ((point.x, y0), (point.x, y1), 3),
        ((bound, point.y), (bound, point.y), 10),
        ((point.x, point.y), (bound, point.y), 2),
    ]
    return boxes(axes, lines)
