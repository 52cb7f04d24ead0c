"""A cell in its process: whatever goes wrong is noted, and does not stop the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from river_llm.composition import composed
from river_llm.errors import UserError
from river_llm.evaluation import report
from river_llm.evaluation import run as run_module
from river_llm.evaluation.runtime import Runtime
from river_llm.records import RunFolder
from river_llm.sweeps.folder import Cell, Outcome, SweepFolder
from river_llm.sweeps.job import run_cell

CELL = Cell(("method=no_exit",))


@dataclass
class Result:
    """As much of a run's result as a cell looks at."""

    folder: Path


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    planned = SweepFolder(tmp_path / "sweep")
    planned.write_plan("grid", [CELL])
    return planned


@pytest.fixture
def settings() -> DictConfig:
    return composed(CELL.overrides)


@pytest.fixture
def execution(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Puts something else in the place of the run."""

    def set_to(action: Callable[[], Any]) -> None:
        monkeypatch.setattr(Runtime, "shared", lambda config: None)
        monkeypatch.setattr(run_module, "execute", lambda config, runtime: action())
        monkeypatch.setattr(report, "show", lambda result: None)

    return set_to


def raising(error: BaseException) -> Callable[[], Any]:
    def action() -> Any:
        raise error

    return action


def test_a_finished_cell_names_its_run(
    folder: SweepFolder, settings: DictConfig, execution: Callable, tmp_path: Path
):
    execution(lambda: Result(tmp_path / "run"))
    run_cell(settings, folder, CELL.key)
    assert folder.outcome(CELL.key) == Outcome("finished", run_dir=str(tmp_path / "run"))


def test_a_mistake_is_noted_in_its_own_words(
    folder: SweepFolder, settings: DictConfig, execution: Callable, capsys: pytest.CaptureFixture
):
    execution(raising(UserError("criterion.depth=99: this model\nhas depths 0 to 3")))
    run_cell(settings, folder, CELL.key)
    reason = "criterion.depth=99: this model has depths 0 to 3"
    assert folder.outcome(CELL.key) == Outcome("failed", reason=reason)
    printed = capsys.readouterr().err
    assert f"failed: {reason}\n" in printed
    assert "Traceback" not in printed


def test_an_unexpected_error_is_noted_in_one_line_and_shown_in_full(
    folder: SweepFolder, settings: DictConfig, execution: Callable, capsys: pytest.CaptureFixture
):
    execution(raising(RuntimeError("out of memory:\ntried 3 GiB")))
    run_cell(settings, folder, CELL.key)
    reason = "RuntimeError: out of memory: tried 3 GiB"
    assert folder.outcome(CELL.key) == Outcome("failed", reason=reason)
    assert "Traceback" in capsys.readouterr().err


def in_disguise() -> BaseException:
    """What an extension module raises whose import is interrupted, as a message of ours."""
    error = ImportError("initialization failed")
    error.__cause__ = KeyboardInterrupt()
    told = UserError("model.path=x cannot be loaded: initialization failed")
    told.__cause__ = error
    return told


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), in_disguise().__cause__, in_disguise()],
    ids=["plain", "an import that fails", "told by us"],
)
def test_a_stop_by_the_user_is_no_outcome(
    folder: SweepFolder, settings: DictConfig, execution: Callable, error: BaseException
):
    execution(raising(error))
    with pytest.raises(KeyboardInterrupt):
        run_cell(settings, folder, CELL.key)
    assert folder.outcome(CELL.key) == Outcome()


def test_settings_that_do_not_fit_are_noted(folder: SweepFolder):
    run_cell(composed(["criterion.tau=high"]), folder, CELL.key)
    outcome = folder.outcome(CELL.key)
    assert outcome.status == "failed"
    assert "'high'" in str(outcome.reason)


def test_a_cell_waits_while_another_process_works_in_its_run(
    folder: SweepFolder,
    settings: DictConfig,
    execution: Callable,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
):
    # Cells that run side by side complete the no_exit run that they share one after the other.
    run, done = RunFolder(tmp_path / "run"), Result(tmp_path / "run")
    tries = []

    def action() -> Result:
        tries.append(1)
        with run.locked():
            return done

    execution(action)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with run.locked():
            held.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    threading.Timer(0.7, release.set).start()
    run_cell(settings, folder, CELL.key)
    holder.join()
    assert len(tries) > 1
    assert folder.outcome(CELL.key) == Outcome("finished", run_dir=str(done.folder))
    assert capsys.readouterr().err.count(f"waiting: another process works in {done.folder}") == 1
