"""The comparison table: one row per run; as Markdown, CSV and terminal text."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

import pandas as pd

from river_llm.analysis import cells
from river_llm.analysis.cells import Summary, figure
from river_llm.analysis.statistics import wilson_interval

NAME_COLUMNS = ("Task", "Model", "Arm")
WIDEST_CELL = 24
FEWEST_PROMPTS = 6  # of which the range covers the median with 97 %


def comparison_frame(summaries: Sequence[Summary]) -> pd.DataFrame:
    """One row of text cells per run, the runs of one task together, else in the given order.

    Cells are written out with their intervals, a missing figure as "n/a" (there is none) or
    "not run" (its measurement was not made), so that no 0 and no NaN can stand for it. A Model
    column appears when the runs are of more than one model.
    """
    tasks = list(dict.fromkeys(summary["label"] for summary in summaries))
    ordered = sorted(summaries, key=lambda summary: tasks.index(summary["label"]))
    frame = pd.DataFrame([_row(summary) for summary in ordered], columns=list(_COLUMNS))
    if len({summary["model"] for summary in summaries}) < 2:
        frame = frame.drop(columns="Model")
    return frame


_COLUMNS = (
    *NAME_COLUMNS,
    "n",
    "Accuracy % [95%]",
    "Agreement %",
    "Excess NLL",
    "Noise floor % / NLL",
    "Mean depth",
    "ms/token",
    "TTFT ms",
    "Speedup [95%]",
    "Bound",
)


def _row(summary: Summary) -> list[str]:
    samples, graded = summary["samples"], summary["accuracy"]["graded"]
    fidelity = summary["fidelity"]
    missing = cells.absent(summary) if fidelity is None else cells.NOT_AVAILABLE
    measured = cells.matched(summary)
    unmeasured = cells.absent(summary) if measured is None else cells.NOT_AVAILABLE
    floor = cells.pick(fidelity, "noise_floor")
    depth = figure(summary, "exit_depth", "mean")
    return [
        summary["label"],
        summary["model"],
        summary["arm"],
        str(samples) if graded in (0, samples) else f"{samples} ({graded} graded)",
        cells.accuracy(summary),
        cells.percent(figure(fidelity, "agreement"), missing),
        cells.fixed(figure(fidelity, "excess_nll"), 4, missing),
        cells.absent(summary)
        if floor is None
        else f"{cells.percent(figure(floor, 'agreement'))}"
        f" / {cells.fixed(figure(floor, 'excess_nll'), 4)}",
        cells.NOT_AVAILABLE
        if depth is None
        else f"{depth:.1f} / {summary['exit_depth']['layers']}",
        cells.fixed(figure(summary, "time", "decode_ms_per_token"), 2),
        cells.fixed(figure(summary, "time", "prefill_ms", "median"), 1),
        " ".join([cells.speedup(summary), ", ".join(cells.marks(summary))]).strip(),
        cells.fixed(figure(measured, "bound_speedup"), 2, unmeasured),
    ]


def caption(summaries: Sequence[Summary]) -> str:
    """What the table counts, and how little its small samples prove; one paragraph of text."""
    tasks = list(dict.fromkeys(summary["label"] for summary in summaries))
    counts = "; ".join(
        f"{task} n = {cells.span([s['samples'] for s in summaries if s['label'] == task])}"
        for task in tasks
    )
    text = [f"Samples per run: {counts or 'none'}."]
    text.append("Accuracy: percent of graded samples, 95 % Wilson interval.")
    graded = [n for summary in summaries if (n := summary["accuracy"]["graded"])]
    if graded:
        low, high = wilson_interval(min(graded) // 2, min(graded))
        if low is not None and high is not None:
            text.append(
                f"Small n gives wide intervals: at n = {min(graded)} one spans up to "
                f"{100 * (high - low):.0f} points; a difference inside them shows nothing."
            )
    cut = [share for summary in summaries if (share := figure(summary, "cut_share")) is not None]
    if any(cut):
        text.append(
            f"The token budget cut at most {cells.percent(max(cut))} % of the answers of a run."
        )
    text.append(
        "Agreement (equal argmax tokens) and excess NLL (nats per token) are against no_exit, "
        "teacher-forced on its text; the noise floor is what no_exit itself shows against another "
        "implementation of it."
    )
    engines = [
        share
        for summary in summaries
        if (share := figure(summary, "fidelity", "engine_noise_floor", "agreement")) is not None
    ]
    if engines:
        text.append(
            "no_exit on the eager engine agrees with that on the runs' own to "
            f"{cells.percent(min(engines))} %{' or more' if len(set(engines)) > 1 else ''}."
        )
    prompts = [m["prompts"] for s in summaries if (m := cells.matched(s)) is not None]
    over = f" over {cells.span(prompts)} prompts" if prompts else ""
    text.append(
        "TTFT: median time to first token. Speedup: decode, paired with no_exit on the same "
        f"engine, 95 % bootstrap{over}{few_prompts(prompts)}; bound: what the bytes read allow; "
        "'reference below par': measured above the bound, so no_exit was not limited by memory."
    )
    text.append(
        "no_exit's own row compares it with itself: the noise of the clock. "
        f"{cells.NOT_AVAILABLE}: there is no such figure; "
        f"{cells.NOT_RUN}: it was not measured."
    )
    return " ".join(text)


def few_prompts(counts: Sequence[int]) -> str:
    """What a bootstrap over few prompts is worth, in words to append; nothing for many."""
    if not counts or min(counts) >= FEWEST_PROMPTS:
        return ""
    return f" (of fewer than {FEWEST_PROMPTS} it is no more than the range of their ratios)"


def to_markdown(frame: pd.DataFrame, names: Collection[str] = NAME_COLUMNS) -> str:
    """The frame as an aligned Markdown table; names to the left, figures to the right."""
    columns = [[_escape(name), *(_escape(cell) for cell in frame[name])] for name in frame.columns]
    widths = [max(3, *map(len, column)) for column in columns]
    left = [name in names for name in frame.columns]
    rules = [
        "-" * width if to_left else "-" * (width - 1) + ":"
        for width, to_left in zip(widths, left, strict=True)
    ]
    rows = [
        [_pad(*cell) for cell in zip(row, widths, left, strict=True)]
        for row in zip(*columns, strict=True)
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rules, *rows[1:]]) + "\n"


def to_csv(frame: pd.DataFrame) -> str:
    """The frame as CSV, the same cells as in the other forms.

    Read it back with keep_default_na=False: pandas takes "n/a" for NaN otherwise.
    """
    return frame.to_csv(index=False, lineterminator="\n")


def to_terminal(frame: pd.DataFrame, width: int) -> str:
    """The frame as plain text, for a terminal of so many columns.

    Long cells and headers are wrapped; where the columns do not fit side by side, they follow in
    further blocks, each with the names of its rows. A block holds one figure at least, also where
    that is wider than the terminal.
    """
    names = [name for name in frame.columns if name in NAME_COLUMNS]
    wrapped = {name: _wrap_column(name, list(frame[name])) for name in frame.columns}
    wide = {
        name: max(len(line) for cell in cells_ for line in cell) for name, cells_ in wrapped.items()
    }
    blocks: list[list[str]] = [list(names)]
    for name in frame.columns:
        if name in names:
            continue
        taken = sum(wide[other] + 2 for other in blocks[-1])
        if taken + wide[name] > width and len(blocks[-1]) > len(names):
            blocks.append(list(names))
        blocks[-1].append(name)
    return "\n".join(_block(block, wrapped, wide) for block in blocks)


def _block(block: list[str], wrapped: dict[str, list[list[str]]], wide: dict[str, int]) -> str:
    lines: list[str] = []
    for row in range(len(wrapped[block[0]])):
        height = max(len(wrapped[name][row]) for name in block)
        for line in range(height):
            parts = []
            for name in block:
                cell = wrapped[name][row]
                text = cell[line] if line < len(cell) else ""
                parts.append(_pad(text, wide[name], name in NAME_COLUMNS))
            lines.append("  ".join(parts).rstrip())
        if row == 0:
            lines.append("  ".join("-" * wide[name] for name in block))
    return "\n".join(lines) + "\n"


def _wrap_column(name: str, texts: list[str]) -> list[list[str]]:
    """Header and cells as lists of lines; the header is no wider than it needs to be."""
    body = [textwrap.wrap(text, WIDEST_CELL, break_on_hyphens=False) or [""] for text in texts]
    widest = max([len(line) for cell in body for line in cell] + [len(w) for w in name.split()])
    return [textwrap.wrap(name, widest), *body]


def _pad(text: str, width: int, to_left: bool) -> str:
    return text.ljust(width) if to_left else text.rjust(width)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
