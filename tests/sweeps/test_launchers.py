"""Hydra's launchers, by real commands: cells in worker processes, and workers that die."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from command import ROOT, Commands, Done
from river_llm.errors import UserError
from river_llm.sweeps.command import sweep
from river_llm.sweeps.launchers import check_hydra
from sweep_files import cells, finished_rows, runs, starts, statuses, sweep_path
from tiny_folder import SMALL

Starter = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(offline: dict[str, str], model: Path, empty: Path) -> Starter:
    """Starts a sweep as a command of its own: its workers import what they need themselves."""

    def started(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "run.py"), "-m", *SMALL, f"model.path={model}", *arguments],
            cwd=empty,
            env={**os.environ, **offline},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return started


def ended(process: subprocess.Popen[str]) -> Done:
    stdout, stderr = process.communicate(timeout=150)
    return Done(process.returncode, stdout, stderr)


# Both measure fidelity, so that both complete the no_exit run at the same time.
CELLS = ("limit=1", "fidelity.limit=1", "speedup.prompts=0", "method=no_exit,full_quant")


@pytest.mark.parametrize(
    "launcher",
    [
        ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
        ["hydra/launcher=submitit_local"],
    ],
    ids=["joblib", "submitit_local"],
)
def test_cells_run_in_workers_side_by_side(start: Starter, empty: Path, launcher: list[str]):
    done = ended(start(*CELLS, *launcher))
    assert done.status == 0, done.stderr
    assert done.errors == []
    results = empty / "results"
    assert statuses(results) == ["finished"] * 2
    for cell, method in zip(cells(results), ("no_exit", "full_quant"), strict=True):
        path = empty / cell["run_dir"]
        assert path.name.startswith(f"{method}-")
        assert (path / "summary.json").exists()
        assert starts(path) == 1
    # Launchers leave files of their own with the sweep and nowhere else.
    assert [path.name for path in empty.iterdir()] == ["results"]
    assert {path.name for path in results.iterdir()} == {"runs", "sweeps"}
    of_submitit = sweep_path(results) / ".submitit"
    assert of_submitit.exists() == ("submitit" in launcher[0])


def test_without_slurm_the_cells_are_named_with_the_cause(
    commands: Commands, model: Path, empty: Path
):
    arguments = ["-m", *SMALL, *CELLS, f"model.path={model}", "hydra/launcher=submitit_slurm"]
    done = commands.run("run.py", arguments, empty)
    assert done.status == 2
    assert "Traceback" not in done.stderr
    (cause,) = (line for line in done.stderr.splitlines() if "the launcher stopped" in line)
    assert "slurm" in cause
    assert done.errors == [
        "error: cell [1/2] method=no_exit failed: it was not run to its end",
        "error: cell [2/2] method=full_quant failed: it was not run to its end",
    ]
    assert statuses(empty / "results") == ["waiting"] * 2


def holder(path: Path) -> int:
    """The process that has a file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            found = link.resolve() == path.resolve()
        except OSError:
            continue
        if found:
            return int(link.parts[2])
    raise AssertionError(f"nobody has {path} open")


def test_a_worker_that_is_killed_leaves_its_cell_to_the_next_start(
    start: Starter, commands: Commands, model: Path, empty: Path
):
    sizes = ["limit=3", "exp.max_new_tokens=1000", "fidelity.limit=0", "speedup.prompts=0"]
    arguments = [*sizes, "method=no_exit,full_quant"]
    process = start(*arguments, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    results = empty / "results"
    for _ in range(6000):
        written = [path for path in runs(results).values() if b"\n" in rows_of(path)]
        if written or process.poll() is not None:
            break
        time.sleep(0.01)
    os.kill(holder(written[0] / ".lock"), signal.SIGKILL)
    done = ended(process)
    assert done.status == 2
    (cause,) = (line for line in done.stderr.splitlines() if "the launcher stopped" in line)
    assert "SIGKILL" in cause
    left = [cell for cell in cells(results) if cell["status"] == "waiting"]
    method = written[0].name.partition("-")[0]
    assert f"method={method}" in [o for cell in left for o in cell["overrides"]]
    assert len(done.errors) == len(left)
    assert all(line.endswith("failed: it was not run to its end") for line in done.errors)
    kept = finished_rows(results)
    again = commands.run(
        "run.py", ["-m", *SMALL, f"model.path={model}", *arguments, "resume.force=true"], empty
    )
    assert again.status == 0, again.stderr
    assert statuses(results) == ["finished"] * 2
    rows = finished_rows(results)
    assert all(rows[name][: len(old)] == old for name, old in kept.items())
    assert {len(lines) for lines in rows.values()} == {3}


def rows_of(path: Path) -> bytes:
    return (path / "samples.jsonl").read_bytes()


# --- a launcher that is not there ---------------------------------------------------------


@pytest.mark.parametrize(
    ("launcher", "package"),
    [
        ("joblib", "hydra-joblib-launcher"),
        ("submitit_local", "hydra-submitit-launcher"),
        ("submitit_slurm", "hydra-submitit-launcher"),
    ],
)
def test_a_launcher_that_is_not_installed_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, launcher: str, package: str, tmp_path: Path
):
    asked = []

    def not_there(name: str) -> None:
        asked.append(name)

    monkeypatch.setattr(importlib.util, "find_spec", not_there)

    def launch(arguments: object) -> None:
        raise AssertionError("something was launched")

    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        sweep(["method=no_exit,mask", f"hydra/launcher={launcher}"], launch)
    message = str(caught.value)
    assert "\n" not in message
    for word in (f"hydra/launcher={launcher}", package, "pip install", "[launchers]"):
        assert word in message
    assert asked == [f"hydra_plugins.{package.replace('-', '_')}"]
    assert list(tmp_path.iterdir()) == []


def test_the_names_of_the_packages_are_right():
    # Else an installed launcher would be taken for a missing one.
    for name in ("joblib", "submitit_local", "submitit_slurm", "basic"):
        check_hydra([f"hydra/launcher={name}"])
