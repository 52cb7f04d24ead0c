"""What entry points call when a run or a sweep has ended. Nothing of it can fail a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from river_llm.config import LoggerConfig, NoLoggerConfig, RunConfig, WandbConfig
from river_llm.errors import UserError, raise_interruption
from river_llm.tracking.payload import Payload, run_payload
from river_llm.tracking.push import NotLoggedError, mode_of, push

_given_up = False
"""Set by the first failure: a night of cells must not wait for a server once per cell."""


def track_run(config: RunConfig, folder: Path, sweep: str | None = None) -> None:
    """Logs a run that has ended.

    Args:
        config: of the run.
        folder: its records.
        sweep: name of the sweep that it is a cell of.
    """
    _track(
        config.logger,
        folder,
        Path(config.output.dir),
        lambda settings: run_payload(folder, settings, sweep),
    )


def track_sweep(logger: LoggerConfig, folder: Path, output: Path) -> None:
    """Logs what the finished cells of a sweep come to together.

    Args:
        logger: of its cells.
        folder: of the sweep.
        output: folder of all results.
    """
    # Imported late: most commands draw nothing.
    from river_llm.tracking.sweep import sweep_payload

    _track(logger, folder, output, lambda settings: sweep_payload(folder, settings))


def _track(
    logger: LoggerConfig, folder: Path, output: Path, read: Callable[[WandbConfig], Payload]
) -> None:
    global _given_up
    if isinstance(logger, NoLoggerConfig) or _given_up:
        return
    try:
        mode = mode_of(logger)
        if mode is None:
            return
        print(f"W&B: {push(read(logger), logger, output, mode)}", file=sys.stderr, flush=True)
    except NotLoggedError as error:
        _given_up = True
        _warn(folder, f"{error}; this process tries no more")
    except UserError as error:
        _warn(folder, str(error))
    except Exception as error:
        raise_interruption(error)
        # The records are whole; whatever else is wrong here is no reason to lose a night.
        _warn(folder, f"{type(error).__name__}: {error}")


def _warn(folder: Path, reason: str) -> None:
    print(
        f"warning: not logged to W&B ({' '.join(reason.split())}); the records are whole, log "
        f"them later with: python scripts/push_to_wandb.py {folder}",
        file=sys.stderr,
        flush=True,
    )
