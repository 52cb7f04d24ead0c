"""`python run.py -m ...` from the outside."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from command import Commands, Done
from sweep_files import cells, runs, stamps, starts, statuses, sweep_path
from tiny_folder import SMALL, save_llama

ALONE = ("limit=1", "speedup.prompts=0", "fidelity.limit=0")
"""One sample for each cell, and no measurements beside it."""


@dataclass
class Sweep:
    """A command line that was run in a folder of its own.

    Attributes:
        arguments: without `-m`.
        here: where it was started.
        done: what it came to.
    """

    arguments: Sequence[str]
    here: Path
    done: Done

    @property
    def results(self) -> Path:
        return self.here / "results"

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """The JSON objects on stdout, in order."""
        return [json.loads(line) for line in self.done.stdout.splitlines() if line[0] == "{"]


def loads(done: Done) -> int:
    """How often a model was read: transformers shows a bar for its weights each time."""
    return done.stderr.count("Loading weights:   0%")


def start(commands: Commands, here: Path, *arguments: str) -> Sweep:
    return Sweep(arguments, here, commands.run("run.py", ["-m", *arguments], here))


# --- a grid -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grid(commands: Commands, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Three methods and two thresholds, of which one method has no use."""
    sizes = ["limit=2", "fidelity.limit=1"]
    varied = ["method=no_exit,river,mask", "criterion.tau=0.3,0.8"]
    here = tmp_path_factory.mktemp("here")
    sweep = start(commands, here, *SMALL, *sizes, f"model.path={model}", *varied)
    assert sweep.done.status == 0, sweep.done.stderr
    return sweep


def test_every_cell_is_run_and_equal_computations_once(grid: Sweep):
    chosen = [(s["method"], s["settings"].get("criterion", {}).get("tau")) for s in grid.summaries]
    assert chosen == [
        ("no_exit", None),
        ("river", 0.3),
        ("river", 0.8),
        ("mask", 0.3),
        ("mask", 0.8),
    ]
    assert {s["samples"] for s in grid.summaries} == {2}
    assert len(runs(grid.results)) == 5
    assert all(starts(path) == 1 for path in runs(grid.results).values())


def test_the_sweep_lists_its_cells_with_their_runs(grid: Sweep):
    listed = cells(grid.results)
    assert [(cell["status"], cell["reason"]) for cell in listed] == [("finished", None)] * 5
    assert [cell["run_dir"] for cell in listed] == [s["run_dir"] for s in grid.summaries]
    for cell, summary in zip(listed, grid.summaries, strict=True):
        assert f"method={summary['method']}" in cell["overrides"]
        assert (grid.here / cell["run_dir"] / "summary.json").exists()


def test_the_sweep_says_where_it_is_and_what_it_runs(grid: Sweep):
    path = sweep_path(grid.results).relative_to(grid.here)
    assert f"5 cells, 0 of them finished before: {path}/sweep.json" in grid.done.stderr
    assert "[3/5] method=river criterion.tau=0.8: finished in " in grid.done.stderr
    assert grid.done.errors == []


def test_cells_that_share_a_model_load_it_once(grid: Sweep):
    assert loads(grid.done) == 1


def test_finished_cells_are_left_as_they_are(grid: Sweep, commands: Commands):
    before = stamps(grid.results)
    again = start(commands, grid.here, *grid.arguments)
    assert again.done.status == 0, again.done.stderr
    assert stamps(grid.results) == before
    assert all(starts(path) == 1 for path in runs(grid.results).values())
    assert statuses(grid.results) == ["finished"] * 5
    assert "5 cells, 5 of them finished before" in again.done.stderr
    assert (loads(again.done), again.summaries) == (0, [])


def test_a_second_model_is_loaded_when_the_first_is_done_with(
    commands: Commands, model: Path, tmp_path: Path, empty: Path
):
    # As typed, the models would take turns.
    other = save_llama(tmp_path / "other")
    varied = ["method=no_exit,full_quant", f"model.path={model},{other}"]
    sweep = start(commands, empty, *SMALL, *ALONE, *varied)
    assert sweep.done.status == 0, sweep.done.stderr
    assert [(s["model"], s["method"]) for s in sweep.summaries] == [
        ("llama", "no_exit"),
        ("llama", "full_quant"),
        ("other", "no_exit"),
        ("other", "full_quant"),
    ]
    assert loads(sweep.done) == 2


# --- cells that fail ----------------------------------------------------------------------


def test_a_failed_cell_is_named_and_does_not_stop_the_rest(
    commands: Commands, model: Path, empty: Path
):
    # static_first lacks method.k and does not compose; depth 99 is found when the model is there.
    varied = ["method=no_exit,static_first,mask", "criterion=fixed", "criterion.depth=99,1"]
    sweep = start(commands, empty, *SMALL, *ALONE, f"model.path={model}", *varied)
    assert sweep.done.status == 2
    assert "Traceback" not in sweep.done.stderr
    assert statuses(sweep.results) == ["finished", "failed", "failed", "failed", "finished"]
    assert [s["method"] for s in sweep.summaries] == ["no_exit", "mask"]
    missing = "method.k has no default: give method.k=..."
    assert sweep.done.errors == [
        f"error: cell [2/5] method=static_first criterion.depth=99 failed: {missing}",
        f"error: cell [3/5] method=static_first criterion.depth=1 failed: {missing}",
        "error: cell [4/5] method=mask criterion.depth=99 failed: criterion.depth=99: this model "
        "has depths 0 to 3",
    ]
    assert "3 of 5 cells failed" in sweep.done.stderr.splitlines()[-1]
    reasons = [cell["reason"] for cell in cells(sweep.results)]
    assert reasons[1] == reasons[2] == missing
    assert "criterion.depth=99" in reasons[3]
    assert len(runs(sweep.results)) == 2


def test_the_same_command_mends_a_sweep_whose_fault_is_mended(
    commands: Commands, model: Path, empty: Path
):
    data = empty / "rows.jsonl"
    task = ["exp=gsm8k", f"data.path={data}", "exp.fewshot=0"]
    varied = ["method=no_exit,full_quant"]
    arguments = [*SMALL, *ALONE, *task, f"model.path={model}", *varied]
    failed = start(commands, empty, *arguments)
    assert failed.done.status == 2
    assert [str(data) in line for line in failed.done.errors] == [True, True]
    assert statuses(failed.results) == ["failed"] * 2
    row = {"question": "How many is one and one?", "answer": "It is two.\n#### 2"}
    data.write_text(json.dumps(row) + "\n", encoding="utf-8")
    mended = start(commands, empty, *arguments)
    assert mended.done.status == 0, mended.done.stderr
    assert mended.done.errors == []
    assert [(c["status"], c["reason"]) for c in cells(mended.results)] == [("finished", None)] * 2


# --- shards -------------------------------------------------------------------------------


def test_shards_share_the_cells_of_one_sweep(commands: Commands, model: Path, empty: Path):
    arguments = [*SMALL, *ALONE, f"model.path={model}", "method=no_exit,full_quant,mask"]
    first = start(commands, empty, *arguments, "shard=1/2")
    assert first.done.status == 0, first.done.stderr
    assert [s["method"] for s in first.summaries] == ["no_exit", "mask"]
    assert statuses(first.results) == ["finished", "waiting", "finished"]
    second = start(commands, empty, "shard=2/2", *arguments)
    assert second.done.status == 0, second.done.stderr
    assert [s["method"] for s in second.summaries] == ["full_quant"]
    assert statuses(second.results) == ["finished"] * 3
    assert [starts(path) for path in runs(second.results).values()] == [1, 1, 1]


# --- the dry run --------------------------------------------------------------------------


def test_a_dry_run_lists_every_cell_with_a_time_and_leaves_no_trace(
    commands: Commands, model: Path, empty: Path
):
    # On the compiled engine less than a second is left.
    common = [*SMALL, "engine=eager", "limit=4", "exp.max_new_tokens=1000", f"model.path={model}"]
    varied = ["method=no_exit,river", "criterion.tau=0.3,0.8"]
    sweep = start(commands, empty, *common, *varied, "dry_run=true")
    assert sweep.done.status == 0, sweep.done.stderr
    *lines, last = sweep.done.stdout.splitlines()
    found = [re.fullmatch(r" *(\d+)s  (.*)", line) for line in lines]
    assert all(found), lines
    titles = [" ".join(match[2].split()[-2:]) for match in found if match]
    assert titles == [
        "method=no_exit criterion.tau=0.3",
        "method=river criterion.tau=0.3",
        "method=river criterion.tau=0.8",
    ]
    # 4000 steps of three small layers: around a millisecond each.
    seconds = [int(match[1]) for match in found if match]
    assert all(1 <= value <= 50 for value in seconds)
    total = re.match(r" *(?:(\d+)h(\d+)m|(\d+)s)  about, for 3 cells", last)
    assert total, last
    assert loads(sweep.done) == 1
    assert list(empty.iterdir()) == []


def test_a_dry_run_finds_the_cells_that_cannot_run(commands: Commands, model: Path, empty: Path):
    varied = ["method=static_first,mask", "criterion=fixed", "criterion.depth=99,1"]
    sweep = start(commands, empty, *SMALL, f"model.path={model}", *varied, "dry_run=true")
    assert sweep.done.status == 2
    assert "Traceback" not in sweep.done.stderr
    listed = sweep.done.stdout.splitlines()[:-1]
    assert [line.split()[-1] for line in listed] == ["criterion.depth=1"]
    assert len(sweep.done.errors) == 3
    for line, words in zip(
        sweep.done.errors,
        [("static_first", "method.k"), ("static_first", "method.k"), ("mask", "depths 0 to 3")],
        strict=True,
    ):
        assert "cannot run: " in line
        assert all(word in line for word in words)
    assert list(empty.iterdir()) == []


# --- recipes ------------------------------------------------------------------------------

SHUFFLED = (
    "sweep.answers='limit=1'",
    "sweep.cells=[{run:'method=river_shuffled criterion=replay',"
    "replays:'method=river method.prefill=backbone',tau_for_depths:[2],answers_at:[2]},"
    "{run:'method=static_last',planned:method.k,depths:[1,L,24],answers_at:[1,L]}]",
    "sweep.name=mine",
)


def test_a_recipe_runs_what_a_replay_needs_before_it(commands: Commands, model: Path, empty: Path):
    sizes = ["sweep.common='limit=0'", "fidelity.limit=1", "speedup.prompts=0"]
    common = [o for o in SMALL if not o.startswith("limit")]
    arguments = [*common, *sizes, f"model.path={model}", *SHUFFLED]
    listed = start(commands, empty, *arguments, "dry_run=true")
    assert listed.done.status == 0, listed.done.stderr
    assert "later  " in listed.done.stdout.splitlines()[1]
    assert not (empty / "results" / "runs").exists()
    sweep = start(commands, empty, *arguments)
    assert sweep.done.status == 0, sweep.done.stderr
    assert statuses(sweep.results) == ["finished"] * 4
    assert sweep_path(sweep.results).name.startswith("mine-")
    # In the order of their start: sources and cells without one, then the replay.
    assert [s["method"] for s in sweep.summaries] == [
        "river",
        "static_last",
        "static_last",
        "river_shuffled",
    ]
    river, one, all_, shuffled = sweep.summaries
    assert [one["settings"]["method"]["k"], all_["settings"]["method"]["k"]] == [1, 3]
    assert shuffled["exit_depth"]["histogram"] == river["exit_depth"]["histogram"]
    assert loads(listed.done) == loads(sweep.done) == 1
