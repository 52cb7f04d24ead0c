"""What the process that logs is given; no wandb here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["auto", "online", "offline"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the process is given.

    Attributes:
        payload: of :class:`river_llm.tracking.payload.Payload`, as plain data.
        digest: of the payload.
        mode: auto is online where the wandb package finds a key, else offline.
        project, entity: where the run stands.
        output: absolute path of the folder that holds `runs/`; W&B's files go to its `wandb/`.
        again: logs what was logged before too.
        timeout_s: for everything together.
    """

    payload: dict[str, Any]
    digest: str
    mode: Mode
    project: str
    entity: str | None
    output: str
    again: bool
    timeout_s: float
