"""Runs and sweeps that are ended at random moments and started again, by seeded chance.

What else stands here beside tests/test_resume.py and tests/sweeps/test_killed_sweep.py, which end
them at chosen moments: while a model is loaded, a river packed, a file replaced, a measurement
made. After each ending half a line may be left behind, as a system that fails leaves it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from command import Commands, Done
from river_llm.records import RunFolder
from sweep_files import finished_rows, runs, timeless

MODEL = ("exp=gsm_mini", "model.dtype=fp32", "engine=eager", "resume.force=true")
RUN = (
    *MODEL,
    "method=river",
    "criterion.tau=0.75",
    "limit=8",
    "exp.max_new_tokens=100",
    "fidelity.limit=4",
    "fidelity.tokens=16",
    "speedup.prompts=2",
    "speedup.tokens=16",
)
SWEEP = (
    "-m",
    *MODEL,
    "method=no_exit,river,mask",
    "criterion.tau=0.75",
    "limit=4",
    "exp.max_new_tokens=50",
    "fidelity.limit=2",
    "fidelity.tokens=16",
    "speedup.prompts=0",
)
SEEDS = {"run": (RUN, 71), "sweep": (SWEEP, 72)}


@dataclass
class Ended:
    """One process.

    Attributes:
        done: what it came to; status below 0 or 130: it was ended.
        begun: texts that it began.
        grown: samples that it finished.
    """

    done: Done
    begun: int
    grown: int


@dataclass
class Starter:
    """Starts one command again and again, over one folder of results and one cache.

    Attributes:
        processes: those of the present folder.
        rows: finished samples of the present folder, by run.
    """

    commands: Commands
    arguments: Sequence[str]
    place: Path
    processes: list[Ended] = field(default_factory=list)
    rows: dict[str, list[bytes]] = field(default_factory=dict)
    rounds: int = 0

    @property
    def results(self) -> Path:
        return self.place / f"{self.rounds}" / "results"

    def anew(self) -> None:
        """Another folder, and a cache in which nothing is packed yet."""
        self.rounds += 1
        self.processes, self.rows = [], {}
        self.results.parent.mkdir()

    def __call__(self, after: float | None = None, ending: int = signal.SIGKILL) -> Ended:
        """One start, ended after some seconds; checks what it did to what was there."""
        log = self.results.parent / f"{len(self.processes)}.log"
        log.touch()
        faults = {
            "log": str(log),
            "environment": {"RIVER_LLM_CACHE": str(self.results.parent / "cache")},
        }
        process = self.commands.start(
            "tests/faults/faulty_run.py",
            [json.dumps(faults), "run.py", *self.arguments],
            self.results.parent,
        )
        if after is not None:
            time.sleep(after)
            # It may have ended by itself meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, ending)
        done = self.commands.finish()
        before, self.rows = self.rows, finished_rows(self.results)
        for name, rows in before.items():
            assert self.rows[name][: len(rows)] == rows, f"{name} was changed"
        grown = sum(map(len, self.rows.values())) - sum(map(len, before.values()))
        ended = Ended(done, len(log.read_text("ascii").splitlines()), grown)
        self.processes.append(ended)
        self._check_readable()
        return ended

    def _check_readable(self) -> None:
        for path in runs(self.results).values():
            records = RunFolder(path).samples()
            assert [record.index for record in records] == list(range(len(records)))
        for path in self.results.rglob("*.json"):
            json.loads(path.read_text("utf-8"))

    def leave_half_a_line(self, chance: random.Random) -> None:
        """What a system that failed in the middle of a write would leave."""
        for name, path in runs(self.results).items():
            if chance.random() < 0.5:
                line = self.rows[name][-1] if self.rows[name] else b'{"id": "gsm_mini/01"'
                with (path / "samples.jsonl").open("ab") as file:
                    file.write(line[: chance.randrange(1, len(line))])


def end_often(
    starter: Starter, moments: int, seed: int, ending: int, check: Callable[[Ended], None]
) -> int:
    """Ends a command at random moments until that has happened so often, and lets it finish.

    Where a start is through before its moment has come, a new folder is begun.

    Returns:
        How many of the endings fell between the first finished sample and the last.
    """
    chance = random.Random(seed)
    starter.anew()
    start = time.perf_counter()
    undisturbed = starter()
    seconds = time.perf_counter() - start
    assert undisturbed.done.status == 0, undisturbed.done.stderr
    expected, total = starter.results, undisturbed.grown
    assert undisturbed.begun == total
    starter.anew()
    ended, inside = 0, 0
    while ended < moments:
        last = starter(chance.uniform(0.1, 1) * seconds, ending)
        if last.done.status == 0:
            check_finished(starter, expected, total)
            starter.anew()
            continue
        ended += 1
        check(last)
        # At most the text that was under way was lost.
        assert last.begun - last.grown in (0, 1)
        inside += 0 < sum(map(len, starter.rows.values())) < total
        starter.leave_half_a_line(chance)
    starter()
    check_finished(starter, expected, total)
    return inside


def check_finished(starter: Starter, expected: Path, total: int) -> None:
    """The last start made what was missing, and all there is equals an undisturbed command."""
    last = starter.processes[-1]
    assert last.done.status == 0, last.done.stderr
    assert last.begun == last.grown == total - sum(p.grown for p in starter.processes[:-1])
    assert timeless(starter.rows) == timeless(finished_rows(expected))
    undisturbed = runs(expected)
    for name, path in runs(starter.results).items():
        for file in ("forced_scores.json", "reference_scores.json"):
            assert content(path / file) == content(undisturbed[name] / file)
        assert figures(path) == figures(undisturbed[name])
        assert not list(path.glob(".*.new"))


def content(path: Path) -> Any:
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def figures(path: Path) -> Any:
    """What a summary says of the texts, time aside."""
    summary = content(path / "summary.json")
    kept = ("samples", "settings", "accuracy", "cut_share", "exit_depth", "fidelity")
    return summary and {key: summary[key] for key in kept}


def killed(process: Ended) -> None:
    assert process.done.status == -signal.SIGKILL


def interrupted(process: Ended) -> None:
    assert process.done.status == 130, process.done.stderr
    told = "stopped; the same command goes on from the last finished sample"
    assert process.done.stderr.splitlines().count(told) == 1
    assert "Traceback" not in process.done.stderr


@pytest.fixture
def starter(
    request: pytest.FixtureRequest, commands: Commands, model: Path, tmp_path: Path
) -> Starter:
    arguments, _ = SEEDS[request.param]
    return Starter(commands, [*arguments, f"model.path={model}"], tmp_path)


@pytest.mark.parametrize("starter", SEEDS, indirect=True, ids=list(SEEDS))
def test_killed_at_a_few_moments(starter: Starter, request: pytest.FixtureRequest):
    _, seed = SEEDS[request.node.callspec.id]
    end_often(starter, 3, seed, signal.SIGKILL, killed)


@pytest.mark.parametrize("starter", SEEDS, indirect=True, ids=list(SEEDS))
def test_interrupted_at_a_moment(starter: Starter, request: pytest.FixtureRequest):
    _, seed = SEEDS[request.node.callspec.id]
    end_often(starter, 1, seed + 2, signal.SIGINT, interrupted)


@pytest.mark.soak
@pytest.mark.parametrize("starter", SEEDS, indirect=True, ids=list(SEEDS))
def test_killed_at_20_moments(starter: Starter, request: pytest.FixtureRequest):
    _, seed = SEEDS[request.node.callspec.id]
    inside = end_often(starter, 20, seed + 4, signal.SIGKILL, killed)
    assert inside >= 5


@pytest.mark.soak
@pytest.mark.parametrize("starter", SEEDS, indirect=True, ids=list(SEEDS))
def test_interrupted_at_10_moments(starter: Starter, request: pytest.FixtureRequest):
    _, seed = SEEDS[request.node.callspec.id]
    assert end_often(starter, 10, seed + 6, signal.SIGINT, interrupted) >= 2
