"""How far a run's accuracy is from no_exit's, on the same samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from river_llm.analysis.comparison import Record, compare
from river_llm.analysis.points import Estimate
from river_llm.analysis.statistics import paired_difference_interval


@dataclass(frozen=True)
class PairedDifference:
    """Changed verdicts between no_exit and a run.

    Attributes:
        pairs: samples with a verdict in both runs.
        lost, gained: of them those that are right in no_exit alone, and in the run alone.
        points: (gained - lost) / pairs in percentage points, with Tango's 95 % score interval.
        p: of the exact McNemar test.
    """

    pairs: int
    lost: int
    gained: int
    points: Estimate
    p: float


def paired_difference(no_exit: Iterable[Record], run: Iterable[Record]) -> PairedDifference | None:
    """The difference of a run's accuracy to no_exit's, paired by sample.

    Args:
        no_exit: sample records of no_exit.
        run: those of the run.

    Returns:
        None where no sample has a verdict in both.

    Raises:
        UserError: no common sample, or one with another prompt in the other run.
    """
    verdicts = compare(no_exit, run)["verdicts"]
    pairs = verdicts["graded"]
    if not pairs:
        return None
    lost, gained = len(verdicts["right_to_wrong"]), len(verdicts["wrong_to_right"])
    ends = paired_difference_interval(gained, lost, pairs)
    points = [None if share is None else 100 * share for share in ((gained - lost) / pairs, *ends)]
    return PairedDifference(pairs, lost, gained, Estimate(*points), verdicts["mcnemar_p"])
