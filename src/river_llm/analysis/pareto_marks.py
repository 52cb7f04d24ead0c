"""What a Pareto picture shows: its measures, points and fronts, before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from river_llm.analysis.pareto import front
from river_llm.analysis.points import Estimate, Interval, OperatingPoint, noise_floor

Y = Literal["agreement", "accuracy", "excess_nll"]


@dataclass(frozen=True)
class Measure:
    """What stands on the y axis.

    Attributes:
        name: in titles and notes.
        axis: label of the axis.
        factor: from the records' unit to the axis'.
        better: 1 where more is better, -1 where less is.
        best: value at no_exit by definition, in the axis' unit; None: it is measured there too.
        zoom: worse points than this stand in the overview alone; None: there is no overview.
        narrowest: least height of the zoom, in the axis' unit.
    """

    name: str
    axis: str
    factor: float
    better: int
    best: float | None
    zoom: float | None
    narrowest: float


MEASURES: dict[Y, Measure] = {
    "agreement": Measure(
        "agreement with no_exit",
        "Same next token as no_exit, % (up: closer)",
        100,
        1,
        100.0,
        80.0,
        5.0,
    ),
    "accuracy": Measure("accuracy", "Correct answers, %", 100, 1, None, None, 10.0),
    "excess_nll": Measure(
        "excess negative log-likelihood",
        "Excess NLL over no_exit, nats per token (up: closer)",
        1,
        -1,
        0.0,
        0.25,
        0.02,
    ),
}


@dataclass(frozen=True)
class Mark:
    """A point as it is drawn, in the axes' units."""

    point: OperatingPoint
    x: float
    y: float
    x_interval: Interval
    y_interval: Interval


def estimate(point: OperatingPoint, y: Y) -> Estimate:
    """A point's figure on the y axis, in the records' unit."""
    found: Estimate = getattr(point, y)
    return found


def mark_of(point: OperatingPoint, y: Y) -> Mark | None:
    """Where a point stands, None where one of its two figures is missing."""
    found = estimate(point, y)
    if point.speedup.value is None or found.value is None:
        return None
    factor = MEASURES[y].factor
    ends = found.interval
    return Mark(
        point=point,
        x=point.speedup.value,
        y=factor * found.value,
        x_interval=point.speedup.interval,
        y_interval=None if ends is None else (factor * ends[0], factor * ends[1]),
    )


def marks_by_line(marks: Sequence[Mark]) -> dict[str, list[Mark]]:
    """The marks of each line by rising speed, lines in the order given."""
    found: dict[str, list[Mark]] = {}
    for mark in marks:
        found.setdefault(mark.point.line, []).append(mark)
    return {line: sorted(own, key=lambda mark: mark.x) for line, own in found.items()}


def near_marks(marks: Sequence[Mark], measure: Measure) -> list[Mark]:
    """The marks for a panel of its own, those that come close to no_exit; else all of them.

    There is no such panel where all points are close, or none but no_exit's.
    """
    if measure.zoom is None:
        return list(marks)
    near = [mark for mark in marks if measure.better * (mark.y - measure.zoom) >= 0]
    return near if any(not mark.point.is_reference for mark in near) else list(marks)


def best_marks(marks: Sequence[Mark], measure: Measure) -> list[Mark]:
    """The marks that no other beats in speed and y, by rising speed."""
    figures = [{"x": mark.x, "y": measure.better * mark.y, "mark": mark} for mark in marks]
    kept = [entry["mark"] for entry in front(figures, ["x", "y"], [])]
    return sorted(kept, key=lambda mark: mark.x)


def bound_corners(marks: Sequence[Mark], measure: Measure) -> list[tuple[float, float]]:
    """The front of (bound_speedup, y), by rising bound.

    Beyond it no setting that was measured can be: of those with so good a y, each reads more
    bytes than the speed leaves time for.
    """
    figures = [
        {"x": mark.point.bound, "y": measure.better * mark.y, "at": (mark.point.bound, mark.y)}
        for mark in marks
        if not mark.point.is_reference
    ]
    return sorted({entry["at"] for entry in front(figures, ["x", "y"], [])})


def noise_band(points: Sequence[OperatingPoint], y: Y) -> tuple[float, float] | None:
    """What two implementations of no_exit differ by, on the y axis; None where not measured."""
    if y == "agreement":
        floor = noise_floor(points)
        return None if floor is None else (100 * floor, 100.0)
    if y == "excess_nll":
        floors = [abs(p.noise_floor_nll) for p in points if p.noise_floor_nll is not None]
        return (-max(floors), max(floors)) if floors else None
    return None
