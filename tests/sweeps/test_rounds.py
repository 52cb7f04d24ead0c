"""The order in which cells are launched: a replay waits for the run whose depths it replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from river_llm.sweeps.folder import Cell, Outcome, SweepFolder
from river_llm.sweeps.rounds import rounds

RIVER = Cell(("method=river", "criterion.tau=0.5"))
SHUFFLED = Cell(("method=river_shuffled", "criterion=replay"), after=RIVER.key)
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
    assert outcome.reason == f"the run whose depths it replays did not finish: {why}"


def test_the_cells_of_a_shard_alone_are_launched(folder: SweepFolder):
    assert next(rounds(folder, [MASK])) == [["method=mask", f"hydra.job.name={MASK.key}"]]
