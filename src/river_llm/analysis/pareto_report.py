"""A sweep's pictures and tables of operating points, one picture for each task and model."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from river_llm.analysis.operating_points import (
    TEXT_COLUMNS,
    all_points_frame,
    points_note,
    target_caption,
    target_frame,
)
from river_llm.analysis.pareto_marks import Y
from river_llm.analysis.pareto_plot import pareto_figure
from river_llm.analysis.points import OperatingPoint, comparisons, operating_points
from river_llm.analysis.saved import SavedRuns
from river_llm.analysis.tables import to_markdown


@dataclass(frozen=True)
class ParetoTables:
    """Both tables of a sweep.

    Attributes:
        reached: one row per line of a method: what it reaches at the target.
        points: one row per operating point, at the end what is missing.
        text: both with their captions, in Markdown.
    """

    reached: pd.DataFrame
    points: pd.DataFrame
    text: str


def comparison_names(points: list[OperatingPoint]) -> dict[str, list[OperatingPoint]]:
    """The points by task and model, under names for files; the only group's name is empty."""
    groups = comparisons(points)
    if len(groups) == 1:
        return {"": points}
    return {f"{task.replace(' ', '_')}-{model}": group for (task, model), group in groups.items()}


def pareto_figures(runs: SavedRuns, y: Y) -> dict[str, Figure]:
    """One picture for each task and model, under the names of :func:`comparison_names`."""
    groups = comparison_names(operating_points(runs.summaries))
    return {name: pareto_figure(points, y, runs.missing) for name, points in groups.items()}


def pareto_tables(runs: SavedRuns) -> ParetoTables:
    """What each method reaches at the target, and all operating points."""
    points = operating_points(runs.summaries)
    reached, everything = target_frame(points), all_points_frame(points, runs.missing)
    commits = sorted({mark for summary in runs.summaries for mark in summary["commits"]})
    text = [
        "## What each method reaches",
        to_markdown(reached, TEXT_COLUMNS),
        target_caption(points),
        "## All operating points",
        to_markdown(everything, TEXT_COLUMNS),
        f"{points_note(points)} Runs of commit {', '.join(commits) or 'unknown'}.",
    ]
    return ParetoTables(reached, everything, "\n\n".join(part.strip() for part in text) + "\n")
