"""Where tokens leave River's backbone beside where an oracle could have (paper, Figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from river_llm.analysis.cells import Summary, pick
from river_llm.analysis.figures import plain_axes
from river_llm.analysis.positions import depth_histogram
from river_llm.analysis.provenance import captioned
from river_llm.analysis.styles import GREY, STYLES
from river_llm.errors import UserError

ORACLE_COLOR = STYLES["recompute"][0]  # the method whose logits and entries the oracle is of
RIVER_COLOR = STYLES["river"][0]
WIDTH, ROW_HEIGHT = 9.0, 1.45


@dataclass(frozen=True)
class DepthRow:
    """One row of the figure.

    Attributes:
        name: whose depths.
        color: of its bars.
        tokens: decode steps at depth 0..L, length L+1.
        texts: texts at depth 0..L, one depth for each.
    """

    name: str
    color: str
    tokens: list[int]
    texts: list[int]


def oracle_row(steps: pd.DataFrame, layers: int) -> DepthRow:
    """The oracle's depths from the record of `scripts/analyze_depth.py`.

    Args:
        steps: one row per decode step: id, oracle_depth.
        layers: L.

    Returns:
        Token by token, and the depth that keeps every token of a text: its deepest one.
    """
    return DepthRow(
        "Oracle",
        ORACLE_COLOR,
        _counts(steps["oracle_depth"], layers),
        _counts(steps.groupby("id")["oracle_depth"].max(), layers),
    )


def river_rows(
    summaries: Sequence[Summary], forced: Sequence[Mapping[str, Any] | None]
) -> list[DepthRow]:
    """Rows of the River runs whose depth is the similarity's in prompt and decode steps.

    Args:
        summaries: of any runs.
        forced: content of each one's forced_scores.json; runs without it are left out.

    Returns:
        By rising mean depth of the decode steps on no_exit's text; `texts` are the depths that
        the prompts took.
    """
    rows = []
    for summary, scores in zip(summaries, forced, strict=True):
        settings = summary["settings"]
        if (
            summary["method"] != "river"
            or pick(settings, "prefill") != "sequence"
            or pick(settings, "criterion", "name") != "similarity"
            or scores is None
        ):
            continue
        layers = int(summary["exit_depth"]["layers"])
        rows.append(
            DepthRow(
                f"River\nτ = {settings['criterion']['tau']:.3g}",
                RIVER_COLOR,
                depth_histogram(summary, scores).counts,
                _counts([row["prefill_depth"] for row in scores["samples"].values()], layers),
            )
        )
    return sorted(rows, key=lambda row: mean_depth(row.tokens))


def mean_depth(counts: Sequence[int]) -> float:
    """Mean depth of a histogram over depths 0..L."""
    return sum(depth * count for depth, count in enumerate(counts)) / sum(counts)


def _counts(depths: Any, layers: int) -> list[int]:
    found: list[int] = np.bincount(
        np.asarray(depths, dtype=np.int64), minlength=layers + 1
    ).tolist()
    return found


def exit_distribution_figure(
    rows: Sequence[DepthRow], title: str, notes: Sequence[str] = ()
) -> Figure:
    """Draw a row of two histograms for each: token level on the left, sequence level on the right.

    All share the axis of depths; a dashed line marks the mean, which is written beside it.

    Args:
        rows: one at least, of one model.
        title: of the figure.
        notes: the caption, below the picture.

    Raises:
        UserError: nothing to draw, or histograms of several models.
    """
    drawn = [row for row in rows if sum(row.tokens)]
    if not drawn:
        raise UserError("no exit depths to draw: run the sweep or scripts/analyze_depth.py first")
    lengths = {len(counts) for row in drawn for counts in (row.tokens, row.texts)}
    if len(lengths) > 1:
        raise UserError(f"depths of models with {sorted(n - 1 for n in lengths)} layers: draw one")
    layers = lengths.pop() - 1
    size = (WIDTH, ROW_HEIGHT * len(drawn) + 1.3)
    fig, upper = captioned(size, notes)
    grid = upper.subplots(len(drawn), 2, squeeze=False, sharex=True)
    for axes_pair, row in zip(grid, drawn, strict=True):
        _bars(axes_pair[0], row.tokens, row.color)
        _bars(axes_pair[1], row.texts, row.color)
        axes_pair[0].set_ylabel(row.name, fontsize=10, color="black", fontweight="bold")
    grid[0][0].set_title("Token level: share of decode steps, %", loc="left", fontsize=10)
    grid[0][1].set_title("Sequence level: share of texts, %", loc="left", fontsize=10)
    grid[-1][0].set_xlim(-0.7, layers + 0.7)
    grid[-1][0].set_xticks(sorted({round(layers * part / 6) for part in range(7)}))
    upper.supxlabel(
        f"Exit depth: backbone layers that run, of {layers} (right end: no exit)", fontsize=10
    )
    upper.suptitle(title, fontsize=12, fontweight="bold")
    return fig


def _bars(axes: Axes, counts: Sequence[int], color: str) -> None:
    total = sum(counts)
    plain_axes(axes)
    top = 100 * max(counts) / total if total else 100
    axes.set_ylim(0, 1.3 * top)
    axes.set_yticks([0, 25, 50, 75, 100] if top > 40 else [0, 10, 20, 30, 40])
    axes.set_ylim(0, 1.3 * top)
    if not total:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=GREY)
        return
    axes.bar(range(len(counts)), [100 * count / total for count in counts], 0.85, color=color)
    mean = mean_depth(counts)
    axes.axvline(mean, color="black", linewidth=1.1, linestyle=(0, (3, 2)))
    right = mean > len(counts) / 2
    axes.annotate(
        f"mean {mean:.1f}",
        (mean, 0.97),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if right else 4, 0),
        textcoords="offset points",
        ha="right" if right else "left",
        va="top",
        fontsize=9,
    )
