"""The check of a bare machine; scripts/gpu_check.sh makes the environment and starts this.

    python scripts/gpu_check.py --budget-s 300           # on a GPU
    python scripts/gpu_check.py --cpu --budget-s 60      # a rehearsal on tiny shapes

Tests, then benchmarks, each in a process of its own, so that one that breaks or hangs costs the
others nothing. Everything is saved as it is done; cut short by SIGTERM or Ctrl-C it prints what
there is. Writes environment.json, report.md, summary.json, logs/ and bench/ to
<out>/<device>-<time>/; the last line of standard output is the summary. Status 1: a part failed,
is missing or was left out. What the figures mean: docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from river_llm.analysis.bench_files import read_bench
from river_llm.analysis.gpu_report import Outcome, report, summary
from river_llm.benchmark.clock import Clock
from river_llm.benchmark.plan import CPU, CUDA, LEAST_SECONDS, Part, Plan, shares
from river_llm.entry_point import end
from river_llm.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
OVERHEAD = 12.0
"""Seconds of a benchmark that its own clock does not see: importing, saving."""


class CutShort(BaseException):
    """Somebody ended the check."""


class Check:
    """One check.

    Args:
        plan: what runs.
        out: gets a folder for this check.
        seconds: that all of it may take.
    """

    def __init__(self, plan: Plan, out: Path, seconds: float) -> None:
        self._plan = plan
        self._clock = Clock(seconds)
        self._outcomes: list[Outcome] = []
        self._benches: dict[str, Any] = {}
        self._environment = _machine(plan.device)
        name = self._environment.get("device_name") or plan.device
        label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        self.folder = out / f"{label}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        (self.folder / "logs").mkdir(parents=True)
        self._write("environment.json", json.dumps(self._environment, indent=2) + "\n")

    def run(self) -> int:
        """Runs all parts and prints the report, as far as it came; returns the exit status."""
        for caught in (signal.SIGTERM, signal.SIGINT):
            signal.signal(caught, _cut_short)
        try:
            self._tests()
            for number, part in enumerate(self._plan.parts):
                self._bench(part, shares(self._plan.parts[number:], self._clock.left)[0])
            self._pictures()
        except CutShort:
            self._outcomes.append(Outcome("the check", "cut short", note="partial results"))
        self._save()
        print((self.folder / "report.md").read_text(encoding="utf-8"))
        print(f"{self.folder}: environment.json, report.md, summary.json, bench/, logs/")
        line = summary(self._environment, self._outcomes, self._benches)
        print(json.dumps(line, allow_nan=False), flush=True)
        return int(any(outcome.status != "done" for outcome in self._outcomes))

    def _tests(self) -> None:
        """The tests on this device; what is not there is said."""
        files = [name for name in self._plan.tests if name.startswith("tests/")]
        there = [name for name in files if (ROOT / name).exists()]
        for name in sorted(set(files) - set(there)):
            self._note(Outcome(name, "missing", note="no such tests in this checkout"))
        chosen = [name for name in self._plan.tests if name not in files]
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *there, *chosen]
        status, seconds = self._child("tests", command, self._plan.tests_share * self._clock.left)
        last = (self._log("tests").read_text(encoding="utf-8").strip().splitlines() or [""])[-1]
        self._note(Outcome("tests", _word(status), seconds, last.strip("= ")))

    def _bench(self, part: Part, seconds: float) -> None:
        """One benchmark; its figures are read from where it saves them, however it ended."""
        if seconds < LEAST_SECONDS:
            self._note(Outcome(part.name, "dropped", note=f"{seconds:.0f} s were left for it"))
            return
        before = set(self._saved())
        own = max(seconds - OVERHEAD, seconds / 2)
        command = ["scripts/bench_decode.py", *self._plan.command(part, str(self.folder), own)]
        try:
            status, took = self._child(part.name, command, seconds + OVERHEAD)
        finally:
            # However it ended: it saves what it has after each round.
            for path in set(self._saved()) - before:
                self._benches[part.name] = read_bench(path)
        lines = self._log(part.name).read_text(encoding="utf-8").splitlines()
        told = [line for line in lines if line.startswith(("error:", "river_llm: context"))]
        self._note(Outcome(part.name, _word(status), took, "; ".join(told)))

    def _pictures(self) -> None:
        """Draws what a benchmark that was ended has not drawn itself."""
        files = [str(path) for path in self._saved() if not path.with_name("decode.png").exists()]
        if files:
            status, took = self._child("pictures", ["scripts/plot_bench.py", *files], 30.0)
            self._note(Outcome("pictures", _word(status), took))

    def _saved(self) -> list[Path]:
        return list(self.folder.glob("bench/*/bench.json"))

    def _child(self, name: str, arguments: list[str], seconds: float) -> tuple[int | None, float]:
        """Runs Python in a process of its own, which ends with this one or when time is up.

        Returns:
            Its exit status, None: it was ended; and the seconds that it took.
        """
        print(f"{name}: at most {seconds:.0f} s", file=sys.stderr, flush=True)
        start = time.monotonic()
        with self._log(name).open("w", encoding="utf-8") as log:
            child = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT / "src"),
                    "RIVER_LLM_TEST_DEVICE": self._plan.device,
                },
            )
            status = None
            try:
                status = child.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _end(child)
        return status, time.monotonic() - start

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _note(self, outcome: Outcome) -> None:
        """Says what became of a part, and saves all that is there."""
        print(f"{outcome.part}: {outcome.status} {outcome.note}", file=sys.stderr, flush=True)
        self._outcomes.append(outcome)
        self._save()

    def _save(self) -> None:
        line = summary(self._environment, self._outcomes, self._benches)
        self._write("summary.json", json.dumps(line, indent=2, allow_nan=False) + "\n")
        text = report(self._environment, self._outcomes, self._benches)
        self._write("report.md", text)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")


def _machine(device: str) -> dict[str, Any]:
    """What :mod:`river_llm.benchmark.device` tells of this machine.

    Raises:
        UserError: it cannot, e.g. since there is no such device.
    """
    done = subprocess.run(
        [sys.executable, "-m", "river_llm.benchmark.device", device],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UserError(f"device {device} cannot be asked what it is: {reason}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a process that may have ended: asked first, then killed."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _word(status: int | None) -> str:
    if status is None:
        return "cut short"
    return "failed" if status else "done"


def _cut_short(number: int, frame: FrameType | None) -> None:
    # Once is enough: what is there must still be printed.
    for again in (signal.SIGTERM, signal.SIGINT):
        signal.signal(again, signal.SIG_IGN)
    raise CutShort


def main() -> int:
    """Runs the check; status 2 where it cannot begin."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="tiny shapes, where there is no GPU")
    parser.add_argument("--budget-s", type=float, default=300.0, help="seconds for all of it")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu", help="gets a folder")
    arguments = parser.parse_args()
    check = Check(CPU if arguments.cpu else CUDA, arguments.out.resolve(), arguments.budget_s)
    return check.run()


if __name__ == "__main__":
    end(main)
