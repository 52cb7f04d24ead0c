"""Logs one payload with the wandb package, in a process of its own.

    python -m river_llm.tracking.client JOB RESULT

JOB and RESULT are JSON files: what to log (see :mod:`river_llm.tracking.job`), and
`{"where": ...}` or `{"error": ...}`. Only here is wandb imported.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any, Literal

import wandb
from PIL import Image

from river_llm.records import read_json, write_json
from river_llm.tracking.job import Job

LOGGED = "logged"
"""Folder beside W&B's own files: for each run a note of what was logged of it last."""

INIT_SHARE, FINISH_SHARE = 0.25, 0.5
"""Shares of the time that a run may take: for the first answer, and for the upload at the end."""


def log(job: Job) -> str:
    """Logs a payload as one run of W&B, and finishes it.

    The run's id is not resumed but given again: W&B then puts the new data in the place of the
    old, online as in `wandb sync`. A resumed run would keep old figures beside the new ones, and
    offline runs cannot be resumed.

    Returns:
        Where it is, in a few words.
    """
    mode = job.mode if job.mode != "auto" else _mode_of_key()
    note = Path(job.output) / "wandb" / LOGGED / f"{job.payload['id']}.json"
    before = read_json(note)
    place = {"digest": job.digest, "project": job.project, "entity": job.entity}
    # What is online needs no offline copy; what is offline may still go online.
    known = [{**place, "mode": "online"}, {**place, "mode": mode}]
    if before in known and not job.again:
        return f"nothing new since it was logged {before['mode']}"
    where = _log(job, mode)
    note.parent.mkdir(parents=True, exist_ok=True)
    write_json(note, {**place, "mode": mode})
    return where


def _mode_of_key() -> Literal["online", "offline"]:
    """Looks for a key where the package does (variables, netrc, its settings), asking nobody."""
    return "online" if wandb.login(prompt=False, verify=False) else "offline"


def _log(job: Job, mode: Literal["online", "offline"]) -> str:
    payload = job.payload
    # Given when the run starts: what is assigned later gets lost in offline runs side by side.
    with wandb.init(
        id=payload["id"],
        name=payload["name"],
        job_type=payload["job_type"],
        group=payload["group"],
        tags=payload["tags"],
        config=payload["config"],
        project=job.project,
        entity=job.entity,
        mode=mode,
        dir=job.output,
        settings=_settings(job.timeout_s),
    ) as run:
        summary = payload["summary"]
        # In the history too, since only what stands there gets charts by itself.
        numbers = {k: v for k, v in summary.items() if type(v) in (int, float)}
        run.log({**numbers, **_media(payload)})
        run.summary.update(summary)
    if mode == "online":
        return str(run.url)
    return f"offline, upload it with: wandb sync {Path(run.dir).parent}"


def _media(payload: dict[str, Any]) -> dict[str, Any]:
    tables = {
        key: wandb.Table(columns=table["columns"], data=table["rows"])
        for key, table in payload["tables"].items()
    }
    histograms = {
        key: wandb.Histogram(np_histogram=(bins["counts"], bins["edges"]))
        for key, bins in payload["histograms"].items()
    }
    pictures = {
        key: wandb.Image(Image.open(io.BytesIO(base64.b64decode(png))))
        for key, png in payload["pictures"].items()
    }
    return {**tables, **histograms, **pictures}


def _settings(timeout_s: float) -> wandb.Settings:
    """Bounded in time; nothing of the machine, the user or this process goes along."""
    return wandb.Settings(
        init_timeout=INIT_SHARE * timeout_s,
        finish_timeout=FINISH_SHARE * timeout_s,
        finish_timeout_raises=True,
        console="off",
        silent=True,
        symlink=False,
        save_code=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        host="",
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )


def main(arguments: list[str]) -> int:
    """Reads the job and leaves the result; whatever the package raises is one."""
    job, result = (Path(argument) for argument in arguments)
    try:
        content = {"where": log(Job(**json.loads(job.read_text(encoding="utf-8"))))}
    except Exception as error:
        content = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    write_json(result, content)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
