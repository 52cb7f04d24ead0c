"""Two runs on the same prompts side by side, from their saved records; no model.

python scripts/compare.py results/runs/gsm8k/smollm2_135m/no_exit-0123456789ab \
    results/runs/gsm8k/smollm2_135m/river-0123456789ab
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from river_llm.analysis.comparison import compare, comparison_text
from river_llm.entry_point import end
from river_llm.errors import UserError
from river_llm.records import RunFolder


def main() -> int:
    """Compares the two runs that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_a", type=Path, help="folder of a run; its margins are shown")
    parser.add_argument("run_b", type=Path, help="folder of the run it is compared with")
    parser.add_argument(
        "--json", action="store_true", help="end with one line of JSON that holds everything"
    )
    arguments = parser.parse_args()
    folders = {"A": RunFolder(arguments.run_a), "B": RunFolder(arguments.run_b)}
    comparison = compare(*(samples(folder) for folder in folders.values()))
    arms = {name: arm(folder) for name, folder in folders.items()}
    for name, folder in folders.items():
        print(f"{name}: {arms[name]} ({folder.path})")
    print(comparison_text(comparison))
    if arguments.json:
        runs = {"run_a": str(arguments.run_a), "run_b": str(arguments.run_b)}
        print(json.dumps({**runs, **comparison}, allow_nan=False))
    return 0


def samples(folder: RunFolder) -> list[dict[str, Any]]:
    """The saved samples of a run.

    Raises:
        UserError: there are none.
    """
    records = folder.samples()
    if not records:
        raise UserError(
            f"{folder.path} holds no finished samples: give the folder of a run, "
            "<output.dir>/runs/<exp>/<model>/<method>-<identity>"
        )
    return [asdict(record) for record in records]


def arm(folder: RunFolder) -> str:
    """The arm's name in tables; the folder's where the run is not finished."""
    summary = folder.read_json("summary.json")
    return folder.path.name if summary is None else str(summary["arm"])


if __name__ == "__main__":
    end(main)
