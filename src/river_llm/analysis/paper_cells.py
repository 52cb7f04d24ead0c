"""The cells of the paper's main table that are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from river_llm.errors import UserError

REFERENCE = Path(__file__).resolve().parents[3] / "results" / "reference" / "table2.csv"
ACCURACIES = ("backbone_accuracy", "full_quant_accuracy", "river_accuracy")
FIGURES = (*ACCURACIES, "river_speedup")
COLUMNS = ("model", "task", *FIGURES, "source")

TASKS = {"gsm8k": "GSM8K", "math": "MATH-500 (paper: MATH)", "humaneval": "HumanEval"}
"""The paper's tasks by the names of `exp=`, as tables write them."""


@dataclass(frozen=True)
class PaperCells:
    """One row of the paper's table; None: not known here.

    Attributes:
        backbone_accuracy, full_quant_accuracy, river_accuracy: in percent.
        river_speedup: over its backbone; what that ran on is not known.
        source: where the figures were found.
    """

    backbone_accuracy: float | None = None
    full_quant_accuracy: float | None = None
    river_accuracy: float | None = None
    river_speedup: float | None = None
    source: str | None = None


def paper_cells(path: Path = REFERENCE) -> dict[tuple[str, str], PaperCells]:
    """The paper's cells by model and task, in the order of its table.

    Args:
        path: a CSV file with the columns :data:`COLUMNS`; an empty cell is unknown.

    Raises:
        UserError: the file is not there, or holds what cannot be such a table.
    """
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"the paper's cells cannot be read from {path} ({error}): it is part of the "
            "repository, check it out again"
        ) from error
    if list(frame.columns) != list(COLUMNS):
        raise UserError(f"{path} has the columns {list(frame.columns)}: give {list(COLUMNS)}")
    found: dict[tuple[str, str], PaperCells] = {}
    for row in frame.to_dict("records"):
        key = (str(row["model"]), str(row["task"]))
        if key in found or key[1] not in TASKS:
            raise UserError(
                f"{path}: the row of {key[0]} and {key[1]} stands twice or names no task of the "
                f"paper ({', '.join(TASKS)})"
            )
        values = {name: _figure(path, key, name, row[name]) for name in FIGURES}
        source = None if pd.isna(row["source"]) else str(row["source"])
        if source is None and any(value is not None for value in values.values()):
            raise UserError(f"{path}: {key[0]} and {key[1]} have figures without a source")
        found[key] = PaperCells(**values, source=source)
    return found


def _figure(path: Path, key: tuple[str, str], name: str, value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        raise UserError(f"{path}: {name} of {' and '.join(key)} is no number: {value}") from None
    if pd.isna(number):
        return None
    if not 0 < number <= (100 if name in ACCURACIES else 10):
        raise UserError(
            f"{path}: {name}={number:g} of {' and '.join(key)} is out of range: accuracies are in "
            "percent, speedups are factors"
        )
    return number
