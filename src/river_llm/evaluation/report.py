"""What a finished run prints."""

from __future__ import annotations

import sys

from river_llm.analysis.report import terminal_summary
from river_llm.entry_point import silence_stdout
from river_llm.evaluation.summary import RunResult, last_line


def show(result: RunResult) -> None:
    """Prints the summary, how to grade what was not graded, and the JSON object as last line.

    Where standard output cannot be written (a full disk, a reader that has gone) that is said, and
    the run counts as finished all the same: its records are whole.
    """
    try:
        _show(result)
    except OSError as error:
        silence_stdout()
        print(
            f"warning: the summary cannot be printed ({error.strerror}); it is in "
            f"{result.folder}/summary.json",
            file=sys.stderr,
        )


def _show(result: RunResult) -> None:
    print(terminal_summary(result.summary))
    if result.ungraded:
        print(
            f"{result.ungraded} samples have no verdict, since programs were not run. Grade them "
            f"with:\n  python scripts/regrade.py {result.folder} --allow-code-execution"
        )
    print(last_line(result), flush=True)
