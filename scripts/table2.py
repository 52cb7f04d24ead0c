"""Table 2 from the saved records of a sweep or of runs; no model.

python scripts/table2.py results/sweeps/table2-0123456789ab
python scripts/table2.py results/runs/gsm8k/smollm2_135m/* --margin 2 --out results/table2/small

Writes OUT.md, OUT.csv (one row per run, plain numbers) and OUT.tex from what is finished so far.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from river_llm.analysis.saved import saved_runs
from river_llm.analysis.table2 import MARGIN, write_table2
from river_llm.entry_point import end


def main() -> int:
    """Writes the table of the runs that the command line names; those without one are said."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, help="folders of runs or of a sweep")
    parser.add_argument(
        "--margin",
        type=float,
        default=MARGIN,
        help="points below no_exit's accuracy that still count as equal (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results/table2/table2"), help="files without suffix"
    )
    args = parser.parse_args()
    runs = saved_runs(args.paths)
    written = write_table2(runs, args.out, args.margin)
    for run in runs.missing:
        print(f"{run.name}: {run.reason}", file=sys.stderr)
    print(*written, sep="\n")
    return 0


if __name__ == "__main__":
    end(main)
