"""Finished runs read back from disk, and by name those that are not there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from river_llm.errors import UserError

SUMMARY = "summary.json"
SWEEP = "sweep.json"
FORCED_SCORES = "forced_scores.json"
CELL_KEYS = ("overrides", "status", "run_dir", "reason")


@dataclass(frozen=True)
class MissingRun:
    """A run that was asked for and has no summary.

    Attributes:
        name: its folder, or the overrides of its cell that not every cell of the sweep has.
        reason: why it is missing.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class SavedRuns:
    """What was found under the paths of a command line.

    Attributes:
        name: of the sweep's folder, else of the task and the model of the first run.
        folders: of the finished runs, each once.
        summaries: their summaries, in the same order.
        missing: cells that wait or failed, and folders without a readable summary.
    """

    name: str
    folders: list[Path]
    summaries: list[dict[str, Any]]
    missing: list[MissingRun]


def saved_runs(paths: Sequence[Path]) -> SavedRuns:
    """Read run folders, and the runs of sweep folders.

    Args:
        paths: folders that hold summary.json or sweep.json. A run folder named in sweep.json may
            be absolute, or relative to the present folder.

    Raises:
        UserError: an unreadable sweep.json, or no finished run at all.
    """
    names: list[str] = []
    wanted: list[tuple[str, Path]] = []
    missing: list[MissingRun] = []
    for path in paths:
        if (path / SWEEP).exists():
            names.append(path.resolve().name)
            for title, cell in sweep_cells(path):
                if cell["status"] == "finished" and cell["run_dir"] is not None:
                    wanted.append((title, Path(cell["run_dir"])))
                else:
                    missing.append(MissingRun(title, unfinished(cell)))
        else:
            wanted.append((str(path), path))
    folders: dict[Path, dict[str, Any]] = {}
    for title, folder in wanted:
        if folder.resolve() in {known.resolve() for known in folders}:
            continue
        try:
            folders[folder] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            missing.append(MissingRun(title, f"no readable {folder / SUMMARY} ({reason})"))
    if not folders:
        raise UserError(
            f"no finished run in {_listed(paths)}: give folders that hold {SUMMARY}, or that of "
            f"a sweep ({SWEEP}) with finished cells"
        )
    first = next(iter(folders.values()))
    name = names[0] if names else f"{first['exp']}-{first['model']}"
    return SavedRuns(name, list(folders), list(folders.values()), missing)


def forced_scores(folder: Path) -> dict[str, Any] | None:
    """What a run scored on no_exit's texts, token by token; None where it has not.

    Raises:
        UserError: the file cannot be read.
    """
    path = folder / FORCED_SCORES
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): run the run again") from error
    return found


def arm_names(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the arms, with the identity where two arms share one."""
    arms = [summary["arm"] for summary in summaries]
    return [
        arm if arms.count(arm) == 1 else f"{arm} {summary['identity']}"
        for arm, summary in zip(arms, summaries, strict=True)
    ]


def sweep_cells(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """The cells of a sweep, each with the overrides that not every cell has as its title.

    Args:
        folder: holds sweep.json; of a cell the keys :data:`CELL_KEYS` are read.

    Raises:
        UserError: the file cannot be read, or holds no cells.
    """
    path = folder / SWEEP
    try:
        sweep = json.loads(path.read_text(encoding="utf-8"))
        cells = [{key: cell[key] for key in CELL_KEYS} for cell in sweep["cells"]]
        if not cells:
            raise ValueError("no cells")
        common = set.intersection(*(set(cell["overrides"]) for cell in cells))
        return [(" ".join(o for o in cell["overrides"] if o not in common), cell) for cell in cells]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is not the record of a sweep ({error!r}): run the sweep again, it skips "
            "what is finished"
        ) from error


def unfinished(cell: dict[str, Any]) -> str:
    """Why a cell of a sweep has no run."""
    if cell["status"] == "finished":
        return "finished, but names no run folder"
    return str(cell["status"]) + (f": {cell['reason']}" if cell["reason"] else "")


def _listed(paths: Iterable[Path]) -> str:
    return ", ".join(str(path) for path in paths) or "an empty list"
