"""New verdicts and a new summary for a finished run, from its stored completions; no model.

python scripts/regrade.py results/runs/humaneval/smollm2_135m/river-0123456789ab \
    --allow-code-execution
"""

from __future__ import annotations

import argparse
from pathlib import Path

from river_llm.analysis.report import terminal_summary
from river_llm.entry_point import end
from river_llm.evaluation.summary import last_line, regrade


def main() -> int:
    """Grades the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="folder of a finished run")
    parser.add_argument(
        "--allow-code-execution", action="store_true", help="run the model-written programs"
    )
    parser.add_argument(
        "--sandbox", help="how they are contained (exp.sandbox; default: as it ran)"
    )
    arguments = parser.parse_args()
    result = regrade(
        arguments.run_dir,
        allow_code_execution=arguments.allow_code_execution,
        sandbox=arguments.sandbox,
    )
    print(terminal_summary(result.summary))
    print(last_line(result))
    return 0


if __name__ == "__main__":
    end(main)
