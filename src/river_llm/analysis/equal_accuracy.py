"""What each method reaches without losing accuracy: its fastest point within a margin."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from river_llm.analysis.points import lines
from river_llm.analysis.statistics import pairs_to_prove, provable_margin
from river_llm.analysis.table2_rows import Block, Row


@dataclass(frozen=True)
class EqualAccuracy:
    """One method of a block at no_exit's accuracy.

    Attributes:
        line: the method with everything that makes it another method.
        points: how many settings of it were run.
        judged: how many of them have an accuracy paired with no_exit's and a depth below L.
        full_depth_only: whether none of them skipped a layer.
        pairs: samples of the judged points with a verdict in both runs; the most of them.
        provable: the smallest margin, in points, that so many pairs can prove where no verdict
            changed; None without pairs.
        fastest: the point; None: none is within the margin, or nothing was judged.
    """

    line: str
    points: int
    judged: int
    full_depth_only: bool
    pairs: int
    provable: float | None
    fastest: Row | None


def equal_accuracy(block: Block, margin: float) -> list[EqualAccuracy]:
    """For each method of a block the fastest point that is proven to be within the margin.

    A point counts when the lower end of the interval of its accuracy's paired difference to
    no_exit is no more than the margin below 0. One at full depth is no_exit by another name and
    does not count; of points without a measured speedup none is the fastest before one with it.

    Args:
        block: rows of one model and task.
        margin: in percentage points.
    """
    rows = {row.point.identity: row for row in block.rows if row.point is not None}
    points = [row.point for row in rows.values() if row.point and not row.is_no_exit]
    found = []
    for line, own in lines(points).items():
        judged = [
            row
            for row in (rows[point.identity] for point in own)
            if row.difference is not None and _below_full_depth(row)
        ]
        pairs = max((row.difference.pairs for row in judged if row.difference), default=0)
        provable = provable_margin(pairs)
        within = [row for row in judged if proven_within(row, margin)]
        found.append(
            EqualAccuracy(
                line,
                len(own),
                len(judged),
                all(_depth_share(rows[point.identity]) == 1 for point in own),
                pairs,
                None if provable is None else 100 * provable,
                max(within, key=_speed, default=None),
            )
        )
    return found


def proven_within(row: Row, margin: float) -> bool:
    """Whether a run's accuracy is proven to be no more than `margin` points below no_exit's."""
    low = None if row.difference is None else row.difference.points.low
    return low is not None and low >= -margin


def pairs_needed(margin: float) -> int:
    """Samples from which on a run without a changed verdict is within so many points."""
    return pairs_to_prove(margin / 100)


def _depth_share(row: Row) -> float | None:
    """Mean depth over L."""
    if row.mean_depth is None or row.point is None:
        return None
    return row.mean_depth / row.point.layers


def _below_full_depth(row: Row) -> bool:
    share = _depth_share(row)
    return share is not None and share < 1


def _speed(row: Row) -> float:
    value = row.point.speedup.value if row.point is not None else None
    return -inf if value is None else value
