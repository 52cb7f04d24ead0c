"""What a finished run prints."""

from __future__ import annotations

from river_llm.analysis.report import terminal_summary
from river_llm.evaluation.summary import RunResult, last_line


def show(result: RunResult) -> None:
    """Prints the summary, how to grade what was not graded, and the JSON object as last line."""
    print(terminal_summary(result.summary))
    if result.ungraded:
        print(
            f"{result.ungraded} samples have no verdict, since programs were not run. Grade them "
            f"with:\n  python scripts/regrade.py {result.folder} --allow-code-execution"
        )
    print(last_line(result), flush=True)
