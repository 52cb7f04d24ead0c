"""Time per token at equal score: each method's curve is cut at one score (paper, Figure 3).

A curve goes through a method's operating points in the order of their mean exit depth. Between
two neighbours score and time are taken as linear; beyond the ends nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from river_llm.analysis import cells
from river_llm.analysis.cells import Summary, figure
from river_llm.analysis.points import OperatingPoint, operating_points
from river_llm.errors import UserError

Score = Literal["accuracy", "agreement"]
FLOOR = 0.05
"""An accuracy whose lower bound is not above it says little about the method."""
LEAST_GRADED = 30
"""Answers below which an accuracy is too coarse for a comparison."""
AGREEMENT_LEVELS = (0.5, 0.9)
SHARES_OF_NO_EXIT = (0.5, 0.9)
"""Levels of accuracy, as shares of no_exit's own."""


@dataclass(frozen=True)
class TimedPoint:
    """An operating point with its time.

    Attributes:
        depth: mean exit depth, which orders a curve.
        score: share, 0..1.
        ms: milliseconds per token.
    """

    depth: float
    score: float
    ms: float


@dataclass(frozen=True)
class Curve:
    """A method's points in the order of their depth, one at least.

    Attributes:
        line: name of the method with what makes it another one.
        family: key of :data:`river_llm.analysis.styles.STYLES`.
        points: see :class:`TimedPoint`.
    """

    line: str
    family: str
    points: tuple[TimedPoint, ...]


@dataclass(frozen=True)
class Cut:
    """What a curve says about one score.

    Attributes:
        kind: `reached`: the curve crosses the level (or has a point on it); `not reached`: every
            point scores less; `exceeded`: every point scores more, so the fastest one is told.
        ms: time per token there; None where it is not reached.
        score: at that time; None where it is not reached.
    """

    kind: Literal["reached", "not reached", "exceeded"]
    ms: float | None = None
    score: float | None = None


def cut(points: Sequence[TimedPoint], level: float) -> Cut:
    """Where a curve has a score; the fastest place where it has it several times.

    Args:
        points: in the order of the curve, one at least.
        level: the score.
    """
    found = [point.ms for point in points if point.score == level]
    for a, b in pairwise(points):
        if min(a.score, b.score) < level < max(a.score, b.score):
            found.append(a.ms + (level - a.score) / (b.score - a.score) * (b.ms - a.ms))
    if found:
        return Cut("reached", min(found), level)
    if max(point.score for point in points) < level:
        return Cut("not reached")
    fastest = min(points, key=lambda point: point.ms)
    return Cut("exceeded", fastest.ms, fastest.score)


def score_of(summaries: Sequence[Summary]) -> Score:
    """Accuracy where it can tell methods apart, else agreement with no_exit.

    It can where every run graded at least 30 answers and the lower bound of no_exit's accuracy is
    above 5 %.
    """
    if any(summary["accuracy"]["graded"] < LEAST_GRADED for summary in summaries):
        return "agreement"
    lows = [
        figure(summary, "accuracy", "low")
        for summary in summaries
        if summary["method"] == cells.REFERENCE_METHOD
    ]
    return (
        "accuracy"
        if lows and all(low is not None and low > FLOOR for low in lows)
        else ("agreement")
    )


def reference_ms(summaries: Sequence[Summary]) -> float:
    """Median of no_exit's milliseconds per token over the paired timings of all runs.

    Raises:
        UserError: no run was timed.
    """
    found = [figure(cells.matched(summary), "no_exit_ms_per_token") for summary in summaries]
    timed = [ms for ms in found if ms is not None]
    if not timed:
        raise UserError("none of these runs was timed: run them with speedup.prompts of 1 or more")
    return median(timed)


def curves(summaries: Sequence[Summary], score: Score) -> list[Curve]:
    """The curves of all methods, in the order of legends.

    A point's time is no_exit's (:func:`reference_ms`) over the point's paired speedup, so that a
    slow hour of the machine does not count against what ran in it. Points that lack a figure are
    left out.

    Args:
        summaries: of one task and model.
        score: on which the methods are compared.

    Raises:
        UserError: no run was timed.
    """
    reference = reference_ms(summaries)
    found: dict[tuple[str, str], list[TimedPoint]] = {}
    for point in operating_points(summaries):
        timed = _timed(point, score, reference)
        if timed is not None:
            found.setdefault((point.line, point.family), []).append(timed)
    return [
        Curve(line, family, tuple(sorted(points, key=lambda point: point.depth)))
        for (line, family), points in found.items()
    ]


def _timed(point: OperatingPoint, score: Score, reference: float) -> TimedPoint | None:
    value = point.accuracy.value if score == "accuracy" else point.agreement.value
    if value is None or point.speedup.value is None or point.mean_depth is None:
        return None
    return TimedPoint(point.mean_depth, value, reference / point.speedup.value)


def default_levels(found: Sequence[Curve], score: Score) -> tuple[float, ...]:
    """Two scores to compare at: 50 and 90 % agreement, or half and nine tenths of no_exit's.

    Raises:
        UserError: accuracy without a no_exit run.
    """
    if score == "agreement":
        return AGREEMENT_LEVELS
    whole = [c.points[0].score for c in found if c.family == cells.REFERENCE_METHOD]
    if not whole:
        raise UserError("no no_exit run among these: its accuracy sets the levels, or give them")
    return tuple(share * whole[0] for share in SHARES_OF_NO_EXIT)


def cuts(found: Sequence[Curve], level: float) -> Mapping[str, Cut]:
    """What every curve says about a score, by line."""
    return {curve.line: cut(curve.points, level) for curve in found}
