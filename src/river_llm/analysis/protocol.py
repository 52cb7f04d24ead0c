"""Which protocol gives the paper's own no_exit accuracy: checkpoint, exemplars, chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from river_llm.analysis.cells import NOT_AVAILABLE, NOT_RUN, fixed
from river_llm.analysis.paper_cells import TASKS, PaperCells, paper_cells
from river_llm.analysis.points import Estimate, estimate, percents
from river_llm.analysis.saved import SUMMARY, sweep_cells, unfinished
from river_llm.analysis.table2_frames import UNKNOWN
from river_llm.analysis.tables import to_csv, to_markdown
from river_llm.errors import UserError
from river_llm.records import write_text

DEFAULT = "as configured"
"""Word for what a cell leaves as it is configured."""

NAMES = ("Model", "Task", "Protocol", "The paper's value", "Note")


@dataclass(frozen=True)
class Protocol:
    """One cell of the sweep.

    Attributes:
        model, task: values of `model=` and `exp=`; :data:`DEFAULT` where the cell names none.
        words: the overrides that make the protocol.
        accuracy: of no_exit, a share; without a value where it was not run.
        graded: answers behind it.
        reason: why there is no accuracy; else empty.
    """

    model: str
    task: str
    words: str
    accuracy: Estimate
    graded: int
    reason: str


def protocols(folder: Path) -> list[Protocol]:
    """The cells of a sweep over protocols, in its order.

    Args:
        folder: holds sweep.json; its cells are runs of no_exit.

    Raises:
        UserError: no sweep there, or a cell of another method.
    """
    return [_protocol(folder, title, cell) for title, cell in sweep_cells(folder)]


def _protocol(folder: Path, title: str, cell: Mapping[str, Any]) -> Protocol:
    given = dict(override.split("=", 1) for override in cell["overrides"] if "=" in override)
    summary, reason = _summary(cell)
    if (summary or given).get("method", "no_exit") != "no_exit":
        raise UserError(
            f"the cell '{title}' of {folder} is no run of no_exit: give a sweep of protocols"
        )
    # The name in a summary is that of its weights: a base checkpoint has another than its model.
    model, task = given.get("model", DEFAULT), given.get("exp", (summary or {}).get("exp", DEFAULT))
    words = [word for word in title.split() if word.split("=")[0] not in ("model", "exp", "method")]
    return Protocol(
        model,
        task,
        " ".join(words) or DEFAULT,
        Estimate(None) if summary is None else estimate(summary["accuracy"], "value", ""),
        0 if summary is None else summary["accuracy"]["graded"],
        reason,
    )


def _summary(cell: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The summary of a cell's run, or why there is none."""
    if cell["status"] != "finished" or cell["run_dir"] is None:
        return None, unfinished(dict(cell))
    path = Path(cell["run_dir"]) / SUMMARY
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return None, f"no readable {path} ({error})"
    return found, "" if found["accuracy"]["graded"] else "not graded"


def verdicts(group: Sequence[Protocol], paper: float | None) -> list[str]:
    """What each protocol of one model and task says about the paper's no_exit accuracy.

    `compatible` where the 95 % interval holds the paper's value; where no protocol's does,
    `nearest` marks that of the smallest difference.

    Args:
        group: protocols of one model and task.
        paper: its accuracy in percent, as the paper rounds it; None: not known.
    """
    if paper is None:
        return [NOT_RUN if one.accuracy.value is None else UNKNOWN for one in group]
    words = []
    for one in group:
        if one.accuracy.value is None or one.accuracy.interval is None:
            words.append(NOT_RUN)
            continue
        low, high = (100 * end for end in one.accuracy.interval)
        words.append("compatible" if low <= paper <= high else "not compatible")
    if "compatible" not in words:
        distances = {
            place: abs(100 * one.accuracy.value - paper)
            for place, one in enumerate(group)
            if one.accuracy.value is not None
        }
        nearest = min(distances.values(), default=None)
        for place, distance in distances.items():
            if distance == nearest:
                words[place] = "not compatible, nearest"
    return words


def protocol_frame(
    found: Sequence[Protocol], paper: Mapping[tuple[str, str], PaperCells]
) -> pd.DataFrame:
    """One row per protocol, those of one model and task together.

    Args:
        found: see :func:`protocols`.
        paper: the paper's cells by model and task.
    """
    groups: dict[tuple[str, str], list[Protocol]] = {}
    for one in found:
        groups.setdefault((one.model, one.task), []).append(one)
    rows = []
    for key, group in groups.items():
        cell = paper.get(key)
        theirs = None if cell is None else cell.backbone_accuracy
        for one, verdict in zip(group, verdicts(group, theirs), strict=True):
            absent = NOT_AVAILABLE if cell is None else UNKNOWN
            rows.append(
                {
                    "Model": one.model,
                    "Task": TASKS.get(one.task, one.task),
                    "Protocol": one.words,
                    "n": str(one.graded) if one.graded else NOT_RUN,
                    "Accuracy % [95%]": percents(one.accuracy),
                    "Paper %": fixed(theirs, 1, absent),
                    "Difference": _difference(one, theirs),
                    "The paper's value": NOT_AVAILABLE
                    if cell is None and verdict == UNKNOWN
                    else verdict,
                    "Note": one.reason or "-",
                }
            )
    return pd.DataFrame(rows)


def _difference(one: Protocol, theirs: float | None) -> str:
    if one.accuracy.value is None:
        return NOT_RUN
    if theirs is None:
        return NOT_AVAILABLE
    return f"{100 * one.accuracy.value - theirs:+z.1f}"


NOTE = (
    "Accuracy of no_exit in percent of graded samples, 95 % Wilson interval; the paper's is that "
    "of its backbone. compatible: the interval holds the paper's value; the others differ by more "
    "than chance in the choice of the questions explains. On a whole test set both are about the "
    "same questions, so that the interval is generous there and a compatible protocol need not be "
    "the paper's; with few samples nearly all are compatible. nearest: the smallest difference "
    "where none is compatible. MATH-500 is a subset of the paper's MATH."
)


def write_protocols(folder: Path, out: Path) -> list[Path]:
    """Writes the table of a sweep over protocols, from what is finished so far.

    Args:
        folder: of the sweep.
        out: path without suffix; its folder is made.

    Returns:
        The paths of `out`.md and `out`.csv.

    Raises:
        UserError: see :func:`protocols`.
    """
    frame = protocol_frame(protocols(folder), paper_cells())
    contents = {
        ".md": f"# Protocols\n\n{to_markdown(frame, NAMES)}\n{NOTE}\n",
        ".csv": to_csv(frame),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    paths = [out.with_name(out.name + suffix) for suffix in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_text(path, content)
    return paths
