"""What a sweep hands to Hydra, and what it says when Hydra comes back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from river_llm.sweeps.command import sweep
from river_llm.sweeps.folder import Outcome, SweepFolder
from sweep_files import cells, statuses, sweep_path

# static_first does not compose without method.k.
GRID = ("method=no_exit,static_first,mask",)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_hydra_gets_the_cells_that_compose_and_its_own_settings(here: Path):
    launched: list[str] = []
    sweep([*GRID, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], launched.extend)
    path = sweep_path(here / "results").relative_to(here)
    no_exit, _, mask = (cell["key"] for cell in cells(here / "results"))
    assert launched == [
        "-m",
        "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=2",
        "hydra/sweeper=planned",
        f"hydra.sweeper.folder='{path}'",
        f"hydra.sweeper.keys=[{no_exit},{mask}]",
        f"hydra.sweep.dir='{path}'",
    ]


def test_hydra_gets_the_cells_of_one_shard(here: Path):
    launched: list[str] = []
    sweep(["method=no_exit,full_quant,mask", "shard=2/2"], launched.extend)
    keys = [cell["key"] for cell in cells(here / "results")]
    assert f"hydra.sweeper.keys=[{keys[1]}]" in launched


class Launcher:
    """Stands for Hydra: notes outcomes for the cells, in order, None for none."""

    def __init__(self, results: Path, *outcomes: Outcome | None) -> None:
        self.results = results
        self.outcomes = outcomes

    def __call__(self, arguments: Sequence[str]) -> None:
        folder = SweepFolder(sweep_path(self.results))
        for cell, outcome in zip(folder.cells(), self.outcomes, strict=True):
            if outcome is not None:
                folder.set_outcome(cell.key, outcome)


FINISHED = Outcome("finished", run_dir="results/runs/a")


def test_a_failure_of_the_last_start_is_not_taken_for_one_of_this(
    here: Path, capsys: pytest.CaptureFixture
):
    grid = ["method=no_exit,mask"]
    failed = Outcome("failed", reason="the disk is full")
    results = here / "results"
    assert sweep(grid, Launcher(results, FINISHED, failed)) == 2
    assert "[2/2] method=mask failed: the disk is full\n" in capsys.readouterr().err
    # Killed this time, before it could note anything.
    assert sweep(grid, Launcher(results, None, None)) == 2
    printed = capsys.readouterr().err
    assert "[2/2] method=mask failed: it was not run to its end\n" in printed
    assert "1 of 2 cells failed" in printed
    assert statuses(results) == ["finished", "waiting"]
    assert sweep(grid, Launcher(results, None, FINISHED)) == 0
    assert "failed" not in capsys.readouterr().err


def test_a_shard_answers_for_its_own_cells_alone(here: Path):
    grid = ["method=no_exit,mask"]
    assert sweep([*grid, "shard=1/2"], Launcher(here / "results", FINISHED, None)) == 0
    assert sweep([*grid, "shard=2/2"], Launcher(here / "results", None, None)) == 2
