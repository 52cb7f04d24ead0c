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
from river_llm.analysis.operating_points import (
    TEXT_COLUMNS,
    all_points_frame,
    points_note,
    target_caption,
    target_frame,
)
from river_llm.analysis.pareto_marks import MEASURES
from river_llm.analysis.pareto_plot import pareto_figure
from river_llm.analysis.points import check_comparable, comparisons, operating_points
from river_llm.analysis.saved import SavedRuns, saved_runs
from river_llm.analysis.tables import to_csv, to_markdown
from river_llm.errors import UserError


def main() -> int:
    """Draws the runs that the command line names; those without a summary are said."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, help="folders of runs or of a sweep")
    parser.add_argument("--y", choices=list(MEASURES), default="agreement", help="the y axis")
    parser.add_argument("--out", help="files without suffix (default: results/pareto/<name>)")
    args = parser.parse_args()
    try:
        runs = saved_runs(args.paths)
        suffix = "" if args.y == "agreement" else f"-{args.y}"
        check_comparable(runs.summaries)
        stem = f"{args.out or f'results/pareto/{runs.name}'}{suffix}"
        written = _draw(runs, args.y, stem) + _tabulate(runs, stem)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for run in runs.missing:
        print(f"{run.name}: {run.reason}", file=sys.stderr)
    print(*written, sep="\n")
    return 0


def _draw(runs: SavedRuns, y: str, stem: str) -> list[Path]:
    groups = comparisons(operating_points(runs.summaries))
    (measure,) = (name for name in MEASURES if name == y)
    written = []
    for (task, model), points in groups.items():
        own = stem if len(groups) == 1 else f"{stem}-{task.replace(' ', '_')}-{model}"
        written += write_figure(pareto_figure(points, measure, runs.missing), own)
    return written


def _tabulate(runs: SavedRuns, stem: str) -> list[Path]:
    points = operating_points(runs.summaries)
    reached, everything = target_frame(points), all_points_frame(points, runs.missing)
    commits = sorted({mark for summary in runs.summaries for mark in summary["commits"]})
    text = [
        "## What each method reaches",
        to_markdown(reached, TEXT_COLUMNS),
        target_caption(points),
        "## All operating points",
        to_markdown(everything, TEXT_COLUMNS),
        f"{points_note(points)} Runs of commit {', '.join(commits) or 'unknown'}.",
    ]
    contents = {
        ".md": "\n\n".join(part.strip() for part in text) + "\n",
        ".csv": to_csv(everything),
        "-target.csv": to_csv(reached),
    }
    for suffix, content in contents.items():
        Path(f"{stem}{suffix}").write_text(content, encoding="utf-8")
    return [Path(f"{stem}{suffix}") for suffix in contents]


if __name__ == "__main__":
    sys.exit(main())
