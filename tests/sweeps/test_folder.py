"""The folder of a sweep: what is noted there stays, whoever writes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from river_llm.errors import UserError
from river_llm.sweeps.folder import Cell, Outcome, SweepFolder

CELLS = [
    Cell(("exp=gsm8k", "method=no_exit")),
    Cell(("exp=gsm8k", "method=river", "criterion.tau=0.5")),
    Cell(("exp=gsm8k", "method=river_shuffled"), after="c0123456789a"),
]
FINISHED = Outcome("finished", run_dir="results/runs/a")
FAILED = Outcome("failed", reason="there is no such file")


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """A planned sweep of three cells."""
    planned = SweepFolder(tmp_path / "sweeps" / "grid-1")
    planned.write_plan("grid", CELLS)
    return planned


def rows(folder: SweepFolder) -> list[dict]:
    content = json.loads((folder.path / "sweep.json").read_text("utf-8"))
    assert content["name"] == "grid"
    return content["cells"]


def statuses(folder: SweepFolder) -> list[str]:
    return [row["status"] for row in rows(folder)]


def test_a_planned_sweep_waits(folder: SweepFolder):
    assert rows(folder)[1] == {
        "key": CELLS[1].key,
        "overrides": ["exp=gsm8k", "method=river", "criterion.tau=0.5"],
        "after": None,
        "takes": None,
        "problem": None,
        "status": "waiting",
        "run_dir": None,
        "reason": None,
    }
    assert statuses(folder) == ["waiting"] * 3
    assert folder.cells() == CELLS
    assert folder.outcome(CELLS[0].key) == Outcome()


def test_outcomes_are_seen_by_everyone(folder: SweepFolder):
    folder.set_outcome(CELLS[1].key, FAILED)
    folder.set_outcome(CELLS[0].key, FINISHED)
    other = SweepFolder(folder.path)
    assert other.outcome(CELLS[0].key) == FINISHED
    assert other.outcome(CELLS[1].key) == FAILED
    assert [(row["status"], row["run_dir"], row["reason"]) for row in rows(folder)] == [
        ("finished", "results/runs/a", None),
        ("failed", None, "there is no such file"),
        ("waiting", None, None),
    ]


def test_a_second_start_keeps_what_is_finished_and_forgets_what_it_runs_again(folder: SweepFolder):
    folder.set_outcome(CELLS[0].key, FINISHED)
    folder.set_outcome(CELLS[1].key, FAILED)
    folder.write_plan("grid", CELLS)
    assert statuses(folder) == ["finished", "failed", "waiting"]
    folder.forget([CELLS[1], CELLS[2]])
    assert statuses(folder) == ["finished", "waiting", "waiting"]


def test_the_list_is_made_from_the_outcomes(folder: SweepFolder):
    folder.set_outcome(CELLS[0].key, FINISHED)
    (folder.path / "sweep.json").write_text("half a li", encoding="utf-8")
    folder.set_outcome(CELLS[2].key, FAILED)
    assert statuses(folder) == ["finished", "waiting", "failed"]


def test_who_read_first_does_not_write_last(folder: SweepFolder, monkeypatch: pytest.MonkeyPatch):
    # One writer has read all outcomes for the list; before it writes, another notes its own.
    other = SweepFolder(folder.path)
    late = threading.Thread(target=other.set_outcome, args=(CELLS[0].key, FINISHED))
    original = folder.outcome

    def slow(key: str) -> Outcome:
        found = original(key)
        if key == CELLS[2].key:
            late.start()
            late.join(0.5)
        return found

    monkeypatch.setattr(folder, "outcome", slow)
    folder.set_outcome(CELLS[1].key, FAILED)
    late.join()
    assert statuses(folder) == ["finished", "failed", "waiting"]


def test_no_half_files_are_left(folder: SweepFolder):
    for cell in CELLS:
        folder.set_outcome(cell.key, FINISHED)
    folder.keep_operating_points("m", {"layers": 3})
    assert {path.name for path in folder.path.iterdir()} == {
        ".lock",
        "cells",
        "operating_points.json",
        "plan.json",
        "sweep.json",
    }
    assert {path.stem for path in (folder.path / "cells").iterdir()} == {c.key for c in CELLS}


def test_a_cell_is_named_by_its_place_and_what_only_it_has(folder: SweepFolder):
    assert folder.title(CELLS[0].key) == "[1/3] method=no_exit"
    assert folder.title(CELLS[1].key) == "[2/3] method=river criterion.tau=0.5"
    alone = SweepFolder(folder.path.with_name("alone"))
    alone.write_plan("grid", CELLS[:1])
    assert alone.title(CELLS[0].key) == "[1/1] exp=gsm8k method=no_exit"


def test_the_key_of_a_cell_is_its_overrides_and_its_source():
    assert len({cell.key for cell in CELLS}) == 3
    assert Cell(CELLS[2].overrides).key != CELLS[2].key
    assert Cell((*CELLS[0].overrides, "resume.force=true")).key == CELLS[0].key
    assert Cell((*CELLS[0].overrides, "logger=none", "+logger.mode=x")).key == CELLS[0].key
    # Hydra would read 1234e5678901 as a number, and 00012 as 12.
    keys = [Cell((f"seed={seed}",)).key for seed in range(100)]
    assert all(len(key) == 12 and key[0] == "c" for key in keys)


def test_operating_points_are_kept(folder: SweepFolder):
    assert folder.operating_points() == {}
    folder.keep_operating_points("m", {"layers": 3})
    folder.keep_operating_points("m similarity", {"2": 0.25})
    # What was kept first holds, also against another process.
    folder.keep_operating_points("m similarity", {"2": 0.5, "1": 0.125})
    assert SweepFolder(folder.path).operating_points() == {
        "m": {"layers": 3},
        "m similarity": {"2": 0.25, "1": 0.125},
    }


def test_another_folder_is_no_sweep(tmp_path: Path):
    with pytest.raises(UserError, match="not the folder of a sweep") as caught:
        SweepFolder(tmp_path).cells()
    assert str(tmp_path) in str(caught.value)


def test_a_file_in_place_of_the_folder_is_left_alone(tmp_path: Path):
    (tmp_path / "sweeps").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"output\.dir="):
        SweepFolder(tmp_path / "sweeps" / "grid-1").write_plan("grid", CELLS)
    with pytest.raises(UserError, match=r"output\.dir="):
        SweepFolder(tmp_path / "sweeps" / "grid-1").keep_operating_points("m", {})
    assert (tmp_path / "sweeps").read_text("utf-8") == "mine"
