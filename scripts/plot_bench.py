"""Draws decode.png beside each bench.json of a decode benchmark, from the figures saved there.

    python scripts/plot_bench.py results/gpu/*/bench/*/bench.json

Needs no torch: the benchmark may have run on another machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from river_llm.analysis.bench_files import plot_bench
from river_llm.entry_point import end


def main() -> int:
    """Draws; status 2 where a file holds no benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="bench.json of scripts/bench_decode.py")
    for file in parser.parse_args().files:
        print(plot_bench(file))
    return 0


if __name__ == "__main__":
    end(main)
