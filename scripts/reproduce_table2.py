"""The paper's main table: `make reproduce-table2 PROFILE=paper|tonight|embedded`.

    python scripts/reproduce_table2.py tonight
    python scripts/reproduce_table2.py embedded limit=4
    python scripts/reproduce_table2.py paper model=llama3.1_8b data.path=/data

Checks what the profile needs, estimates the hours of what is not finished, runs the sweep, and
writes results/table2/table2.{md,csv,tex} from whatever cells are finished, also when it was
stopped. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from river_llm.composition import load_config
from river_llm.entry_point import INTERRUPTED, end
from river_llm.errors import UserError
from river_llm.sweeps.folder import PLAN, SweepFolder
from river_llm.sweeps.overrides import expand
from river_llm.sweeps.plan import parse_request
from river_llm.sweeps.preflight import lacking
from river_llm.sweeps.profiles import load_profile, profile_names

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Runs a profile; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", help="; ".join(_described(name) for name in profile_names()))
    parser.add_argument("overrides", nargs="*", help="as for run.py; they win over the profile")
    parser.add_argument("--margin", default="1.0", help="of equal accuracy, in points")
    parser.add_argument("--out", default="results/table2/table2", help="files without suffix")
    arguments = parser.parse_intermixed_args()
    return reproduce(arguments.profile, arguments.overrides, arguments.margin, arguments.out)


def reproduce(name: str, given: Sequence[str], margin: str, out: str) -> int:
    """Checks, estimates, runs and tabulates; returns the exit status.

    Raises:
        UserError: an unknown profile, overrides that do not compose, or something missing.
    """
    profile = load_profile(name)
    overrides = profile.overrides(given)
    request = parse_request(overrides)
    folder = request.folder.path
    if not _finished(request.folder):
        # Without a network the libraries try for most of a minute before they give up.
        print(f"{name}: looking for GPU, checkpoints and test sets", flush=True)
        configs = [load_config(cell) for cell in expand(request.grid)]
        problems = lacking(configs, needs_gpu=profile.needs_gpu)
        if problems:
            raise UserError(_refusal(name, problems))
        print(f"{name}: {profile.about}; estimating from a few steps of each cell", flush=True)
        if _run("run.py", ["-m", *overrides, "dry_run=true"]) == INTERRUPTED:
            return INTERRUPTED
    status = _run("run.py", ["-m", *overrides])
    if folder.exists():
        written = _run("scripts/table2.py", [str(folder), "--margin", margin, "--out", out])
        status = status or written
    return status


def _refusal(name: str, problems: Sequence[str]) -> str:
    others = [_described(other) for other in profile_names() if other != name]
    listed = "".join(f"\n  - {problem}" for problem in problems)
    return f"profile {name} cannot run here:{listed}\nOther profiles: {'; '.join(others)}"


def _described(name: str) -> str:
    return f"{name} ({load_profile(name).about})"


def _finished(folder: SweepFolder) -> bool:
    """Whether every cell of the sweep has ended well before."""
    # A start that was killed early leaves a folder without a plan.
    if not (folder.path / PLAN).exists():
        return False
    return all(folder.outcome(cell.key).status == "finished" for cell in folder.cells())


def _run(script: str, arguments: Sequence[str]) -> int:
    """Runs a command of the project in a process of its own; returns its exit status."""
    print(f"$ python {script} {' '.join(arguments)}", flush=True)
    command = [sys.executable, str(ROOT / script), *arguments]
    with subprocess.Popen(command) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            # The terminal has told the child too; it ends by itself, and the table is still made.
            child.wait()
            return INTERRUPTED


if __name__ == "__main__":
    end(main)
