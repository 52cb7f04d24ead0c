"""The picture of peak memory over the context: measured points on predicted lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from river_llm.analysis.figures import plain_axes
from river_llm.analysis.provenance import captioned
from river_llm.analysis.styles import GREY, line_looks
from river_llm.errors import UserError

WIDTH, HEIGHT = 7.6, 4.6
GIB = 2**30

Curves = Mapping[str, Sequence[Mapping[str, Any]]]
"""Arm to its points, see `river_llm.evaluation.memory_curve.measure_curve`."""


def predicted_bytes(parts: Mapping[str, int]) -> int:
    """The sum of the parts that stay in memory."""
    return sum(parts.values())


def memory_figure(
    curves: Curves, families: Mapping[str, str], title: str, notes: Sequence[str] = ()
) -> Figure:
    """Draw memory in GiB over the context.

    Args:
        curves: the arms.
        families: for each arm the key of `styles.STYLES`.
        title: of the figure.
        notes: the caption, below the picture.

    Raises:
        UserError: nothing to draw.
    """
    if not any(curves.values()):
        raise UserError("no measured memory to draw: run scripts/plot_memory.py")
    fig, upper = captioned((WIDTH, HEIGHT), notes)
    axes = upper.subplots()
    looks = line_looks(families)
    plain_axes(axes)
    axes.set_xscale("log", base=2)
    contexts = sorted({point["context"] for points in curves.values() for point in points})
    top = 0.0
    for arm, points in curves.items():
        look = looks[arm]
        xs = [point["context"] for point in points]
        lines = [predicted_bytes(point["parts"]) / GIB for point in points]
        found = [point["peak_bytes"] / GIB for point in points]
        top = max([top, *lines, *found])
        axes.plot(xs, lines, color=look.color, linestyle=look.dash, linewidth=1.6)
        axes.plot(xs, found, color=look.color, linestyle="none", **look.markers(6))
    axes.set_ylim(0, 1.06 * top)
    axes.xaxis.set_major_locator(FixedLocator(contexts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([_short(context) for context in contexts])
    axes.set_xlabel("Context, tokens")
    axes.set_ylabel("Peak memory, GiB")
    axes.set_title(title, fontsize=12, fontweight="bold", loc="left")
    # From above to below, as the lines end.
    order = sorted(curves, key=lambda arm: -predicted_bytes(curves[arm][-1]["parts"]))
    handles = [
        Line2D([], [], color=looks[arm].color, linestyle=looks[arm].dash, **looks[arm].markers(6))
        for arm in order
    ]
    labels = list(order)
    handles += [
        Line2D([], [], color=GREY, linestyle="none", marker="o"),
        Line2D([], [], color=GREY),
    ]
    labels += ["measured", "sum of the parts"]
    axes.legend(handles, labels, frameon=False, fontsize=9, loc="upper left")
    return fig


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)
