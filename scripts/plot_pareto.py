"""Picture and tables of a sweep, from saved records alone.

python scripts/plot_pareto.py results/sweeps/pareto-*
python scripts/plot_pareto.py results/runs/gsm8k/smollm2_135m/* --y accuracy --out docs/pareto

Writes STEM.png, .svg and .pdf (one picture for each task and model), STEM.md with both tables,
STEM.csv with all operating points and STEM-target.csv with what each method reaches at the target.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from river_llm.analysis.figures import write_figure
from river_llm.analysis.pareto_marks import MEASURES
from river_llm.analysis.pareto_report import pareto_figures, pareto_tables
from river_llm.analysis.points import check_comparable
from river_llm.analysis.saved import SavedRuns, saved_runs
from river_llm.analysis.tables import to_csv
from river_llm.entry_point import end
from river_llm.records import write_text


def main() -> int:
    """Draws the runs that the command line names; those without a summary are said."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, help="folders of runs or of a sweep")
    parser.add_argument("--y", choices=list(MEASURES), default="agreement", help="the y axis")
    parser.add_argument("--out", help="files without suffix (default: results/pareto/<name>)")
    args = parser.parse_args()
    runs = saved_runs(args.paths)
    suffix = "" if args.y == "agreement" else f"-{args.y}"
    check_comparable(runs.summaries)
    stem = f"{args.out or f'results/pareto/{runs.name}'}{suffix}"
    written = _draw(runs, args.y, stem) + _tabulate(runs, stem)
    for run in runs.missing:
        print(f"{run.name}: {run.reason}", file=sys.stderr)
    print(*written, sep="\n")
    return 0


def _draw(runs: SavedRuns, y: str, stem: str) -> list[Path]:
    (measure,) = (name for name in MEASURES if name == y)
    written = []
    for name, figure in pareto_figures(runs, measure).items():
        written += write_figure(figure, f"{stem}-{name}" if name else stem)
    return written


def _tabulate(runs: SavedRuns, stem: str) -> list[Path]:
    tables = pareto_tables(runs)
    contents = {
        ".md": tables.text,
        ".csv": to_csv(tables.points),
        "-target.csv": to_csv(tables.reached),
    }
    for suffix, content in contents.items():
        write_text(Path(f"{stem}{suffix}"), content)
    return [Path(f"{stem}{suffix}") for suffix in contents]


if __name__ == "__main__":
    end(main)
