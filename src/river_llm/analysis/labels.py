"""Text beside points, placed so that no text covers another text or a mark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import hypot

from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

FONT_SIZE = 8
DISTANCES = (8, 14, 22, 32, 44, 58, 74)  # points between an anchor and its text
DIRECTIONS = ((1, 0), (0, 1), (0, -1), (-1, 0), (0.7, 0.7), (0.7, -0.7), (-0.7, 0.7), (-0.7, -0.7))
SWEEPS = 4
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
    pixels = [axes.transData.transform(anchor) for anchor in anchors]
    scale = axes.figure.dpi / 72
    choices = [
        list(_candidates(x, y, *_measure(axes, renderer, text), scale))
        for (x, y), text in zip(pixels, texts, strict=True)
    ]
    boxes: list[Bbox | None] = [None] * len(texts)
    for _ in range(SWEEPS):
        for i, candidates in enumerate(choices):
            others = [box for j, box in enumerate(boxes) if j != i and box is not None]
            costs = [
                DISTANCE_COST * distance
                + AMBIGUITY_COST
                * sum(_gap(box, *pixel) < _gap(box, *pixels[i]) for pixel in pixels)
                + _overlap_cost(box, axes.bbox, others, marks)
                for distance, box in candidates
            ]
            boxes[i] = candidates[costs.index(min(costs))][1]
    placed = [box for box in boxes if box is not None]
    for (x, y), anchor, text, color, box in zip(
        pixels, anchors, texts, colors, placed, strict=True
    ):
        centre = ((box.x0 + box.x1) / 2 - x, (box.y0 + box.y1) / 2 - y)
        leader = {"arrowstyle": "-", "color": color, "lw": 0.6, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            text,
            anchor,
            centre,
            textcoords="offset pixels",
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


def _overlap_cost(box: Bbox, frame: Bbox, texts: Sequence[Bbox], marks: Sequence[Bbox]) -> float:
    area = box.width * box.height
    return (
        OUTSIDE_COST * (area - _overlap(box, frame))
        + TEXT_COST * sum(_overlap(box, text) for text in texts)
        + MARK_COST * sum(_overlap(box, mark) for mark in marks)
    )


def _gap(box: Bbox, x: float, y: float) -> float:
    return hypot(max(box.x0 - x, x - box.x1, 0), max(box.y0 - y, y - box.y1, 0))


def _overlap(one: Bbox, other: Bbox) -> float:
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(width, 0) * max(height, 0))
