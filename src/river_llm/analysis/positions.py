"""Fidelity by position in the text, and how deep tokens ran: from scores on forced texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from river_llm.analysis.cells import Summary
from river_llm.analysis.points import Estimate, percents, with_interval
from river_llm.analysis.statistics import bootstrap_ratio
from river_llm.errors import UserError

BIN_TOKENS = 16
FORCED, FREE = "forced steps", "free-running steps"


@dataclass(frozen=True)
class PositionBin:
    """Fidelity over the tokens of some neighbouring positions.

    Attributes:
        first, end: positions first..end-1 of the generated text, counted from 0.
        samples: texts that reach into the bin; the intervals are over these.
        tokens: their tokens in it.
        agreement: share of tokens that were the most likely ones.
        excess_nll: mean negative log-likelihood minus no_exit's, in nats.
    """

    first: int
    end: int
    samples: int
    tokens: int
    agreement: Estimate
    excess_nll: Estimate


def fidelity_by_position(
    forced: Mapping[str, Any], bin_tokens: int = BIN_TOKENS
) -> list[PositionBin]:
    """Agreement and excess negative log-likelihood in bins of positions.

    A bin's figure is over its tokens, whichever text they are of, with a 95 % bootstrap over the
    texts that reach into it. Texts that have ended are not counted, so late bins are over fewer.

    Args:
        forced: content of forced_scores.json.
        bin_tokens: width of a bin; the last one may be narrower.

    Raises:
        UserError: no tokens, or lists of unequal lengths.
    """
    samples = forced["samples"]
    for name, scores in samples.items():
        if len(scores["equal"]) != len(scores["excess_nll"]):
            raise UserError(
                f"sample {name!r} has {len(scores['equal'])} predictions and "
                f"{len(scores['excess_nll'])} likelihoods: measure the run's fidelity again"
            )
    longest = max((len(scores["equal"]) for scores in samples.values()), default=0)
    if not longest:
        raise UserError("no forced tokens to show: run with fidelity.limit of 1 or more")
    return [
        _bin(list(samples.values()), first, min(first + bin_tokens, longest))
        for first in range(0, longest, bin_tokens)
    ]


def _bin(samples: Sequence[Mapping[str, Any]], first: int, end: int) -> PositionBin:
    inside = [scores for scores in samples if len(scores["equal"]) > first]
    counts = [len(scores["equal"][first:end]) for scores in inside]

    def figure(key: str) -> Estimate:
        sums = [float(sum(scores[key][first:end])) for scores in inside]
        return Estimate(*bootstrap_ratio(sums, counts))

    return PositionBin(
        first=first,
        end=end,
        samples=len(inside),
        tokens=sum(counts),
        agreement=figure("equal"),
        excess_nll=figure("excess_nll"),
    )


@dataclass(frozen=True)
class DepthHistogram:
    """How many decode steps ran to which exit depth.

    Attributes:
        counts: steps at depth 0..L, length L+1.
        source: which steps: those on no_exit's text, or those of the method's own.
    """

    counts: list[int]
    source: str

    @property
    def mean(self) -> float | None:
        """Mean depth, None without steps."""
        steps = sum(self.counts)
        return sum(d * n for d, n in enumerate(self.counts)) / steps if steps else None


def depth_histogram(summary: Summary, forced: Mapping[str, Any] | None) -> DepthHistogram:
    """Exit depths of the forced steps, else those of the summary's free-running text.

    Args:
        summary: of the run.
        forced: content of its forced_scores.json, None where there is none.

    Raises:
        UserError: a depth outside 0..L.
    """
    layers = int(summary["exit_depth"]["layers"])
    samples = {} if forced is None else forced["samples"]
    depths = [depth for scores in samples.values() for depth in scores["depths"]]
    if not depths:
        return DepthHistogram(list(summary["exit_depth"]["histogram"]), FREE)
    if min(depths) < 0 or max(depths) > layers:
        raise UserError(
            f"{summary['arm']}: exit depths {min(depths)} to {max(depths)} lie outside "
            f"0..{layers}; the scores are of another model, measure the run's fidelity again"
        )
    counts = np.bincount(np.asarray(depths, dtype=np.int64), minlength=layers + 1)
    return DepthHistogram(counts.tolist(), FORCED)


def positions_frame(runs: Mapping[str, Sequence[PositionBin]]) -> pd.DataFrame:
    """One row of text cells per run and bin.

    Args:
        runs: bins by the name of the run.
    """
    rows = [
        [
            name,
            f"{bin_.first} to {bin_.end - 1}",
            str(bin_.samples),
            str(bin_.tokens),
            percents(bin_.agreement),
            with_interval(bin_.excess_nll, 4),
        ]
        for name, bins in runs.items()
        for bin_ in bins
    ]
    columns = ["Arm", "Positions", "Texts", "Tokens", "Agreement % [95%]", "Excess NLL [95%]"]
    return pd.DataFrame(rows, columns=columns)
