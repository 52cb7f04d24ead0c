"""A sweep that is killed twice and started again: nothing finished is touched, nothing differs."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from command import Commands, Done
from sweep_files import cells, finished_rows, runs, starts, statuses, sweep_path, timeless

SAMPLES = 3
CELLS = (
    "{run:'method=no_exit'},"
    "{run:'method=river method.prefill=backbone',tau_for_depths:[1,2]},"
    "{run:'method=mask criterion=confidence',tau_for_depths:[2]},"
    "{run:'method=static_last',planned:method.k,depths:[1]},"
    "{run:'method=river_shuffled criterion=replay',"
    "replays:'method=river method.prefill=backbone',tau_for_depths:[2]}"
)
# A sample takes hundreds of steps of about a millisecond each: time enough to be killed in.
SIZES = (
    "exp=gsm_mini",
    "model.dtype=fp32",
    f"limit={SAMPLES}",
    "exp.max_new_tokens=250",
    "fidelity.limit=2",
    "fidelity.tokens=16",
    "speedup.prompts=0",
    "sweep.warm_up.prompts=1",
    "sweep.warm_up.tokens=32",
)


@dataclass
class State:
    """What lies on disk when a start has ended.

    Attributes:
        done: what the start came to.
        rows: the finished samples of every run.
        statuses: of the cells.
        points: the thresholds as stored.
    """

    done: Done
    rows: dict[str, list[bytes]]
    statuses: list[str]
    points: bytes


def state(done: Done, results: Path) -> State:
    stored = sweep_path(results) / "operating_points.json"
    return State(done, finished_rows(results), statuses(results), stored.read_bytes())


def kill_inside(commands: Commands, arguments: list[str], here: Path, method: str) -> Done:
    """Starts a sweep and kills it when the first run of a method has a sample on disk."""
    process = commands.start("run.py", arguments, here)
    for _ in range(6000):
        found = list(here.glob(f"results/runs/*/*/{method}-*/samples.jsonl"))
        if any(b"\n" in path.read_bytes() for path in found):
            break
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    return commands.finish()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("here")


@pytest.fixture(scope="module")
def states(commands: Commands, model: Path, here: Path) -> list[State]:
    """The same command three times: killed in its 2nd cell, in its 4th, and left alone."""
    # Somebody may work on the checkout meanwhile.
    common = [*SIZES, f"model.path={model}", "resume.force=true"]
    arguments = ["-m", "sweep=pareto", f"sweep.cells=[{CELLS}]", *common]
    results = here / "results"
    return [
        state(kill_inside(commands, arguments, here, "river"), results),
        state(kill_inside(commands, arguments, here, "mask"), results),
        state(commands.run("run.py", arguments, here), results),
    ]


@pytest.fixture(scope="module")
def undisturbed(commands: Commands, model: Path, here: Path, states: list[State]) -> Path:
    """Results of the same sweep in one go, in another folder."""
    common = [*SIZES, f"model.path={model}", "output.dir=other"]
    done = commands.run("run.py", ["-m", "sweep=pareto", f"sweep.cells=[{CELLS}]", *common], here)
    assert done.status == 0, done.stderr
    return here / "other"


def test_it_was_killed_twice_inside_a_cell(states: list[State]):
    first, second, last = states
    assert first.done.status == second.done.status == -signal.SIGKILL
    assert first.statuses == ["finished", *["waiting"] * 5]
    assert second.statuses == [*["finished"] * 3, *["waiting"] * 3]
    ((_, river),) = [(n, rows) for n, rows in first.rows.items() if n.startswith("river-")]
    ((_, mask),) = [(n, rows) for n, rows in second.rows.items() if n.startswith("mask-")]
    assert 1 <= len(river) < SAMPLES
    assert 1 <= len(mask) < SAMPLES
    assert last.done.status == 0, last.done.stderr
    assert last.statuses == ["finished"] * 6


def test_finished_samples_are_byte_for_byte_what_they_were(states: list[State]):
    for earlier, later in ((0, 1), (1, 2), (0, 2)):
        for name, rows in states[earlier].rows.items():
            assert states[later].rows[name][: len(rows)] == rows
    assert {len(rows) for rows in states[-1].rows.values()} == {SAMPLES}
    assert len(states[-1].rows) == 6


def test_each_start_made_only_what_was_missing(states: list[State], here: Path):
    made = {name.partition("-")[0]: 0 for name in states[-1].rows}
    for name, path in runs(here / "results").items():
        made[name.partition("-")[0]] += starts(path)
    # Two rivers, of which one was interrupted; the mask was too.
    assert made == {"no_exit": 1, "river": 3, "mask": 2, "static_last": 1, "river_shuffled": 1}


def test_the_thresholds_are_those_of_the_first_start(states: list[State]):
    first, *rest = states
    assert "measuring scores" in first.done.stderr
    for later in rest:
        assert later.points == first.points
        assert "measuring scores" not in later.done.stderr


def test_the_rest_equals_one_run_through(states: list[State], here: Path, undisturbed: Path):
    # The names hold the thresholds and the replayed depths, too.
    assert timeless(states[-1].rows) == timeless(finished_rows(undisturbed))
    for name, path in runs(here / "results").items():
        assert measured(path) == measured(runs(undisturbed)[name])
    own = [without_place(cell["overrides"]) for cell in cells(here / "results")]
    assert own == [without_place(cell["overrides"]) for cell in cells(undisturbed)]
    assert any("criterion.tau=" in override for overrides in own for override in overrides)


def measured(path: Path) -> Any:
    """What was compared with no_exit's text, time aside."""
    return json.loads((path / "forced_scores.json").read_text("utf-8"))


def without_place(overrides: list[str]) -> list[str]:
    """The overrides of a cell without where it writes and what it may append to."""
    return [o for o in overrides if o.partition("=")[0] not in ("output.dir", "resume.force")]
