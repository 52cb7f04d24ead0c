"""Markdown table of finished runs:

python scripts/table.py results/runs/gsm8k/smollm2_135m/*
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from river_llm.analysis.tables import caption, comparison_frame, to_markdown
from river_llm.entry_point import end


def main() -> int:
    """Prints the runs that the command line names; those without a summary are said."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dirs", nargs="+", type=Path, help="folders of finished runs")
    summaries = []
    for folder in parser.parse_args().run_dirs:
        path = folder / "summary.json"
        try:
            summaries.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            print(f"{folder}: no readable summary.json ({error})", file=sys.stderr)
    if not summaries:
        print("error: none of these folders holds a finished run", file=sys.stderr)
        return 2
    print(to_markdown(comparison_frame(summaries)))
    print(caption(summaries))
    return 0


if __name__ == "__main__":
    end(main)
