"""A disk that gets full, a folder that cannot be written to, two processes on one folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from faulty_run import may_mount

from command import Commands, Done
from river_llm.errors import UserError
from river_llm.records import RunFolder
from sweep_files import finished_rows, runs, timeless

SMALL = (
    "exp=gsm_mini",
    "model.dtype=fp32",
    "engine=eager",
    "resume.force=true",
    "method=river",
    "criterion.tau=0.75",
    "limit=6",
    "exp.max_new_tokens=24",
    "fidelity.limit=2",
    "fidelity.tokens=8",
    "speedup.prompts=1",
    "speedup.tokens=8",
)

# A disk of a few pages, and a folder that root cannot write to either, take a mount, which some
# containers refuse to everybody. What needs none is below: RLIMIT_FSIZE, files that are folders,
# and in tests/test_records.py a user without rights.
mounts = pytest.mark.skipif(
    not may_mount(), reason="this kernel or container gives no user namespace to mount in"
)


class Starter:
    """Starts the same run with a fault, or without one."""

    def __init__(self, commands: Commands, model: Path, here: Path) -> None:
        self.commands = commands
        self.arguments = [*SMALL, f"model.path={model}"]
        self.here = here

    def __call__(self, results: Path, *more: str, **faults: Any) -> Done:
        arguments = [*self.arguments, *more, f"output.dir={results}"]
        return self.commands.run(
            "tests/faults/faulty_run.py", [json.dumps(faults), "run.py", *arguments], self.here
        )


@pytest.fixture
def start(commands: Commands, model: Path, tmp_path: Path) -> Starter:
    return Starter(commands, model, tmp_path)


@pytest.fixture(scope="module")
def undisturbed(commands: Commands, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the run without a fault; its river is packed from then on."""
    results = tmp_path_factory.mktemp("undisturbed") / "results"
    done = Starter(commands, model, results.parent)(results)
    assert done.status == 0, done.stderr
    return results


def check_refused(done: Done, words: Sequence[str]) -> None:
    """One line with these words, and no traceback."""
    assert done.status == 2, done.stderr
    assert len(done.errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.errors[0]


def check_readable(results: Path, undisturbed: Path) -> int:
    """Whatever is there can be read, and is the begin of an undisturbed run; how much it is."""
    whole = timeless(finished_rows(undisturbed))
    for name, path in runs(results).items():
        rows = [json.loads(row) for row in finished_rows(results)[name]]
        assert len(RunFolder(path).samples()) == len(rows)
        assert [row["token_ids"] for row in rows] == [
            row["token_ids"] for row in whole[name][: len(rows)]
        ]
    for path in results.rglob("*.json"):
        json.loads(path.read_text("utf-8"))
    # Nothing is left of files that were to take the place of others.
    assert not list(results.rglob("*.new"))
    return sum(map(len, finished_rows(results).values()))


# --- full ---------------------------------------------------------------------------------


def fill_up(start: Starter, undisturbed: Path, size: int) -> int:
    """A run on a disk of `size` bytes, then the rest of it on one with room.

    Returns:
        Samples that were finished when the disk was full.
    """
    small, kept = start.here / f"small{size}", start.here / f"kept{size}"
    small.mkdir()
    tmpfs = {"folder": str(small), "size": size, "kept": str(kept)}
    done = start(small / "results", tmpfs=tmpfs)
    check_refused(done, ["cannot write", str(small), "No space left on device"])
    finished = check_readable(kept, undisturbed)
    before = finished_rows(kept)
    assert start(kept / "results").status == 0
    after = finished_rows(kept)
    assert timeless(after) == timeless(finished_rows(undisturbed))
    assert all(after[name][: len(rows)] == rows for name, rows in before.items())
    return finished


def size_of(results: Path) -> int:
    """Bytes in whole pages, as a file system in memory counts them."""
    return sum(4096 * -(-p.stat().st_size // 4096) for p in results.rglob("*") if p.is_file())


@mounts
@pytest.mark.parametrize("share", [0.3, 0.85])
def test_a_full_disk_leaves_what_is_finished(start: Starter, undisturbed: Path, share: float):
    fill_up(start, undisturbed, 4096 * round(share * size_of(undisturbed) / 4096))


@mounts
@pytest.mark.soak
def test_a_disk_that_is_full_at_any_page(start: Starter, undisturbed: Path):
    finished = [
        fill_up(start, undisturbed, size) for size in range(4096, size_of(undisturbed), 4096)
    ]
    # Some get full among the samples, some behind them.
    assert len(set(finished)) >= 3


def test_a_file_that_may_grow_no_more(start: Starter, undisturbed: Path):
    # The limit falls into the middle of the fifth sample's line.
    (name,) = (name for name in runs(undisturbed) if name.startswith("river-"))
    lengths = [len(row) + 1 for row in finished_rows(undisturbed)[name]]
    limit = sum(lengths[:4]) + lengths[4] // 2
    results = start.here / "results"
    alone = ("fidelity.limit=0", "speedup.prompts=0")
    done = start(results, *alone, file_size=limit)
    check_refused(done, ["cannot write", "samples.jsonl", "File too large", "same command again"])
    (path,) = runs(results).values()
    assert (path / "samples.jsonl").stat().st_size == limit
    assert check_readable(results, undisturbed) == 4
    before = finished_rows(results)[name]
    assert start(results, *alone).status == 0
    assert finished_rows(results)[name][:4] == before
    assert timeless(finished_rows(results))[name] == timeless(finished_rows(undisturbed))[name]


def test_a_cache_without_room_is_told_and_left_empty(start: Starter, undisturbed: Path):
    # The packed river is larger than that.
    cache = start.here / "cache"
    done = start(
        start.here / "results", file_size=20_000, environment={"RIVER_LLM_CACHE": str(cache)}
    )
    check_refused(done, [str(cache), "File too large", "set RIVER_LLM_CACHE"])
    assert [path.suffix for path in cache.rglob("*") if path.is_file()] == [".lock"]


@pytest.mark.parametrize("write", ["append", "rewrite", "write_json", "write_steps"])
def test_every_file_of_a_run_that_cannot_be_written_is_named(
    undisturbed: Path, tmp_path: Path, write: str
):
    (name,) = (name for name in runs(undisturbed) if name.startswith("river-"))
    folder = RunFolder(shutil.copytree(runs(undisturbed)[name], tmp_path / "run"))
    records = folder.samples()
    # A folder stands where the file should be, which binds whoever runs this.
    file = {"write_json": "summary.json", "write_steps": "steps.parquet"}.get(
        write, "samples.jsonl"
    )
    (folder.path / file).unlink()
    (folder.path / file).mkdir()
    with pytest.raises(UserError) as caught:
        {
            "append": lambda: folder.append(records[0]),
            "rewrite": lambda: folder.rewrite(records),
            "write_json": lambda: folder.write_json(file, {}),
            "write_steps": lambda: folder.write_steps(records),
        }[write]()
    message = str(caught.value)
    assert message.startswith(f"cannot write {folder.path / file}: Is a directory; ")
    assert "\n" not in message
    assert not list(folder.path.glob("*.new")) + list(folder.path.glob(".*.new"))


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path: Path):
    folder = RunFolder(tmp_path)
    kept = ["samples.jsonl", "summary.json", ".lock", "mine.new"]
    for name in [*kept, ".summary.json.4711.new", ".samples.jsonl.12.new"]:
        (tmp_path / name).touch()
    with folder.locked():
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_full_standard_output_loses_no_result(start: Starter, undisturbed: Path):
    results = start.here / "results"
    done = start(results, stdout="/dev/full")
    assert done.status == 0, done.stderr
    (warning,) = (line for line in done.stderr.splitlines() if line.startswith("warning:"))
    for word in ("No space left on device", "summary.json"):
        assert word in warning
    assert "Traceback" not in done.stderr
    assert timeless(finished_rows(results)) == timeless(finished_rows(undisturbed))


@pytest.mark.parametrize("out", ["picture", "taken/picture"], ids=["no room", "below a file"])
def test_a_picture_that_cannot_be_written_leaves_the_one_before(
    start: Starter, undisturbed: Path, out: str
):
    script = "scripts/plot_positions.py"
    (run,) = (path for name, path in runs(undisturbed).items() if "river" in name)
    assert start.commands.run(script, [str(run), "--out", "picture"], start.here).status == 0
    (start.here / "taken").touch()
    before = {p.name: p.read_bytes() for p in start.here.iterdir()}
    faults = {"file_size": 4096} if out == "picture" else {}
    arguments = [json.dumps(faults), script, str(run), "--out", out]
    done = start.commands.run("tests/faults/faulty_run.py", arguments, start.here)
    check_refused(done, ["picture.png: File too large" if faults else "taken"])
    assert {p.name: p.read_bytes() for p in start.here.iterdir()} == before


# --- read-only ----------------------------------------------------------------------------


@mounts
@pytest.mark.parametrize("more", [[], ["-m"]], ids=["run", "sweep"])
def test_read_only_results_are_told_before_anything_is_generated(
    start: Starter, undisturbed: Path, more: list[str]
):
    results = Path(shutil.copytree(undisturbed, start.here / "results"))
    before = {p: p.read_bytes() for p in results.rglob("*") if p.is_file()}
    log = start.here / "log"
    done = start(results, "limit=8", *more, read_only=str(results), log=str(log))
    check_refused(done, ["cannot write the", str(results), "Read-only file system", "output.dir="])
    assert not log.exists()
    assert {p: p.read_bytes() for p in results.rglob("*") if p.is_file()} == before


@mounts
def test_a_read_only_cache_serves_what_it_holds(
    start: Starter, undisturbed: Path, offline: dict[str, str]
):
    cache = offline["RIVER_LLM_CACHE"]
    results = start.here / "results"
    assert start(results, "limit=1", read_only=cache).status == 0
    done = start(results, "quant=rtn_int4", "quant.group_size=32", read_only=cache)
    check_refused(done, [cache, "Read-only file system", "set RIVER_LLM_CACHE to a writable"])


# --- two at once --------------------------------------------------------------------------


def test_of_two_processes_at_once_one_runs_and_one_is_refused(start: Starter, undisturbed: Path):
    # Both pack the same river at the same time, too: the cache is new.
    place = {name: str(start.here / name) for name in ("stdout", "stderr", "status")}
    results = start.here / "results"
    first = start(
        results,
        "fidelity.limit=0",
        second=place,
        environment={"RIVER_LLM_CACHE": str(start.here / "cache")},
    )
    stdout, stderr, status = (Path(name).read_text("utf-8") for name in place.values())
    both = [first, Done(int(status), stdout, stderr)]
    refused, made = sorted(both, key=lambda done: done.status == 0)
    assert made.status == 0, made.stderr
    check_refused(refused, ["another process works in", str(results), "wait for it, or stop it"])
    assert sum("quantizing the river" in done.stderr for done in both) == 1
    assert refused.stdout == ""
    for name, path in runs(results).items():
        rows = timeless(finished_rows(results))[name]
        assert rows == timeless(finished_rows(undisturbed))[name]
        assert len(json.loads((path / "environment.json").read_text("utf-8"))) == 1
