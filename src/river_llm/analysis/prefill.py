"""The record of `scripts/measure_prefill.py`: time to first token over the prompt's length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from river_llm.errors import UserError

SUMMARY, TIMES = "summary.json", "times.parquet"


def summarize_prefill(times: pd.DataFrame) -> list[dict[str, Any]]:
    """Figures of each arm at each length.

    Args:
        times: one row per prefill: arm, length, round, seconds, depth.

    Returns:
        arm, length, median_ms with low_ms and high_ms (quartiles over the rounds), rounds, and
        depth (mean).
    """
    points = []
    for _, rows in times.groupby(["arm", "length"], sort=False):
        first = rows.iloc[0]
        low, middle, high = (1000 * rows["seconds"]).quantile([0.25, 0.5, 0.75])
        points.append(
            {
                "arm": str(first["arm"]),
                "length": int(first["length"]),
                "median_ms": float(middle),
                "low_ms": float(low),
                "high_ms": float(high),
                "rounds": len(rows),
                "depth": float(rows["depth"].mean()),
            }
        )
    return points


def read_prefill(folder: str | Path) -> dict[str, Any]:
    """The summary of a record.

    Raises:
        UserError: it is not there or cannot be read.
    """
    path = Path(folder) / SUMMARY
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({error}): run scripts/measure_prefill.py first"
        ) from error
    return summary
