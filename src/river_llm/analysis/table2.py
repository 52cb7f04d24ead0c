"""Table 2 from saved runs: as Markdown, as data and for LaTeX."""

from __future__ import annotations

from pathlib import Path

from river_llm.analysis.latex import escape, to_latex
from river_llm.analysis.paper_cells import paper_cells
from river_llm.analysis.saved import SavedRuns
from river_llm.analysis.table2_frames import (
    NAMES,
    accuracy_frame,
    block_task,
    equal_frame,
    fidelity_frame,
    paper_frame,
)
from river_llm.analysis.table2_notes import (
    columns_note,
    detail_note,
    equal_note,
    headline,
    origin_note,
    paper_note,
)
from river_llm.analysis.table2_records import records_frame
from river_llm.analysis.table2_rows import Block, blocks
from river_llm.analysis.tables import to_csv, to_markdown
from river_llm.errors import UserError
from river_llm.records import write_text

MARGIN = 1.0
"""Percentage points below no_exit's accuracy that still count as equal."""


HEAD = (
    r"% To be read with \input; needs \usepackage[T1]{fontenc} and \usepackage{booktabs,graphicx}"
)


def write_table2(runs: SavedRuns, out: Path, margin: float = MARGIN) -> list[Path]:
    """Writes the table of the runs that are finished.

    Args:
        runs: what was found; cells that wait or failed are named in the table.
        out: path without suffix; its folder is made.
        margin: of the comparison at equal accuracy, in percentage points.

    Returns:
        The paths of `out`.md (for readers), .csv (one row per run, plain numbers) and .tex.

    Raises:
        UserError: a margin out of range, samples or the paper's cells that cannot be read, runs
            on other samples than no_exit's.
    """
    if not 0 < margin < 100:
        raise UserError(f"margin={margin:g} points is out of range: give one between 0 and 100")
    found = blocks(runs, paper_cells())
    contents = {
        ".md": _markdown(runs, found, margin),
        ".csv": to_csv(records_frame(found)),
        ".tex": _latex(runs, found, margin),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    paths = [out.with_name(out.name + suffix) for suffix in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_text(path, content)
    return paths


def _markdown(runs: SavedRuns, found: list[Block], margin: float) -> str:
    ran = [block for block in found if block.has_runs]
    parts = [
        "# Table 2",
        headline(found),
        to_markdown(paper_frame(found), NAMES),
        paper_note(found),
        f"## At no_exit's accuracy (margin in points: {margin:g})",
        to_markdown(equal_frame(ran, margin), NAMES),
        equal_note(margin),
    ]
    for block in ran:
        parts += [
            f"## {_title(block)}",
            to_markdown(accuracy_frame(block), NAMES),
            to_markdown(fidelity_frame(block), NAMES),
            detail_note(block),
        ]
    parts += ["## How to read the blocks", columns_note(), origin_note(runs)]
    if runs.missing:
        parts += ["## Cells without a result", *(f"- {r.name}: {r.reason}" for r in runs.missing)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _latex(runs: SavedRuns, found: list[Block], margin: float) -> str:
    ran = [block for block in found if block.has_runs]
    main = f"Laid out as the paper's Table 2. {headline(found)} {paper_note(found)}"
    tables = [
        to_latex(paper_frame(found), main, "tab:table2", NAMES),
        to_latex(equal_frame(ran, margin), equal_note(margin), "tab:equal-accuracy", NAMES),
    ]
    for number, block in enumerate(ran, start=1):
        caption = f"{_title(block)}. {detail_note(block)}"
        label = f"tab:block{number}"
        tables += [
            to_latex(accuracy_frame(block), f"Accuracy and speed, {caption}", label, NAMES),
            to_latex(
                fidelity_frame(block), f"Fidelity and memory, {caption}", f"{label}-fidelity", NAMES
            ),
        ]
    notes = escape(f"{columns_note()} {origin_note(runs)}")
    missing = [
        " ".join(f"% without a result: {run.name}: {run.reason}".split()) for run in runs.missing
    ]
    return "\n".join([HEAD, *missing, *tables, rf"{{\footnotesize\noindent {notes}\par}}", ""])


def _title(block: Block) -> str:
    return f"{block.model}, {block_task(block)}"
