"""One run, or with -m a sweep:

    python run.py exp=gsm8k method=river
    python run.py -m exp=humaneval method=river,mask,no_exit criterion.tau=0.5,0.9 limit=20

The last line of standard output is one JSON object with `run_dir` and the summary.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from river_llm.composition import load_config, typed
from river_llm.entry_point import end, told
from river_llm.errors import raise_interruption
from river_llm.sweeps.command import sweep
from river_llm.sweeps.folder import SweepFolder
from river_llm.sweeps.job import run_cell
from river_llm.tracking.track import track_run

SWEEP_FLAGS = ("-m", "--multirun")


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def run(composed: DictConfig) -> None:
    """One job of Hydra's: the run, or a cell of a sweep."""
    job = HydraConfig.get()
    if job.mode == RunMode.MULTIRUN:
        run_cell(composed, SweepFolder(Path(job.sweep.dir)), job.job.name)
        return
    try:
        execute_job(composed)
    except Exception as error:
        raise_interruption(error)
        status = told(error)
        if status is None:
            raise
        # Hydra would print a traceback for anything but an exit.
        sys.exit(status)


def execute_job(composed: DictConfig) -> None:
    """Runs one configuration and prints its summary."""
    config = typed(composed)
    # Imported late: a mistake on the command line is told without waiting for torch.
    from river_llm.evaluation.report import show
    from river_llm.evaluation.run import execute

    result = execute(config)
    show(result)
    track_run(config, result.folder)


def launch(arguments: Sequence[str]) -> None:
    """Runs Hydra with other arguments than the command line's."""
    sys.argv[1:] = arguments
    run()


def main(arguments: Sequence[str]) -> int:
    """What the command line asks for; returns the exit status."""
    given = [argument for argument in arguments if argument not in SWEEP_FLAGS]
    if any(argument.startswith("-") for argument in given):
        run()  # --help, --cfg and the like are Hydra's.
        return 0
    if len(given) < len(arguments):
        return sweep(given, launch)
    # Composed once before Hydra does it, to tell a mistake in one line.
    load_config(given)
    run()
    return 0


if __name__ == "__main__":
    end(
        lambda: main(sys.argv[1:]),
        stopped="stopped; the same command goes on from the last finished sample",
    )
