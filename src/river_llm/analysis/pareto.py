"""The points of a comparison that no other point beats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Point = Mapping[str, Any]


def front(points: Sequence[Point], maximize: Sequence[str], minimize: Sequence[str]) -> list[Point]:
    """The Pareto front, in the order given.

    A point leaves when another is at least as good in every figure and better in one; so of two
    points that tie in one figure the worse in the other leaves, and identical points stay both. A
    point that lacks a figure (missing, None, NaN) cannot be compared and leaves.

    Args:
        points: figures by name; other entries are carried along.
        maximize: names of figures that are better when larger.
        minimize: names of figures that are better when smaller.

    Raises:
        ValueError: no figure is named, or one is named twice.
    """
    names = [*maximize, *minimize]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"each figure is named once, and at least one is: {names}")
    signs = [1.0] * len(maximize) + [-1.0] * len(minimize)
    figures = [_figures(point, names, signs) for point in points]
    return [
        point
        for point, own in zip(points, figures, strict=True)
        if own is not None and not any(_beats(other, own) for other in figures if other)
    ]


def _figures(point: Point, names: Sequence[str], signs: Sequence[float]) -> list[float] | None:
    """A point's figures, turned so that larger is better; None where one is missing."""
    values = [float(math.nan if point.get(name) is None else point[name]) for name in names]
    if any(math.isnan(value) for value in values):
        return None
    return [sign * value for sign, value in zip(signs, values, strict=True)]


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)
