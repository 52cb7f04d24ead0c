"""Sends a payload to the process that logs it, and waits for that no longer than allowed.

A process of its own: it has no terminal to ask anybody on, it can be ended when it hangs, its
output cannot get between a run's own lines, and no thread of it is left when the next cell of a
sweep is timed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import river_llm
from river_llm.config import WandbConfig
from river_llm.errors import UserError
from river_llm.records import read_json, write_json
from river_llm.tracking.job import Job, Mode
from river_llm.tracking.payload import Payload

MODES: dict[str, Mode | None] = {
    "online": "online",
    "run": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": None,
}
"""Values of WANDB_MODE, the old names among them."""

NOT_INHERITED = ("WANDB_MODE", "WANDB_RESUME", "WANDB_SERVICE")
"""Variables that would overrule what the job says, or tie it to another process's service."""


class NotLoggedError(Exception):
    """A payload was not logged; the message says why, in one line."""


def mode_of(settings: WandbConfig) -> Mode | None:
    """The mode to log in; None: `WANDB_MODE` says that nothing is logged.

    Raises:
        UserError: an unknown value of `WANDB_MODE`.
    """
    variable = os.environ.get("WANDB_MODE")
    if settings.mode != "auto" or not variable:
        return settings.mode
    if variable.lower() not in MODES:
        raise UserError(f"WANDB_MODE={variable}: choose one of {', '.join(MODES)}")
    return MODES[variable.lower()]


def push(
    payload: Payload, settings: WandbConfig, output: Path, mode: Mode, again: bool = False
) -> str:
    """Logs a payload.

    Args:
        payload: what to log.
        settings: where to, and how long it may take.
        output: folder that holds `runs/`; W&B's own files go to its `wandb/`.
        mode: from :func:`mode_of`.
        again: also what was logged before as it is.

    Returns:
        Where it is, in a few words.

    Raises:
        NotLoggedError: whatever went wrong, after at most `settings.timeout_s` seconds.
    """
    job = Job(
        payload=asdict(payload),
        digest=payload.digest(),
        mode=mode,
        project=settings.project,
        entity=settings.entity,
        output=str(output.resolve()),
        again=again,
        timeout_s=settings.timeout_s,
    )
    with tempfile.TemporaryDirectory(prefix="river_llm_") as scratch:
        asked, answer = Path(scratch) / "job.json", Path(scratch) / "result.json"
        printed = Path(scratch) / "printed"
        write_json(asked, asdict(job))
        status = _run([str(asked), str(answer)], printed, output, settings.timeout_s)
        result = read_json(answer)
        if result is None:
            raise NotLoggedError(status or _last_line(printed) or "it ended without a word")
    if "error" in result:
        raise NotLoggedError(result["error"])
    where: str = result["where"]
    return where


def _run(arguments: list[str], printed: Path, output: Path, timeout_s: float) -> str | None:
    """Runs the process to its end; returns how it ended where that was not of itself."""
    with printed.open("wb") as file:
        process = subprocess.Popen(
            # -P: a folder named wandb in the present one is no package.
            [sys.executable, "-P", "-m", "river_llm.tracking.client", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=_environment(output),
            # No terminal, and one group of processes to end.
            start_new_session=True,
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return f"no end after logger.timeout_s={timeout_s:g} seconds"
        finally:
            _end(process)
    if process.returncode < 0:
        return f"its process was ended by {signal.Signals(-process.returncode).name}"
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is still running, whatever the reason; wandb's service ends with its parent."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(output: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
    source = str(Path(river_llm.__file__).resolve().parents[1])
    path = kept.get("PYTHONPATH")
    own = output.resolve() / "wandb"
    return {
        # Where the user says nothing else: no reports home, and no files outside of the output.
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_DATA_DIR": str(own / "data"),
        "WANDB_CACHE_DIR": str(own / "cache"),
        **kept,
        "PYTHONPATH": source if not path else os.pathsep.join([path, source]),
    }


def _last_line(printed: Path) -> str | None:
    lines = printed.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), None)
