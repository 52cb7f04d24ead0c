"""Text beside points, placed so that no text covers another text or a mark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import hypot

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

FONT_SIZE = 8
DISTANCES = (8, 14, 22, 32, 44, 58, 74)  # points between an anchor and its text
DIRECTIONS = ((1, 0), (0, 1), (0, -1), (-1, 0), (0.7, 0.7), (0.7, -0.7), (-0.7, 0.7), (-0.7, -0.7))
SWEEPS = 4
Array = npt.NDArray[np.float64]
# Costs for a square pixel of overlap, the last of the line for a pixel of distance.
OUTSIDE_COST, TEXT_COST, MARK_COST, DISTANCE_COST = 40.0, 20.0, 6.0, 10.0
AMBIGUITY_COST = 3000.0  # for each other anchor that is nearer to the text than its own
LEADER_FROM = 12  # points from which a thin line joins text and anchor


def place_labels(
    axes: Axes,
    renderer: RendererBase,
    anchors: Sequence[tuple[float, float]],
    texts: Sequence[str],
    colors: Sequence[str],
    marks: Sequence[Bbox],
) -> list[Bbox]:
    """Write one text beside each anchor.

    Greedy, and swept a few times, so that the first labels give way to the later ones too.

    Args:
        axes: The axes to write in; limits and layout must be final.
        renderer: Measures the texts.
        anchors: Points in data coordinates.
        texts: One label for each point.
        colors: The colour of each text.
        marks: What should stay uncovered beside the texts (markers, error bars), in pixels.

    Returns:
        The boxes of the labels in pixels.
    """
    pixels = np.array([axes.transData.transform(anchor) for anchor in anchors]).reshape(-1, 2)
    scale = axes.figure.dpi / 72
    choices = [
        _Choices(list(_candidates(x, y, *_measure(axes, renderer, text), scale)), i, pixels)
        for i, ((x, y), text) in enumerate(zip(pixels, texts, strict=True))
    ]
    for own in choices:
        own.cost += OUTSIDE_COST * (own.areas - _overlaps(own.extents, _extents([axes.bbox]))[:, 0])
        own.cost += MARK_COST * _overlaps(own.extents, _extents(marks)).sum(axis=1)
    taken = np.full((len(texts), 4), np.nan)
    for _ in range(SWEEPS):
        for i, own in enumerate(choices):
            others = np.delete(taken, i, axis=0)
            others = others[~np.isnan(others[:, 0])]
            cost = own.cost + TEXT_COST * _overlaps(own.extents, others).sum(axis=1)
            taken[i] = own.extents[np.argmin(cost)]
    placed = [Bbox.from_extents(*extent) for extent in taken]
    for (x, y), anchor, text, color, box in zip(
        pixels, anchors, texts, colors, placed, strict=True
    ):
        # In points, since a vector file counts other pixels than the renderer here.
        centre = (((box.x0 + box.x1) / 2 - x) / scale, ((box.y0 + box.y1) / 2 - y) / scale)
        leader = {"arrowstyle": "-", "color": color, "lw": 0.6, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            text,
            anchor,
            centre,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=FONT_SIZE,
            color=color,
            zorder=5,
            path_effects=[withStroke(linewidth=2, foreground="white")],
            arrowprops=leader if _gap(box, x, y) > LEADER_FROM * scale else None,
        )
    return placed


def _measure(axes: Axes, renderer: RendererBase, text: str) -> tuple[float, float]:
    probe = axes.text(0, 0, text, fontsize=FONT_SIZE)
    box = probe.get_window_extent(renderer)
    probe.remove()
    return box.width, box.height


def _candidates(
    x: float, y: float, width: float, height: float, scale: float
) -> Iterator[tuple[float, Bbox]]:
    """(distance in pixels, box) around an anchor, the nearest and most readable first."""
    for distance in DISTANCES:
        away = distance * scale
        for right, up in DIRECTIONS:
            left = x + right * away + (right > 0) * width / 2 - (right < 0) * width / 2 - width / 2
            base = y + up * away + (up > 0) * height / 2 - (up < 0) * height / 2 - height / 2
            yield away, Bbox.from_bounds(left, base, width, height)


def _gap(box: Bbox, x: float, y: float) -> float:
    return hypot(max(box.x0 - x, x - box.x1, 0), max(box.y0 - y, y - box.y1, 0))


class _Choices:
    """The candidates for one text, and what each costs whatever the other texts do."""

    def __init__(self, candidates: list[tuple[float, Bbox]], own: int, pixels: Array) -> None:
        self.extents = _extents([box for _, box in candidates])
        x0, y0, x1, y1 = self.extents.T
        self.areas = (x1 - x0) * (y1 - y0)
        x, y = pixels[:, :1], pixels[:, 1:]
        gaps = np.hypot(
            np.maximum(np.maximum(x0 - x, x - x1), 0), np.maximum(np.maximum(y0 - y, y - y1), 0)
        )
        nearer = (gaps < gaps[own]).sum(axis=0)
        distances = np.array([distance for distance, _ in candidates])
        self.cost: Array = DISTANCE_COST * distances + AMBIGUITY_COST * nearer


def _extents(boxes: Sequence[Bbox]) -> Array:
    """left, low, right, high of each box, shape [n, 4]."""
    return np.array([box.extents for box in boxes], dtype=np.float64).reshape(-1, 4)


def _overlaps(some: Array, others: Array) -> Array:
    """Common area of each of some with each of the others, shape [n, m]."""
    low = np.maximum(some[:, None, :2], others[None, :, :2])
    high = np.minimum(some[:, None, 2:], others[None, :, 2:])
    sides = np.maximum(high - low, 0)
    common: Array = sides[..., 0] * sides[..., 1]
    return common
