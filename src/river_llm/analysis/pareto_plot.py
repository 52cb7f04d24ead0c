"""The picture of a sweep: speed against fidelity or accuracy, one line per method."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import Bbox

from river_llm.analysis import cells
from river_llm.analysis.figures import DPI, boxes, error, plain_axes, text_color
from river_llm.analysis.labels import place_labels
from river_llm.analysis.pareto_marks import (
    MEASURES,
    Mark,
    Measure,
    Y,
    best_marks,
    bound_corners,
    mark_of,
    marks_by_line,
    near_marks,
    noise_band,
)
from river_llm.analysis.pareto_notes import notes
from river_llm.analysis.points import OperatingPoint, comparisons
from river_llm.analysis.saved import MissingRun
from river_llm.analysis.styles import BAND, GREY, Look, line_looks
from river_llm.errors import UserError

WIDTH, HEIGHT, NOTE_HEIGHT = 13.0, 7.4, 0.16  # inches; of a line of notes
LEGEND_COLUMNS = 3
HATCH, HATCH_COLOR = "///", "#b5b5b5"


def pareto_figure(
    points: Sequence[OperatingPoint], y: Y = "agreement", missing: Sequence[MissingRun] = ()
) -> Figure:
    """Draw one line per method through its operating points, in order of speed.

    x is the matched decode speedup over no_exit, which stands at 1 by definition. Rings and a step
    line mark the Pareto front of all points. The hatched region lies beyond the front of
    (bound_speedup, y): so fast no measured setting can be at that y, since the bytes it reads
    take longer. Where methods collapse, an overview beside the main panel shows all points, and
    the main panel those that come close to no_exit. What is not drawn is named below.

    Args:
        points: of one task and one model (`river_llm.analysis.points.operating_points`).
        y: the figure on the y axis.
        missing: runs without a summary; they are counted below the picture.

    Returns:
        The figure, on an Agg canvas; its labels are placed for its present size.

    Raises:
        UserError: No points, or points of more than one task or model.
    """
    if not points:
        raise UserError("no points to draw: the list is empty, run the arms first")
    groups = comparisons(points)
    if len(groups) > 1:
        names = "; ".join(", ".join(group) for group in groups)
        raise UserError(f"points of {names} cannot share a front: draw them apart")
    measure = MEASURES[y]
    looks = line_looks({point.line: point.family for point in points})
    marks = [mark for point in points if (mark := mark_of(point, y)) is not None]
    near = near_marks(marks, measure)
    split = len(near) < len(marks)
    text = notes(points, marks, y, missing)

    heights = (HEIGHT, NOTE_HEIGHT * (len(text) + 1))
    fig = Figure(figsize=(WIDTH, sum(heights)), dpi=DPI, layout="constrained")
    canvas = FigureCanvasAgg(fig)
    upper, lower = fig.subfigures(2, 1, squeeze=False, height_ratios=heights).flat
    if split:
        main, overview = upper.subplots(1, 2, width_ratios=(3, 1.25))
        panels = [(main, near), (overview, marks)]
    else:
        main = upper.subplots()
        panels = [(main, marks)]
    best = best_marks(marks, measure)
    corners = bound_corners(marks, measure)
    band = noise_band(points, y)
    for axes, shown in panels:
        _limits(axes, shown, measure)
        _backdrop(axes, corners, band)
        _draw_lines(axes, marks, looks, small=axes is not main)
        _draw_front(axes, best, small=axes is not main)
        axes.set_xlabel("Decode speedup over no_exit (right: faster)")
    main.set_ylabel(measure.axis)
    if split:
        main.set_title(f"{len(near)} of {len(marks)} points: {_zoom_words(measure)}", **TITLE)
        overview.set_title(f"all {len(marks)} points (frame: left panel)", **TITLE)
        _frame(overview, main)
    if not marks:
        main.text(0.5, 0.5, cells.NOT_RUN, transform=main.transAxes, ha="center", color=GREY)
    upper.suptitle(_title(points, measure), fontsize=12, fontweight="bold")
    _legend(upper, marks, looks, limited=bool(corners), banded=band is not None)
    lower.text(0.01, 1, "\n".join(text), va="top", fontsize=8, color=GREY, linespacing=1.3)

    # Labels are placed in pixels, so the layout must be final before and stay so after.
    canvas.draw()
    fig.set_layout_engine("none")
    _label(main, panels[0][1], looks, canvas)
    if split:
        _label(overview, [mark for mark in marks if mark not in near], looks, canvas)
    return fig


TITLE: dict[str, Any] = {"loc": "left", "fontsize": 9}


def _zoom_words(measure: Measure) -> str:
    if measure.better > 0:
        return f"{measure.name} of {measure.zoom:g} % and more"
    return f"{measure.name} of {measure.zoom:g} and less"


def _limits(axes: Axes, marks: Sequence[Mark], measure: Measure) -> None:
    """Limits around the points and their intervals; better is up, and no ticks beyond a share."""
    xs, ys = [1.0], [] if measure.best is None else [measure.best]
    for mark in marks:
        xs += [mark.x, *(mark.x_interval or ())]
        ys += [mark.y, *(mark.y_interval or ())]
    ys = ys or [0.0, measure.factor]
    margin = 0.07 * max(max(xs) - min(xs), 0.3)
    axes.set_xlim(min(xs) - margin, max(xs) + 1.6 * margin)
    margin = 0.06 * max(max(ys) - min(ys), measure.narrowest)
    low, high = min(ys) - margin, max(ys) + margin
    axes.set_ylim(*((low, high) if measure.better > 0 else (high, low)))
    ceiling = 100.0 if measure.factor == 100 else high
    axes.set_yticks([tick for tick in axes.get_yticks() if max(low, 0) <= tick <= ceiling])


def _backdrop(
    axes: Axes, corners: Sequence[tuple[float, float]], band: tuple[float, float] | None
) -> None:
    plain_axes(axes)
    axes.axvline(1, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    if band is not None:
        axes.axhspan(*band, color=BAND, linewidth=0, zorder=0)
    if corners:
        _out_of_reach(axes, corners)


def _out_of_reach(axes: Axes, corners: Sequence[tuple[float, float]]) -> None:
    """Hatch what lies right of the stairs through the corners, without moving the limits."""
    (x0, x1), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    # Above the speed of a corner only the next one's y can be had, above the last one's none.
    below = [y for _, y in corners[1:]] + [bottom]
    stairs = [(corners[0][0], top)]
    for (x, y), next_y in zip(corners, below, strict=True):
        stairs += [(x, y), (x, next_y)]
    outside = max(x1, corners[-1][0]) + 1
    axes.fill(
        *zip(*stairs, (outside, bottom), (outside, top), strict=True),
        facecolor="none",
        edgecolor=HATCH_COLOR,
        hatch=HATCH,
        linewidth=0.8,
        zorder=0.5,
        gid="bound",
    )
    axes.set(xlim=(x0, x1), ylim=(bottom, top))


def _draw_lines(axes: Axes, marks: Sequence[Mark], looks: dict[str, Look], small: bool) -> None:
    for name, own in marks_by_line(marks).items():
        look = looks[name]
        for mark in own:
            axes.errorbar(
                mark.x,
                mark.y,
                xerr=error(mark.x, mark.x_interval),
                yerr=error(mark.y, mark.y_interval),
                fmt="none",
                ecolor=look.color,
                elinewidth=0.7,
                alpha=0.55,
                zorder=2,
            )
        axes.plot(
            [mark.x for mark in own],
            [mark.y for mark in own],
            color=look.color,
            linestyle=look.dash,
            linewidth=look.width * (0.7 if small else 1),
            label=name,
            zorder=3,
            **look.markers(4 if small else 6.5),
        )


def _draw_front(axes: Axes, best: Sequence[Mark], small: bool) -> None:
    if not best:
        return
    # Up to its speed, each point of the front is the best there is.
    xs = [axes.get_xlim()[0], *(mark.x for mark in best)]
    ys = [best[0].y, *(mark.y for mark in best)]
    axes.plot(xs, ys, drawstyle="steps-pre", color="black", linewidth=0.8, zorder=2.5, gid="front")
    axes.plot(
        [mark.x for mark in best],
        [mark.y for mark in best],
        color="black",
        linestyle="none",
        zorder=4,
        gid="front points",
        **_ring(8 if small else 13),
    )


def _ring(size: float) -> dict[str, Any]:
    return {"marker": "o", "markersize": size, "markerfacecolor": "none", "markeredgewidth": 1.3}


def _frame(overview: Axes, main: Axes) -> None:
    (x0, x1), (y0, y1) = main.get_xlim(), main.get_ylim()
    frame = Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=GREY, linewidth=1, zorder=4)
    overview.add_patch(frame)


def _title(points: Sequence[OperatingPoint], measure: Measure) -> str:
    return f"{points[0].task}, {points[0].model}: decode speedup and {measure.name}"


def _legend(
    fig: SubFigure, marks: Sequence[Mark], looks: dict[str, Look], *, limited: bool, banded: bool
) -> None:
    handles: list[Artist] = [
        Line2D(
            [],
            [],
            color=looks[line].color,
            linestyle=looks[line].dash if len(own) > 1 else "none",
            linewidth=looks[line].width,
            label=line,
            **looks[line].markers(6.5),
        )
        for line, own in marks_by_line(marks).items()
    ]
    label = "Pareto front: no point is both faster and better"
    handles.append(Line2D([], [], color="black", linewidth=0.8, label=label, **_ring(11)))
    if limited:
        label = "out of reach: faster than the bytes read allow, at any setting here"
        handles.append(Patch(facecolor="none", edgecolor=HATCH_COLOR, hatch=HATCH, label=label))
    if banded:
        handles.append(Patch(color=BAND, label="noise floor: another implementation of no_exit"))
    handles.append(Line2D([], [], color=GREY, linewidth=0.9, label="thin bars: 95 % intervals"))
    fig.legend(
        handles=handles,
        loc="outside lower center",
        ncols=LEGEND_COLUMNS,
        frameon=False,
        fontsize=8,
        handlelength=3.2,
    )


def _label(
    axes: Axes, marks: Sequence[Mark], looks: dict[str, Look], canvas: FigureCanvasAgg
) -> None:
    place_labels(
        axes,
        canvas.get_renderer(),
        [(mark.x, mark.y) for mark in marks],
        [mark.point.label + (" !" if mark.point.flags else "") for mark in marks],
        [text_color(looks[mark.point.line].color) for mark in marks],
        [box for mark in marks for box in _boxes(axes, mark)] + _line_boxes(axes, marks),
    )


def _boxes(axes: Axes, mark: Mark) -> list[Bbox]:
    (x0, x1), (y0, y1) = mark.x_interval or (mark.x,) * 2, mark.y_interval or (mark.y,) * 2
    return boxes(
        axes,
        [
            ((mark.x, mark.y), (mark.x, mark.y), 9),
            ((x0, mark.y), (x1, mark.y), 1),
            ((mark.x, y0), (mark.x, y1), 1),
        ],
    )


def _line_boxes(axes: Axes, marks: Sequence[Mark]) -> list[Bbox]:
    """Small boxes along the lines between the marks."""
    found = []
    for own in marks_by_line(marks).values():
        for start, end in pairwise(axes.transData.transform([(mark.x, mark.y) for mark in own])):
            steps = int(abs(end - start).max() / 8) + 1
            for x, y in np.linspace(start, end, steps):
                found.append(Bbox.from_extents(x - 3, y - 3, x + 3, y + 3))
    return found
