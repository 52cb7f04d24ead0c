"""Fills Weights & Biases from records: runs, and sweeps with all their finished cells.

python scripts/push_to_wandb.py results/runs/gsm8k/smollm2_135m/*
python scripts/push_to_wandb.py results/sweeps/pareto-* --project mine

What was logged before as it is now is left out. Project, entity, group and tags are those that
the run was started with.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from river_llm.analysis.saved import SWEEP, saved_runs
from river_llm.config import LoggerConfig, WandbConfig, read
from river_llm.entry_point import end
from river_llm.errors import UserError
from river_llm.tracking.payload import Payload, run_payload
from river_llm.tracking.push import NotLoggedError, mode_of, push
from river_llm.tracking.sweep import sweep_payload

Reader = Callable[[WandbConfig], Payload]


def main() -> int:
    """Logs what the command line names; returns 1 where something could not be logged."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, help="folders of finished runs or of sweeps")
    parser.add_argument("--mode", choices=["auto", "online", "offline"], default="auto")
    parser.add_argument("--project", help="in place of the run's own")
    parser.add_argument("--entity", help="in place of the run's own")
    parser.add_argument("--again", action="store_true", help="also what was logged before")
    args = parser.parse_args()
    chosen = {"project": args.project, "entity": args.entity}
    given = {key: value for key, value in chosen.items() if value is not None}
    failed = 0
    mode = mode_of(WandbConfig(mode=args.mode))
    if mode is None:
        raise UserError("WANDB_MODE=disabled: nothing is logged; unset it, or give --mode")
    for folder, source, payload in found(args.paths):
        settings = replace(settings_of(source), **given)
        output = output_of(folder)
        try:
            print(f"{folder}: {push(payload(settings), settings, output, mode, args.again)}")
        except (NotLoggedError, UserError) as error:
            failed += 1
            print(f"{folder}: not logged ({error})", file=sys.stderr)
    return 1 if failed else 0


def found(paths: list[Path]) -> Iterator[tuple[Path, Path, Reader]]:
    """Folders to log, each with the run whose logger it has and what reads its payload."""
    for path in paths:
        if not (path / SWEEP).exists():
            yield path, path, partial(run_payload, path)
            continue
        runs = saved_runs([path]).folders
        for run in runs:
            yield run, run, partial(run_payload, run, sweep=path.resolve().name)
        yield path, runs[0], partial(sweep_payload, path)


def settings_of(run: Path) -> WandbConfig:
    """The logger that a run was started with; defaults where it had none.

    Raises:
        UserError: no run there, or settings that do not fit.
    """
    path = run / "config.json"
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{run} is not the folder of a run: {path} cannot be read") from error
    logger = read(LoggerConfig, recorded.get("logger", {"name": "wandb"}), "logger")
    return logger if isinstance(logger, WandbConfig) else WandbConfig()


def output_of(folder: Path) -> Path:
    """The folder of all results that a run or sweep lies in.

    Raises:
        UserError: it does not lie in one.
    """
    for parent in folder.resolve().parents:
        if parent.name in ("runs", "sweeps"):
            return parent.parent
    raise UserError(
        f"{folder} lies in no folder runs/ or sweeps/ of results: put it there, W&B's own files "
        "go beside them"
    )


if __name__ == "__main__":
    end(main)
