"""The jobs of a sweep in rounds; a cell that follows from another's run waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from river_llm.errors import UserError
from river_llm.records import RunFolder
from river_llm.sweeps.folder import FROM_RUN, Cell, Outcome, SweepFolder
from river_llm.sweeps.overrides import quoted


def rounds(folder: SweepFolder, cells: Sequence[Cell]) -> Iterator[list[list[str]]]:
    """Rounds of jobs, each a list of overrides that names its cell as `hydra.job.name`.

    Take the next round when the jobs of the one before have ended.

    Args:
        folder: of the sweep.
        cells: those to run.
    """
    yield [_job(cell) for cell in cells if cell.after is None]
    later = []
    for cell in cells:
        if cell.after is None:
            continue
        source = folder.outcome(cell.after)
        if source.run_dir is None:
            why = source.reason or "it was not run to its end"
            reason = f"the run that it follows from did not finish: {why}"
            folder.set_outcome(cell.key, Outcome("failed", reason=reason))
            continue
        try:
            later.append(_job(cell, _taken(cell, source.run_dir)))
        except UserError as error:
            folder.set_outcome(cell.key, Outcome("failed", reason=str(error)))
    yield later


def _taken(cell: Cell, run_dir: str) -> str:
    """The override that a cell takes from another's run."""
    assert cell.takes is not None
    if cell.takes == FROM_RUN:
        return quoted(FROM_RUN, run_dir)
    return f"{cell.takes}={mean_depth(run_dir)}"


def mean_depth(run_dir: str) -> int:
    """The mean exit depth of a run in whole layers: of its own texts, else of the forced ones.

    Raises:
        UserError: the run has no decode step.
    """
    summary = RunFolder(Path(run_dir)).read_json("summary.json") or {}
    mean = summary.get("exit_depth", {}).get("mean")
    if mean is None:
        mean = (summary.get("fidelity") or {}).get("mean_depth")
    if mean is None:
        raise UserError(f"the run that it follows from, {run_dir}, has no exit depths")
    return round(float(mean))


def _job(cell: Cell, *more: str) -> list[str]:
    return [*cell.overrides, *more, f"hydra.job.name={cell.key}"]
