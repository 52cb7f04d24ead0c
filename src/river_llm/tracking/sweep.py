"""What is logged of a whole sweep: its operating points as tables and pictures."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pandas as pd

from river_llm.analysis.pareto_marks import Y, mark_of
from river_llm.analysis.pareto_plot import pareto_figure
from river_llm.analysis.pareto_report import comparison_names, pareto_tables
from river_llm.analysis.points import OperatingPoint, check_comparable, operating_points
from river_llm.analysis.saved import MissingRun, SavedRuns, saved_runs
from river_llm.config import WandbConfig
from river_llm.tracking.payload import Payload, TableData
from river_llm.tracking.portable import portable


def sweep_payload(folder: Path, settings: WandbConfig) -> Payload:
    """Reads the finished cells of a sweep.

    Args:
        folder: of the sweep.
        settings: tags and group; the group is the sweep's name unless they name one.

    Raises:
        UserError: no finished cell, or cells that cannot be compared.
    """
    runs = saved_runs([folder])
    check_comparable(runs.summaries)
    tables = pareto_tables(runs)
    return Payload(
        id=runs.name,
        name=f"Pareto {runs.name}",
        job_type="sweep",
        group=settings.group or runs.name,
        tags=list(settings.tags),
        config={
            "sweep": runs.name,
            "runs": [f"{s['method']}-{s['identity']}" for s in runs.summaries],
            "commits": sorted({mark for s in runs.summaries for mark in s["commits"]}),
        },
        summary={"cells/finished": len(runs.summaries), "cells/missing": len(runs.missing)},
        tables={"pareto/points": _table(tables.points), "pareto/reached": _table(tables.reached)},
        pictures=_pictures(runs),
    )


def _table(frame: pd.DataFrame) -> TableData:
    rows: list[list[Any]] = portable(frame.astype(object).values.tolist())
    return TableData([str(name) for name in frame.columns], rows)


def _pictures(runs: SavedRuns) -> dict[str, str]:
    """One for each task and model where the speed and something to set it against was measured."""
    pictures = {}
    for name, points in comparison_names(operating_points(runs.summaries)).items():
        if (y := _measured(points)) is not None:
            key = f"pareto/{name or 'picture'}"
            pictures[key] = _png(points, y, runs.missing)
    return pictures


def _measured(points: list[OperatingPoint]) -> Y | None:
    """What the picture shows: agreement with no_exit, or accuracy where that was not measured."""
    others = [point for point in points if not point.is_reference]
    choices: tuple[Y, ...] = ("agreement", "accuracy")
    return next((y for y in choices if any(mark_of(point, y) for point in others)), None)


def _png(points: list[OperatingPoint], y: Y, missing: list[MissingRun]) -> str:
    file = io.BytesIO()
    pareto_figure(points, y, missing).savefig(file, format="png", metadata={"Software": None})
    return base64.b64encode(file.getvalue()).decode("ascii")
