"""The jobs of a sweep in rounds; a cell that replays another's depths waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from river_llm.sweeps.folder import Cell, Outcome, SweepFolder
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
            reason = f"the run whose depths it replays did not finish: {why}"
            folder.set_outcome(cell.key, Outcome("failed", reason=reason))
        else:
            later.append(_job(cell, quoted("criterion.from_run", source.run_dir)))
    yield later


def _job(cell: Cell, *more: str) -> list[str]:
    return [*cell.overrides, *more, f"hydra.job.name={cell.key}"]
