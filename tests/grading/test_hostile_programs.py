"""Hostile programs at every level that claims to stop them, and what they leave behind: nothing."""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hostile import EVERY, FORGED_VERDICT, INTRUDER, PROGRAMS, RIGHT, SURVIVOR, Hostile

from river_llm.grading.sandbox import fault_of, run_program
from river_llm.grading.sandbox_levels import CONTAINING

TEST = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 9\n"
PAGE = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text(encoding="utf-8")
CASES = [(level, each) for each in PROGRAMS for level in each.levels]
NUMBERS = itertools.count(1)


def require(level: str) -> None:
    if level in CONTAINING and (reason := fault_of(level)) is not None:
        pytest.skip(f"the sandbox level {level} does not work here: {reason}")


def is_pipe(path: Path) -> bool:
    return path.exists() and path.is_fifo()


@dataclass
class Place:
    """What a program may find outside, and what it must not change there."""

    folder: Path
    homely: Path
    mark: str
    listeners: list[socket.socket]
    handle: int

    def fill(self, source: str) -> str:
        given = {
            "secret": self.folder / "secret",
            "other": self.folder / "river-llm-other",
            "traces": self.folder / "traces",
            "homely": self.homely,
            "home": Path.home(),
            "mark": self.mark,
            "port": self.listeners[0].getsockname()[1],
            "harness": os.getpid(),
            "environment": os.environ["RIVER_LLM_HOSTILE"],
            "inode": os.fstat(self.handle).st_ino,
            # This process's own, which an attack would break for the tests behind it.
            "pipes": [
                os.readlink(path) for path in Path("/proc/self/fd").iterdir() if is_pipe(path)
            ],
        }
        for key, value in given.items():
            source = source.replace("{" + key + "}", str(value))
        return source

    def assert_untouched(self) -> None:
        left = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))
        assert left == ["river-llm-other", "river-llm-other/answer", "secret", "traces"]
        assert (self.folder / "secret").read_text() == "swordfish"
        assert (self.folder / "river-llm-other" / "answer").read_text() == "42"
        for folder in ("/", "/usr", "/etc", "/dev", "/dev/shm", "/var/tmp", "/tmp", Path.home()):
            assert not (Path(folder) / self.mark).exists()
        for listener in self.listeners:
            with pytest.raises(BlockingIOError):
                listener.accept()

    def processes(self) -> list[str]:
        """Command lines of processes that bear the mark, which is in the worker's too."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if self.mark in line:
                found.append(line)
        return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    # Of digits, since the time limit bears it into the command line of the program's process.
    mark = f"{os.getpid() % 100_000:05d}{next(NUMBERS):03d}7"
    monkeypatch.setenv("RIVER_LLM_HOSTILE", f"value{mark}")
    (tmp_path / "traces").mkdir()
    (tmp_path / "river-llm-other").mkdir()
    (tmp_path / "river-llm-other" / "answer").write_text("42")
    (tmp_path / "secret").write_text("swordfish")
    with (
        tempfile.NamedTemporaryFile(dir=Path.home(), prefix=".river-llm-test-") as homely,
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.socket(socket.AF_UNIX) as abstract,
        open(tmp_path / "secret", "rb") as handle,
    ):
        abstract.bind(f"\0{mark}")
        abstract.listen()
        os.set_inheritable(handle.fileno(), True)
        for listener in (port, abstract):
            listener.setblocking(False)
        yield Place(tmp_path, Path(homely.name), mark, [port, abstract], handle.fileno())


def run(program: str, level: str, timeout_s: float, mark: str = "") -> str:
    limit = float(f"{timeout_s + 0.0001:.4f}{mark}") if mark else timeout_s
    return run_program(program, TEST, "square", limit, level=level).status


@pytest.mark.parametrize(
    ("level", "hostile"), CASES, ids=[f"{level}-{each.name}" for level, each in CASES]
)
def test_hostile_program_fails_and_leaves_no_trace(
    level: str, hostile: Hostile, place: Place
) -> None:
    require(level)
    status = run(place.fill(hostile.source), level, hostile.timeout_s, place.mark)
    assert status in ("failed", "timeout")
    assert place.processes() == []
    place.assert_untouched()
    assert run(RIGHT, level, 20.0) == "passed"


def test_the_mark_finds_a_process_of_a_program(place: Place) -> None:
    # Else no survivor would ever be found.
    seen: list[bool] = []
    runner = threading.Thread(
        target=run, args=("import time\ntime.sleep(2)\n", "process", 3.0, place.mark)
    )
    runner.start()
    while runner.is_alive() and not seen:
        if place.processes():
            seen.append(True)
    runner.join()
    assert seen


BITES = [
    "reading a file of the user's",
    "reading the user's home",
    "reading another sample's folder",
    "connection to a listener",
    "connection to an abstract socket",
]


@pytest.mark.parametrize("hostile", [each for each in INTRUDER if each.name in BITES])
def test_intruder_gets_through_where_nothing_stops_it(hostile: Hostile, place: Place) -> None:
    # These do no harm, and show that the programs above fail for the containment alone.
    assert run(place.fill(hostile.source), "process", hostile.timeout_s) == "passed"


def test_the_set_is_large_and_its_names_are_unique() -> None:
    names = [each.name for each in PROGRAMS]
    assert len(names) == len(set(names)) >= 30
    assert all(each.levels == EVERY for each in FORGED_VERDICT)
    assert SURVIVOR


def test_page_has_every_program_with_the_levels_that_stop_it() -> None:
    for each in PROGRAMS:
        marks = " | ".join("stopped" if level in each.levels else "no" for level in EVERY)
        assert f"| {each.name} | {marks} |" in PAGE
