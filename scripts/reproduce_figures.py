"""The paper's figures on a model of your choice, in one go: `make reproduce-figures`.

    python scripts/reproduce_figures.py
    python scripts/reproduce_figures.py model=llama3.2_1b exp=gsm8k --samples 16
    python scripts/reproduce_figures.py --draw-only

Runs sweep=figures, analyze_depth, analyze_kv and measure_prefill, and draws what they leave to
<output.dir>/figures/<exp>-<model>/: exit depths (Figure 2), time at equal score (Figure 3), KV
similarity (Figure 7) and time to first token. What is there with the same settings from the same
commit is not made again, so the same command goes on where it stopped. A part that fails is named
at the end, and the others are drawn all the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from river_llm.analysis.figures import write_figure
from river_llm.analysis.paper_figures import (
    draw_equal_score,
    draw_exit_depths,
    draw_kv,
    draw_prefill,
)
from river_llm.composition import load_config
from river_llm.entry_point import end
from river_llm.errors import UserError
from river_llm.sweeps.overrides import value_of
from river_llm.sweeps.plan import parse_request

ROOT = Path(__file__).resolve().parents[1]
RECIPE = "sweep=figures"
DEPTHS = "0,1,3,L/2"  # exit depths of the river runs whose KV entries are compared
ROUNDS = 5  # of the times to first token


@dataclass(frozen=True)
class Part:
    """A command that leaves a record.

    Attributes:
        name: for messages.
        command: script and arguments.
        record: its summary.json with `commit` and `made_by`; None: the command knows itself what
            is there already.
        made_by: what the record says if it was made with these settings.
    """

    name: str
    command: tuple[str, ...]
    record: Path | None = None
    made_by: dict[str, Any] | None = None


@dataclass(frozen=True)
class Folders:
    """Where the records of a model and task lie, and where the pictures go."""

    sweep: Path
    depths: Path
    kv: Path
    prefill: Path
    figures: Path


def main() -> int:
    """Makes what is missing and draws what is there; status 2 where a part failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help="as for run.py: model=... exp=... data.path=")
    parser.add_argument("--samples", type=int, default=8, help="texts of each part (default 8)")
    parser.add_argument("--tokens", type=int, default=64, help="of each text (default 64)")
    parser.add_argument("--lengths", default="32,64,128,256,512,1024", help="of prompts, tokens")
    parser.add_argument("--draw-only", action="store_true", help="only draw what is there")
    arguments = parser.parse_intermixed_args()
    sized = [
        *arguments.overrides,
        f"fidelity.limit={arguments.samples}",
        f"fidelity.tokens={arguments.tokens}",
        *_budget(arguments.overrides, arguments.tokens),
    ]
    folders = folders_of(sized)
    failed = []
    if not arguments.draw_only:
        for part in parts(sized, folders, arguments):
            if not run_part(part):
                failed.append(part.name)
    failed += draw(folders)
    if failed:
        print(
            f"error: {len(failed)} parts failed: {', '.join(failed)}; the same command makes them "
            "again and keeps what is there",
            file=sys.stderr,
        )
    return 2 if failed else 0


def _budget(overrides: Sequence[str], tokens: int) -> list[str]:
    """Texts as long as what is scored of them, unless the command line wants longer ones."""
    given = value_of(overrides, "exp.max_new_tokens") is not None
    return [] if given else [f"exp.max_new_tokens={tokens}"]


def folders_of(overrides: Sequence[str]) -> Folders:
    """The folders that a command line's records have.

    Raises:
        UserError: overrides that do not compose.
    """
    config = load_config(overrides)
    output, name = Path(config.output.dir), f"{config.exp.name}-{config.model.name}"
    return Folders(
        sweep=parse_request([RECIPE, *overrides]).folder.path,
        depths=output / "analysis" / "oracle_depth" / name,
        kv=output / "analysis" / "kv" / name,
        prefill=output / "analysis" / "prefill" / name,
        figures=output / "figures" / name,
    )


def parts(overrides: list[str], folders: Folders, arguments: argparse.Namespace) -> list[Part]:
    """What there is to make, in order."""
    limited = [*arguments.overrides, f"limit={arguments.samples}"]
    tokens = {"overrides": limited, "tokens": arguments.tokens}
    words = [*limited, "--tokens", str(arguments.tokens)]
    return [
        Part("sweep", ("run.py", "-m", RECIPE, *overrides)),
        Part(
            "oracle depth",
            ("scripts/analyze_depth.py", *words),
            folders.depths / "summary.json",
            tokens,
        ),
        Part(
            "kv similarity",
            ("scripts/analyze_kv.py", *words, "--depths", DEPTHS),
            folders.kv / "summary.json",
            {**tokens, "depths": DEPTHS},
        ),
        Part(
            "time to first token",
            (
                "scripts/measure_prefill.py",
                *arguments.overrides,
                "--lengths",
                arguments.lengths,
                "--rounds",
                str(ROUNDS),
            ),
            folders.prefill / "summary.json",
            {"overrides": arguments.overrides, "lengths": arguments.lengths, "rounds": ROUNDS},
        ),
    ]


def run_part(part: Part) -> bool:
    """Makes a record unless it is there; False where that failed.

    In a process of its own: what a model holds is given back, and a crash ends one part alone.
    """
    if is_made(part):
        print(f"{part.name}: there already", file=sys.stderr, flush=True)
        return True
    started = time.perf_counter()
    script, *words = part.command
    done = subprocess.run([sys.executable, str(ROOT / script), *words], stdout=sys.stderr)
    seconds = time.perf_counter() - started
    said = "done" if done.returncode == 0 else f"FAILED with status {done.returncode}"
    print(f"{part.name}: {said} after {seconds:.0f} s", file=sys.stderr, flush=True)
    return done.returncode == 0


def is_made(part: Part) -> bool:
    """Whether the record is there, with these settings and from this commit."""
    if part.record is None or not part.record.exists():
        return False
    from river_llm.evaluation.run import code_mark

    try:
        summary = json.loads(part.record.read_text(encoding="utf-8"))
    except ValueError:
        return False
    same: bool = summary.get("made_by") == part.made_by
    return same and summary.get("commit") == code_mark()


def draw(folders: Folders) -> list[str]:
    """Draws every figure whose records are there; names those that cannot be drawn."""
    figures: dict[str, Callable[[], Figure]] = {
        "fig2_exit_depths": lambda: draw_exit_depths(folders.sweep, folders.depths),
        "fig3_equal_score": lambda: draw_equal_score(folders.sweep),
        "fig7_kv_similarity": lambda: draw_kv(folders.kv),
        "time_to_first_token": lambda: draw_prefill(folders.prefill),
    }
    failed = []
    for name, make in figures.items():
        try:
            written = write_figure(make(), folders.figures / name)
        except UserError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            failed.append(name)
        else:
            print(*written, sep="\n", flush=True)
    return failed


if __name__ == "__main__":
    end(main, stopped="stopped; the same command goes on from what is finished")
