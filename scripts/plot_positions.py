"""Fidelity by position in the text and exit depths of some runs, from saved records alone.

python scripts/plot_positions.py RUN_DIR RUN_DIR ... --out docs/positions

Writes STEM.png, .svg and .pdf (does the method drift away along the text?), the same of
STEM-depths (where its tokens left the backbone), and STEM.csv with the figures by position.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from river_llm.analysis.figures import write_figure
from river_llm.analysis.points import noise_floor, operating_points
from river_llm.analysis.position_plots import depth_figure, position_figure
from river_llm.analysis.positions import (
    PositionBin,
    depth_histogram,
    fidelity_by_position,
    positions_frame,
)
from river_llm.analysis.saved import SavedRuns, arm_names, forced_scores, saved_runs
from river_llm.analysis.tables import to_csv
from river_llm.entry_point import end
from river_llm.errors import UserError
from river_llm.records import write_text


def main() -> int:
    """Draws the runs that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, help="folders of at most 10 runs")
    parser.add_argument("--out", help="files without suffix (default: results/positions/<name>)")
    args = parser.parse_args()
    runs = saved_runs(args.paths)
    written = _write(runs, args.out or f"results/positions/{runs.name}")
    for run in runs.missing:
        print(f"{run.name}: {run.reason}", file=sys.stderr)
    print(*written, sep="\n")
    return 0


def _write(runs: SavedRuns, stem: str) -> list[Path]:
    names = arm_names(runs.summaries)
    if len({(summary["label"], summary["model"]) for summary in runs.summaries}) > 1:
        raise UserError("the runs are of several tasks or models: draw those of one at a time")
    forced = [forced_scores(folder) for folder in runs.folders]
    texts = {scores["no_exit_run"] for scores in forced if scores is not None}
    if len(texts) > 1:
        raise UserError(
            f"the runs were forced on texts of {', '.join(sorted(texts))}: draw those of one "
            "no_exit run at a time"
        )
    bins: dict[str, list[PositionBin]] = {}
    for name, scores in zip(names, forced, strict=True):
        if scores is not None:
            bins[name] = fidelity_by_position(scores)
    if not bins:
        raise UserError(
            "none of these runs has forced scores: run them with fidelity.limit of 1 or more"
        )
    first = runs.summaries[0]
    title = f"{first['label']}, {first['model']}"
    absent = [name for name in names if name not in bins]
    notes = [f"Without scores on forced texts: {', '.join(absent)}."] if absent else []
    floor = noise_floor(operating_points(runs.summaries))
    figure = position_figure(bins, f"{title}: fidelity along the text", floor, notes)
    histograms = {
        name: depth_histogram(summary, scores)
        for name, summary, scores in zip(names, runs.summaries, forced, strict=True)
    }
    written = write_figure(figure, stem)
    written += write_figure(depth_figure(histograms, f"{title}: exit depths"), f"{stem}-depths")
    table = Path(f"{stem}.csv")
    write_text(table, to_csv(positions_frame(bins)))
    return [*written, table]


if __name__ == "__main__":
    end(main)
