"""Hydra's end of a sweep: hands planned cells to whatever launcher was chosen."""

from __future__ import annotations

import sys
from pathlib import Path

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from river_llm.errors import raise_interruption
from river_llm.sweeps.folder import SweepFolder
from river_llm.sweeps.rounds import rounds


class PlannedSweeper(Sweeper):
    """Launches cells of a sweep that is planned in a folder.

    Args:
        folder: of the sweep.
        keys: of the cells to run.
    """

    def __init__(self, folder: str, keys: list[str]) -> None:
        self.folder = SweepFolder(Path(folder))
        self.keys = frozenset(keys)
        self.launcher: Launcher | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes the launcher of the configuration."""
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Launches the cells; they carry their arguments."""
        assert self.launcher is not None
        cells = [cell for cell in self.folder.cells() if cell.key in self.keys]
        started = 0
        for jobs in rounds(self.folder, cells):
            try:
                if jobs:
                    self.launcher.launch(jobs, initial_job_idx=started)
            except Exception as error:
                raise_interruption(error)
                # A worker that died, a scheduler that refused: cells left over are named later.
                message = " ".join(f"{type(error).__name__}: {error}".split())
                print(f"the launcher stopped: {message}", file=sys.stderr, flush=True)
            started += len(jobs)
