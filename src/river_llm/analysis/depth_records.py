"""Exit depths of the runs of one task beside its record of oracle depth."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from river_llm.analysis import cells
from river_llm.analysis.cells import figure
from river_llm.analysis.depth_plot import depth_histogram_figure
from river_llm.analysis.depth_positions import depth_position_figure
from river_llm.analysis.exit_distribution import (
    exit_distribution_figure,
    oracle_row,
    river_rows,
)
from river_llm.analysis.points import Estimate, with_interval
from river_llm.analysis.positions import depth_histogram
from river_llm.analysis.saved import SUMMARY, SavedRuns, arm_names, forced_scores
from river_llm.errors import UserError

STEPS = "steps.parquet"
WORDS = {
    "oracle_depth": "oracle depth, from which on the token stays",
    "first_hit_depth": "first hit, where the token first comes",
}


@dataclass(frozen=True)
class OracleRecord:
    """What `scripts/analyze_depth.py` left in a folder.

    Attributes:
        summary: content of summary.json.
        steps: one row per decode step: id, step, oracle_depth, first_hit_depth.
    """

    summary: dict[str, Any]
    steps: pd.DataFrame

    @property
    def counted(self) -> str:
        """How many steps of how many texts."""
        return f"{self.summary['steps']} decode steps of {self.summary['samples']} texts"


def read_oracle(folder: Path) -> OracleRecord:
    """Reads a record back.

    Raises:
        UserError: a file that is not there or cannot be read.
    """
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        return OracleRecord(summary, pd.read_parquet(folder / STEPS))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} holds no readable record of oracle depth ({error}): run "
            "scripts/analyze_depth.py again"
        ) from error


def oracle_of(folders: Iterable[Path], runs: SavedRuns) -> OracleRecord | None:
    """The record of the task and model of some runs; None where there is none.

    Args:
        folders: of records.
        runs: of one task and model.
    """
    wanted = {(summary["exp"], summary["model"]) for summary in runs.summaries}
    found = (read_oracle(folder) for folder in folders)
    return next((r for r in found if (r.summary["exp"], r.summary["model"]) in wanted), None)


def exit_depth_figure(runs: SavedRuns, oracle: OracleRecord | None) -> Figure:
    """Draw where tokens and prompts leave River's backbone, and where an oracle's would.

    Args:
        runs: of one task and model.
        oracle: its record.

    Raises:
        UserError: neither a record nor a River run that was measured on no_exit's text.
    """
    rows = river_rows(runs.summaries, [forced_scores(folder) for folder in runs.folders])
    notes = [
        f"River: {cells.span([sum(row.tokens) for row in rows])} decode steps on no_exit's text; "
        f"on the right the {cells.span([sum(row.texts) for row in rows])} prompts."
        if rows
        else f"River: {cells.NOT_RUN}."
    ]
    if oracle is None:
        notes.append(f"Oracle: {cells.NOT_RUN} (scripts/analyze_depth.py).")
    else:
        layers = int(oracle.summary["layers"])
        rows = [oracle_row(oracle.steps, layers), *rows]
        notes.append(
            f"Oracle: {oracle.counted}; on the right the one depth that keeps every token of a "
            "text. Its tokens come from the exit state, River's from the top of the river."
        )
    return exit_distribution_figure(rows, f"{runs.name}: where tokens leave the backbone", notes)


def depth_along_text_figure(runs: SavedRuns) -> Figure:
    """Draw the exit depth of every step on no_exit's text, run by run.

    Args:
        runs: of one task and model.

    Raises:
        UserError: no run with scores on no_exit's text whose depth changes.
    """
    forced = zip(arm_names(runs.summaries), map(forced_scores, runs.folders), strict=True)
    return depth_position_figure(
        {name: scores for name, scores in forced if scores is not None},
        int(runs.summaries[0]["exit_depth"]["layers"]),
        f"{runs.name}: exit depth along the text",
    )


def oracle_figure(oracle: OracleRecord) -> Figure:
    """Draw oracle depth beside first-hit depth, with what was measured in small letters."""
    summary = oracle.summary
    return depth_histogram_figure(
        summary["oracle_depth"]["histogram"],
        summary["first_hit_depth"]["histogram"],
        f"{summary['label']}, {summary['model']}: {oracle.counted}, on no_exit's own text and KV",
    )


def exit_depth_frame(runs: SavedRuns, oracle: OracleRecord | None) -> pd.DataFrame:
    """One row of text cells per run, then those of the oracle.

    Args:
        runs: of one task and model.
        oracle: its record.
    """
    rows = []
    for name, summary, folder in zip(
        arm_names(runs.summaries), runs.summaries, runs.folders, strict=True
    ):
        found = depth_histogram(summary, forced_scores(folder))
        steps, layers = sum(found.counts), len(found.counts) - 1
        below = None if not steps else 1 - found.counts[-1] / steps
        rows.append(
            [
                name,
                cells.fixed(figure(summary, "prefill_depth", "mean"), 1),
                f"{cells.fixed(found.mean, 1)} / {layers}",
                cells.percent(below),
                f"{steps} {found.source}",
            ]
        )
    if oracle is not None:
        rows += [_oracle_row(oracle, key) for key in WORDS]
    columns = ["Arm", "Prompt's mean depth", "Mean depth / L", "Below L %", "Counted over"]
    return pd.DataFrame(rows, columns=columns)


def _oracle_row(oracle: OracleRecord, key: str) -> list[str]:
    part = oracle.summary[key]
    return [
        WORDS[key],
        cells.NOT_AVAILABLE,
        f"{with_interval(Estimate(part['mean'], part['low'], part['high']), 1)} / "
        f"{oracle.summary['layers']}",
        cells.percent(part["below_full"]),
        oracle.counted,
    ]
