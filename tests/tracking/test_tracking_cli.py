"""W&B from the outside: a sweep with the real client, offline, and a run whose client dies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from wandb_file import Written, written

from command import Commands, Done
from tiny_folder import SMALL

MEASURED = ("limit=2", "speedup.prompts=2", "fidelity.limit=2")


@dataclass
class Sweep:
    """A sweep of three cells, and what W&B has of it."""

    here: Path
    arguments: list[str]
    done: Done
    logged: dict[str, Written]

    @property
    def results(self) -> Path:
        return self.here / "results"

    @property
    def folder(self) -> Path:
        (folder,) = (self.results / "sweeps").iterdir()
        return folder

    @property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """What is on disk, by the ids of W&B."""
        found = [json.loads(p.read_text("utf-8")) for p in self.results.rglob("summary.json")]
        return {f"{s['method']}-{s['identity']}": s for s in found}


@pytest.fixture(scope="module")
def sweep(commands: Commands, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    here = tmp_path_factory.mktemp("here")
    own = ["logger.mode=offline", "logger.tags=[small]", "logger.table_rows=1"]
    varied = ["method=no_exit,river", "criterion.tau=0.3,0.8"]
    arguments = ["-m", *SMALL, *MEASURED, f"model.path={model}", *varied, *own]
    done = commands.run("run.py", arguments, here)
    assert done.status == 0, done.stderr
    return Sweep(here, arguments, done, written(here / "results"))


def test_three_cells_are_three_runs_and_one_for_the_sweep(sweep: Sweep):
    assert len(sweep.summaries) == 3
    assert set(sweep.logged) == {*sweep.summaries, sweep.folder.name}
    assert [run.exit_code for run in sweep.logged.values()] == [0] * 4
    assert {run.record.run_group for run in sweep.logged.values()} == {sweep.folder.name}
    assert {tuple(run.record.tags) for run in sweep.logged.values()} == {("small",)}


def test_each_run_holds_its_own_settings_and_figures(sweep: Sweep):
    for name, summary in sweep.summaries.items():
        run = sweep.logged[name]
        assert run.config["settings"] == summary["settings"]
        assert set(run.later_config) <= {"_wandb"}
        matched = summary["speedup"]["decode"]["matched"]["value"]
        assert run.summary["speedup/decode/matched"] == pytest.approx(matched, rel=1e-12)
        assert run.summary["accuracy"] == summary["accuracy"]["value"]
        assert len(run.history) == 1
        histogram = run.history[0]["exit_depth/histogram.values"]
        assert histogram == summary["exit_depth"]["histogram"]
        table = json.loads(run.media("samples").read_text("utf-8"))
        assert len(table["data"]) == 1
        assert run.summary["samples/in_table"].startswith("the first 1 of 2 samples (logger.")


def test_the_sweep_has_tables_and_a_picture(sweep: Sweep):
    run = sweep.logged[sweep.folder.name]
    points = json.loads(run.media("pareto/points").read_text("utf-8"))
    column = points["columns"].index("Run")
    named = {f"{row[0].split(',')[0]}-{row[column]}" for row in points["data"]}
    assert named == set(sweep.summaries)
    assert set(run.config["runs"]) == set(sweep.summaries)
    picture = Image.open(run.media("pareto/picture"))
    assert picture.width > picture.height > 500
    assert run.summary["cells/finished"] == 3


def test_it_stays_out_of_the_way(sweep: Sweep):
    # Only output.dir in the folder it was started in, and only a run's own lines on stdout.
    assert [path.name for path in sweep.here.iterdir()] == ["results"]
    assert "W&B" not in sweep.done.stdout
    assert "wandb" not in sweep.done.stdout
    assert sweep.done.last_line["run_dir"].startswith("results/runs/")
    assert sweep.done.stderr.count("W&B: offline, upload it with: wandb sync ") == 4


def test_a_finished_sweep_is_not_logged_again(sweep: Sweep, commands: Commands):
    # Where it is mirrored makes no other sweep of it, and a finished one has nothing new.
    others = [a for a in sweep.arguments if not a.startswith("logger")]
    again = commands.run("run.py", [*others, "logger=none"], sweep.here)
    assert again.status == 0, again.stderr
    assert "3 cells, 3 of them finished before" in again.stderr
    once_more = commands.run("run.py", sweep.arguments, sweep.here)
    assert "W&B" not in once_more.stderr
    assert set(written(sweep.results)) == set(sweep.logged)


def test_records_are_logged_later_from_disk(sweep: Sweep, commands: Commands, tmp_path: Path):
    # Sweeps name run folders from where they were started.
    pushed = commands.run(
        "scripts/push_to_wandb.py", [str(sweep.folder), "--mode", "offline"], sweep.here
    )
    assert pushed.status == 0, pushed.stderr
    assert pushed.stdout.count("nothing new since it was logged offline") == 4
    (sweep.results / "wandb").rename(tmp_path / "wandb")
    run = next(path.parent for path in sweep.results.rglob("summary.json"))
    pushed = commands.run("scripts/push_to_wandb.py", [str(run), "--mode", "offline"], sweep.here)
    assert pushed.status == 0, pushed.stderr
    (new,) = written(sweep.results).values()
    before = sweep.logged[new.record.run_id]
    assert new.config == before.config
    assert {k: v for k, v in new.summary.items() if not _of_time(k)} == {
        k: v for k, v in before.summary.items() if not _of_time(k)
    }


def _of_time(key: str) -> bool:
    """What the package notes of its own process, and names of its own files."""
    return key.startswith("_") or key.startswith("samples.")


def test_nothing_to_push_is_said(commands: Commands, tmp_path: Path, empty: Path):
    done = commands.run("scripts/push_to_wandb.py", [str(tmp_path), "--mode", "offline"], empty)
    assert done.status == 2
    assert done.errors == [
        f"error: {tmp_path} is not the folder of a run: {tmp_path}/config.json cannot be read"
    ]
    done = commands.run("scripts/push_to_wandb.py", [str(tmp_path)], empty)
    assert "WANDB_MODE=disabled: nothing is logged" in done.errors[0]


def test_a_run_survives_a_client_that_cannot_write(commands: Commands, model: Path, empty: Path):
    # A file stands where the package wants its folder.
    (empty / "results").mkdir()
    (empty / "results" / "wandb").write_text("", "utf-8")
    own = ["logger.mode=offline", "logger.timeout_s=30"]
    arguments = [*SMALL, "limit=1", "speedup.prompts=0", "fidelity.limit=0", "method=no_exit"]
    done = commands.run("run.py", [*arguments, f"model.path={model}", *own], empty)
    assert done.status == 0, done.stderr
    run = Path(done.last_line["run_dir"])
    assert json.loads((empty / run / "summary.json").read_text("utf-8"))["samples"] == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("warning: not logged to W&B (")
    assert last.endswith(f"python scripts/push_to_wandb.py {run}")
    assert done.stderr.count("W&B") == 1
