"""The folder of a sweep: its plan, one small file per finished or failed cell, its thresholds.

`sweep.json` is made from the plan and the cells' files whenever one of them is written, so that
several processes (shards, workers) may work on one sweep and whatever is on disk is readable.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from river_llm.errors import UserError
from river_llm.records import read_json, write_json
from river_llm.sweeps.overrides import lasting

PLAN, SWEEP, OPERATING_POINTS, CELLS = "plan.json", "sweep.json", "operating_points.json", "cells"

FROM_RUN = "criterion.from_run"
"""What a cell takes that replays another's depths."""

Status = Literal["waiting", "finished", "failed"]


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        overrides: of the run, complete but for the key `takes` where `after` is given.
        after: key of the cell whose run must be there first.
        takes: the setting that follows from that run: `criterion.from_run` takes its folder,
            whose depths are replayed, any other its mean exit depth in whole layers.
        problem: why it could not be planned; its overrides are then not complete.
    """

    overrides: tuple[str, ...]
    after: str | None = None
    takes: str | None = None
    problem: str | None = None

    @property
    def provisional(self) -> list[str]:
        """Overrides that compose, with a stand-in for what the cell takes from another run."""
        if self.takes is None:
            return list(self.overrides)
        return [*self.overrides, f"{self.takes}={'later' if self.takes == FROM_RUN else 1}"]

    @property
    def key(self) -> str:
        """12 characters that stand for the cell; the letter keeps it from reading as a number."""
        text = json.dumps([lasting(self.overrides), self.after, self.takes])
        return "c" + hashlib.sha256(text.encode()).hexdigest()[:11]


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        status: finished or failed; waiting: neither yet.
        run_dir: folder of its run.
        reason: why it failed, in one line.
    """

    status: Status = "waiting"
    run_dir: str | None = None
    reason: str | None = None


class SweepFolder:
    """The folder of one sweep.

    Args:
        path: `<output>/sweeps/<name>-<hash>`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_plan(self, name: str, cells: Sequence[Cell]) -> None:
        """Writes the cells down; outcomes of an earlier start stay, but for failures.

        Raises:
            UserError: the folder cannot be written.
        """
        self._make()
        content = {"name": name, "cells": [{"key": c.key, **asdict(c)} for c in cells]}
        write_json(self.path / PLAN, content)
        self._refresh()

    def forget(self, cells: Sequence[Cell]) -> None:
        """Takes back what is known of cells that are about to be run again."""
        for cell in cells:
            (self.path / CELLS / f"{cell.key}.json").unlink(missing_ok=True)
        self._refresh()

    def cells(self) -> list[Cell]:
        """The planned cells.

        Raises:
            UserError: there is no plan.
        """
        plan = read_json(self.path / PLAN)
        if plan is None:
            raise UserError(f"{self.path} holds no {PLAN}: it is not the folder of a sweep")
        return [
            Cell(tuple(row["overrides"]), row["after"], row["takes"], row["problem"])
            for row in plan["cells"]
        ]

    def title(self, key: str) -> str:
        """Place of a cell in the sweep, and those of its overrides that not every cell has."""
        cells = self.cells()
        common = set.intersection(*(set(cell.overrides) for cell in cells))
        place = [cell.key for cell in cells].index(key)
        own = [o for o in cells[place].overrides if len(cells) == 1 or o not in common]
        return f"[{place + 1}/{len(cells)}] {' '.join(own)}"

    def outcome(self, key: str) -> Outcome:
        """What is known of a cell."""
        row = read_json(self.path / CELLS / f"{key}.json")
        return Outcome() if row is None else Outcome(**row)

    def set_outcome(self, key: str, outcome: Outcome) -> None:
        """Notes what became of a cell."""
        write_json(self.path / CELLS / f"{key}.json", asdict(outcome))
        self._refresh()

    def operating_points(self) -> dict[str, dict[str, Any]]:
        """Thresholds and layer counts found for this sweep so far."""
        stored: dict[str, dict[str, Any]] | None = read_json(self.path / OPERATING_POINTS)
        return stored or {}

    def keep_operating_points(self, key: str, found: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Adds some, so that a resumed sweep uses the same; what was kept first holds.

        Returns:
            All that are kept.

        Raises:
            UserError: the folder cannot be written.
        """
        self._make()
        with self._locked():
            stored = self.operating_points()
            points = {**stored, key: {**found, **stored.get(key, {})}}
            write_json(self.path / OPERATING_POINTS, points)
        return points

    def _make(self) -> None:
        try:
            (self.path / CELLS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot write the sweep folder {self.path}: {error.strerror}; give another one "
                "with output.dir="
            ) from error

    def _refresh(self) -> None:
        with self._locked():
            plan = read_json(self.path / PLAN)
            if plan is None:
                return
            rows = [{**row, **asdict(self.outcome(row["key"]))} for row in plan["cells"]]
            write_json(self.path / SWEEP, {"name": plan["name"], "cells": rows})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time: who reads first must not write last."""
        with (self.path / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
