"""What the notebooks share: records found, messages in place of tracebacks, outputs of a set form.

What a cell shows draws itself through IPython's display hooks, so that nothing of IPython, and no
state of matplotlib, is needed here.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from river_llm.analysis.provenance import commits, machine
from river_llm.analysis.saved import SUMMARY, SavedRuns, saved_runs
from river_llm.analysis.tables import NAME_COLUMNS, to_markdown
from river_llm.errors import UserError

DPI = 90  # a page of a notebook is about 1000 pixels wide
PALETTE = 256  # colours of a picture: a third of the bytes, and no difference to be seen
ENVIRONMENT = "environment.json"
MACHINE_UNKNOWN = "machine unknown"
SCRIPTS = {"kv": "analyze_kv.py", "oracle_depth": "analyze_depth.py"}
_ELSEWHERE = "set RIVER_LLM_RESULTS to another folder of results"


@contextmanager
def told() -> Iterator[None]:
    """Turns bad or missing records into one line of output, so that the next cells still run."""
    try:
        yield
    except UserError as error:
        print(f"Not shown: {error}")


class Picture:
    """A figure as the output of a cell: a small PNG, without a date or a program's name in it.

    Args:
        figure: its resolution is not changed for other uses.
    """

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self._figure.savefig(file, format="png", dpi=DPI)
        # By coverage of the colours, since the rare ones are those of the marks.
        picture = (
            Image.open(file)
            .convert("RGB")
            .quantize(PALETTE, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        )
        small = io.BytesIO()
        picture.save(small, format="png", optimize=True)
        return small.getvalue()


class Table:
    """A frame of text cells, and what it counts, as the output of a cell.

    Args:
        frame: text cells.
        note: sentences below it.
        names: columns that are set to the left.
    """

    def __init__(
        self, frame: pd.DataFrame, note: str = "", names: Collection[str] = NAME_COLUMNS
    ) -> None:
        self._text = "\n".join([to_markdown(frame, names), note]).rstrip() + "\n"

    def _repr_markdown_(self) -> str:
        return self._text


def tasks_in(results: Path) -> list[SavedRuns]:
    """The finished runs in a folder of results, those of one task and model together.

    Without any run this is empty, and a line of output says what to run.

    Args:
        results: an `output.dir`; its runs/ is read.
    """
    folders = sorted(results.glob("runs/*/*/*"))
    with told():
        if not any((folder / SUMMARY).exists() for folder in folders):
            raise UserError(f"no finished run in {results}/runs: run `make demo`, or {_ELSEWHERE}")
        return _by_task(saved_runs(folders))
    return []


def records_in(results: Path, kind: Literal["kv", "oracle_depth"]) -> list[Path]:
    """The records of one kind in a folder of results, one for each task and model.

    Without any record this is empty, and a line of output says what to run.

    Args:
        results: an `output.dir`; its analysis/ is read.
        kind: of the records.
    """
    folders = sorted(path.parent for path in results.glob(f"analysis/{kind}/*/{SUMMARY}"))
    with told():
        if not folders:
            raise UserError(
                f"no record in {results}/analysis/{kind}: run `make demo` or scripts/"
                f"{SCRIPTS[kind]}, or {_ELSEWHERE}"
            )
    return folders


def origin(runs: SavedRuns) -> str:
    """How many runs of which commits and machines, in a line; one more for each missing run."""
    found = {machine(start) for folder in runs.folders for start in _starts(folder)}
    marks = {mark for summary in runs.summaries for mark in summary["commits"]}
    lines = [
        f"{runs.name}: {len(runs.folders)} runs; {commits(marks)}; "
        f"{'; '.join(sorted(found)) or MACHINE_UNKNOWN}"
    ]
    lines += [f"missing: {run.name}: {run.reason}" for run in runs.missing]
    return "\n".join(lines)


def record_origin(summary: Mapping[str, Any]) -> str:
    """Counts, commit and machine of a record of analysis/, in a line."""
    environment = summary.get("environment")  # records of older versions have none
    return (
        f"{summary['label']}, {summary['model']}: {summary['steps']} decode steps of "
        f"{summary['samples']} texts; {commits([summary['commit']])}; "
        f"{MACHINE_UNKNOWN if environment is None else machine(environment)}"
    )


def _by_task(runs: SavedRuns) -> list[SavedRuns]:
    """The runs of each task and model, named so; what is missing stands with the first."""
    groups: dict[str, tuple[list[Path], list[dict[str, Any]]]] = {}
    for folder, summary in zip(runs.folders, runs.summaries, strict=True):
        folders, summaries = groups.setdefault(f"{summary['label']}, {summary['model']}", ([], []))
        folders.append(folder)
        summaries.append(summary)
    missing = [runs.missing, *([] for _ in groups)]
    return [
        SavedRuns(name, *group, lost)
        for (name, group), lost in zip(groups.items(), missing, strict=False)
    ]


def _starts(folder: Path) -> list[dict[str, Any]]:
    """What a run wrote of its machine, one entry for each start; empty where it did not."""
    path = folder / ENVIRONMENT
    if not path.exists():
        return []
    starts: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return starts
