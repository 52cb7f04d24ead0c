"""The order in which cells are launched: one that follows from another's run waits for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from river_llm.sweeps.folder import Cell, Outcome, SweepFolder
from river_llm.sweeps.rounds import rounds

RIVER = Cell(("method=river", "criterion.tau=0.5"))
SHUFFLED = Cell(
    ("method=river_shuffled", "criterion=replay"), after=RIVER.key, takes="criterion.from_run"
)
STATIC = Cell(("method=static_first",), after=RIVER.key, takes="method.k")
MASK = Cell(("method=mask",))
CELLS = [RIVER, SHUFFLED, MASK]


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    planned = SweepFolder(tmp_path)
    planned.write_plan("mine", CELLS)
    return planned


def test_replays_are_launched_when_the_others_have_ended(folder: SweepFolder):
    launched = rounds(folder, CELLS)
    assert next(launched) == [
        ["method=river", "criterion.tau=0.5", f"hydra.job.name={RIVER.key}"],
        ["method=mask", f"hydra.job.name={MASK.key}"],
    ]
    folder.set_outcome(RIVER.key, Outcome("finished", run_dir="it's here/river-1"))
    assert next(launched) == [
        [
            "method=river_shuffled",
            "criterion=replay",
            "criterion.from_run='it\\'s here/river-1'",
            f"hydra.job.name={SHUFFLED.key}",
        ]
    ]
    assert list(launched) == []


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (Outcome("failed", reason="the disk is full"), "the disk is full"),
        (Outcome(), "it was not run to its end"),
    ],
    ids=["failed", "killed"],
)
def test_a_replay_without_its_source_fails_with_the_reason(
    folder: SweepFolder, source: Outcome, why: str
):
    launched = rounds(folder, CELLS)
    next(launched)
    folder.set_outcome(RIVER.key, source)
    assert next(launched) == []
    outcome = folder.outcome(SHUFFLED.key)
    assert outcome.status == "failed"
    assert outcome.reason == f"the run that it follows from did not finish: {why}"


@pytest.mark.parametrize(
    ("summary", "k"),
    [
        ({"exit_depth": {"mean": 3.4}, "fidelity": {"mean_depth": 9.0}}, 3),
        ({"exit_depth": {"mean": 3.6}, "fidelity": None}, 4),
        ({"exit_depth": {"mean": None}, "fidelity": {"mean_depth": 2.2}}, 2),
    ],
    ids=["rounded down", "rounded up", "no text ran freely"],
)
def test_a_static_cell_takes_the_mean_depth_of_its_source(
    tmp_path: Path, summary: dict[str, Any], k: int
):
    planned = SweepFolder(tmp_path / "sweep")
    planned.write_plan("mine", [RIVER, STATIC])
    launched = rounds(planned, [RIVER, STATIC])
    next(launched)
    run = tmp_path / "river-1"
    run.mkdir()
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    planned.set_outcome(RIVER.key, Outcome("finished", run_dir=str(run)))
    assert next(launched) == [
        ["method=static_first", f"method.k={k}", f"hydra.job.name={STATIC.key}"]
    ]


def test_a_source_without_depths_fails_the_cell_that_takes_them(tmp_path: Path):
    planned = SweepFolder(tmp_path)
    planned.write_plan("mine", [RIVER, STATIC])
    launched = rounds(planned, [RIVER, STATIC])
    next(launched)
    planned.set_outcome(RIVER.key, Outcome("finished", run_dir=str(tmp_path / "gone")))
    assert next(launched) == []
    assert "has no exit depths" in (planned.outcome(STATIC.key).reason or "")


def test_the_cells_of_a_shard_alone_are_launched(folder: SweepFolder):
    assert next(rounds(folder, [MASK])) == [["method=mask", f"hydra.job.name={MASK.key}"]]
