"""Which protocol gives the paper's no_exit accuracy, from the saved cells of a sweep; no model.

python scripts/protocol.py results/sweeps/protocol-0123456789ab

Writes OUT.md and OUT.csv from what is finished so far.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from river_llm.analysis.protocol import write_protocols
from river_llm.entry_point import end


def main() -> int:
    """Writes the table of the sweep that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweep", type=Path, help="folder of a sweep over protocols")
    parser.add_argument(
        "--out", type=Path, default=Path("results/table2/protocol"), help="files without suffix"
    )
    args = parser.parse_args()
    written = write_protocols(args.sweep, args.out)
    print(*written, sep="\n")
    return 0


if __name__ == "__main__":
    end(main)
