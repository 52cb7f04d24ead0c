"""`python run.py -m ...`: plans a sweep, launches it through Hydra, and says what became of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from river_llm.composition import load_config
from river_llm.errors import UserError
from river_llm.sweeps.estimate import dry_run
from river_llm.sweeps.folder import Cell, Outcome, SweepFolder
from river_llm.sweeps.launchers import check_hydra
from river_llm.sweeps.overrides import quoted
from river_llm.sweeps.plan import parse_request, part, plan_cells
from river_llm.tracking.track import track_sweep


def sweep(arguments: Sequence[str], launch: Callable[[Sequence[str]], None]) -> int:
    """Runs the cells of a command line.

    Args:
        arguments: overrides, those of Hydra's own settings among them.
        launch: runs Hydra with the arguments it is given.

    Returns:
        Exit status: 0 where every cell has finished.

    Raises:
        UserError: nothing could be planned.
    """
    of_hydra = [a for a in arguments if re.match(r"[+~]*hydra[./]", a)]
    check_hydra(of_hydra)
    request = parse_request([a for a in arguments if a not in of_hydra])
    folder = request.folder
    cells = plan_cells(request)
    mine = part(cells, request.shard)
    composing, failed = _composing(mine)
    if request.dry_run:
        left = [cell for cell in composing if not _finished(folder, cell)]
        return dry_run(left, failed, finished=len(composing) - len(left))
    folder.write_plan(request.recipe.name, cells)
    folder.forget([cell for cell in mine if folder.outcome(cell.key).status == "failed"])
    for cell, reason in failed.items():
        folder.set_outcome(cell.key, Outcome("failed", reason=reason))
    left = [cell for cell in composing if not _finished(folder, cell)]
    print(
        f"{len(mine)} cells, {len(composing) - len(left)} of them finished before: "
        f"{folder.path}/sweep.json",
        file=sys.stderr,
        flush=True,
    )
    if left:
        launch(
            [
                "-m",
                *of_hydra,
                "hydra/sweeper=planned",
                quoted("hydra.sweeper.folder", str(folder.path)),
                f"hydra.sweeper.keys=[{','.join(cell.key for cell in left)}]",
                quoted("hydra.sweep.dir", str(folder.path)),
            ]
        )
        track_sweep(load_config(left[0].provisional).logger, folder.path, request.output)
    return _told(folder, mine)


def _finished(folder: SweepFolder, cell: Cell) -> bool:
    """Whether a cell's run is there; deleted run folders are made again."""
    outcome = folder.outcome(cell.key)
    if outcome.status != "finished" or outcome.run_dir is None:
        return False
    return (Path(outcome.run_dir) / "summary.json").exists()


def _composing(cells: Sequence[Cell]) -> tuple[list[Cell], dict[Cell, str]]:
    """The cells whose settings compose, and why the others do not."""
    composing, failed = [], {}
    for cell in cells:
        if cell.problem is not None:
            failed[cell] = cell.problem
            continue
        try:
            load_config(cell.provisional)
        except UserError as error:
            failed[cell] = str(error)
        else:
            composing.append(cell)
    return composing, failed


def _told(folder: SweepFolder, cells: Sequence[Cell]) -> int:
    """Names the cells without a result; returns the exit status."""
    sys.stdout.flush()
    left = [c for c in cells if folder.outcome(c.key).status != "finished"]
    for cell in left:
        reason = folder.outcome(cell.key).reason or "it was not run to its end"
        print(f"error: cell {folder.title(cell.key)} failed: {reason}", file=sys.stderr)
    if left:
        print(
            f"{len(left)} of {len(cells)} cells failed; the same command runs them again and "
            "skips what is finished",
            file=sys.stderr,
            flush=True,
        )
    return 2 if left else 0
