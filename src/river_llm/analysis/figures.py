"""What all figures share: how axes look, how files are written, what labels keep clear of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from river_llm.analysis.points import Interval
from river_llm.records import replacing

DPI = 150
FORMATS = ("png", "svg", "pdf")


def text_color(color: str) -> str:
    """The same hue, dark enough for thin strokes on white."""
    red, green, blue = to_rgb(color)
    return to_hex((0.7 * red, 0.7 * green, 0.7 * blue))


def plain_axes(axes: Axes) -> None:
    """Two spines, and a faint grid behind what is drawn."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def error(value: float, interval: Interval) -> list[list[float]] | None:
    """An interval as matplotlib's errorbar wants it: distances below and above the value."""
    if interval is None:
        return None
    return [[max(value - interval[0], 0)], [max(interval[1] - value, 0)]]


def boxes(
    axes: Axes, lines: Sequence[tuple[tuple[float, float], tuple[float, float], float]]
) -> list[Bbox]:
    """Boxes in pixels around horizontal and vertical strokes, for labels to keep clear of.

    Args:
        axes: limits and layout must be final.
        lines: begin and end in data coordinates, and the pixels to leave around.
    """
    found = []
    for start, end, pad in lines:
        pixels = axes.transData.transform([start, end])
        (left, low), (right, high) = pixels.min(axis=0), pixels.max(axis=0)
        found.append(Bbox.from_extents(left - pad, low - pad, right + pad, high + pad))
    return found


def write_figure(fig: Figure, stem: str | Path) -> list[Path]:
    """Write a figure as PNG, SVG and PDF, the same bytes for the same figure.

    Args:
        fig: the figure.
        stem: path without a suffix; its folder is made.

    Returns:
        The three paths.
    """
    dates = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    paths = [Path(f"{stem}.{kind}") for kind in FORMATS]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "river_llm"}):
        for kind, path in zip(FORMATS, paths, strict=True):
            with replacing(path) as temporary:
                fig.savefig(temporary, format=kind, metadata=dates[kind])
    return paths
