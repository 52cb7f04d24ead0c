"""One cell of a sweep, in whatever process a launcher runs it."""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path

from omegaconf import DictConfig

from river_llm.composition import typed
from river_llm.config import RunConfig
from river_llm.errors import UserError, raise_interruption
from river_llm.sweeps.folder import Outcome, SweepFolder
from river_llm.tracking.track import track_run

WAIT_SECONDS = 0.5
"""Between two tries of a cell whose run, or the one it is compared with, is worked on."""


def run_cell(composed: DictConfig, folder: SweepFolder, key: str) -> None:
    """Runs a cell and notes what became of it; a failure does not stop the others.

    Args:
        composed: the cell's configuration.
        folder: of the sweep.
        key: of the cell.
    """
    title = folder.title(key)
    print(title, file=sys.stderr, flush=True)
    started = time.perf_counter()
    config: RunConfig | None = None
    try:
        config = typed(composed)
        outcome = _run(config)
    except Exception as error:
        raise_interruption(error)
        # Whatever it is, the other cells may still be worth the night.
        mistake = isinstance(error, UserError)
        reason = " ".join(str(error).split()) if mistake else unexpected(error)
        outcome = Outcome("failed", reason=reason)
    if outcome.reason is not None:
        print(f"failed: {outcome.reason}", file=sys.stderr, flush=True)
    folder.set_outcome(key, outcome)
    seconds = time.perf_counter() - started
    print(f"{title}: {outcome.status} in {seconds:.0f} s", file=sys.stderr, flush=True)
    if config is not None and outcome.run_dir is not None:
        track_run(config, Path(outcome.run_dir), sweep=folder.path.resolve().name)


def unexpected(error: Exception) -> str:
    """One line for an error that is no user's mistake; its traceback is printed."""
    traceback.print_exception(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _run(config: RunConfig) -> Outcome:
    # Imported late: launchers import this module to start workers.
    from river_llm.evaluation.report import show
    from river_llm.evaluation.run import execute
    from river_llm.evaluation.runtime import Runtime
    from river_llm.evaluation.summary import build_task

    # What can be refused without the weights is refused before they are there.
    build_task(config)
    waits = False
    while True:
        try:
            result = execute(config, Runtime.shared(config))
        except UserError as error:
            # Cells that run side by side complete the same no_exit run, one after the other.
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            if not waits:
                print(f"waiting: {error}", file=sys.stderr, flush=True)
            waits = True
            time.sleep(WAIT_SECONDS)
        else:
            show(result)
            return Outcome("finished", run_dir=str(result.folder))
