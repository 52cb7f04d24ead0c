"""Table 2 as frames of text cells: the paper's layout, one block in detail, equal accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from river_llm.analysis import cells
from river_llm.analysis.cells import NOT_AVAILABLE, NOT_RUN, figure, fixed, pick
from river_llm.analysis.equal_accuracy import EqualAccuracy, equal_accuracy, pairs_needed
from river_llm.analysis.points import (
    DEPTH_TOLERANCE,
    estimate,
    percents,
    with_interval,
)
from river_llm.analysis.table2_rows import FULL_QUANT, NO_EXIT, RIVER, Block, Row

UNKNOWN = "unknown"
"""Word for a cell of the paper that is not known."""

NAMES = ("Model", "Task", "Run", "Method", "Fastest within the margin", "Note")
REFERENCES = ("matched", "vs_eager", "vs_hf")
PARTS = ("backbone", "staging", "river", "scratch", "shared", "head", "kv")
MIB = 2**20


def paper_frame(blocks: Sequence[Block]) -> pd.DataFrame:
    """The paper's table, one row per block, each of our cells beside the paper's."""
    return pd.DataFrame([_paper_row(block) for block in blocks])


def _paper_row(block: Block) -> dict[str, str]:
    row = {"Model": block.model, "Task": block_task(block), "n": _samples(block.first(NO_EXIT))}
    for title, place in (("no_exit", NO_EXIT), ("full_quant", FULL_QUANT), ("River", RIVER)):
        own = block.first(place)
        row[f"{title} % [95%]"] = _accuracy(own)
        row[f"paper's {title}"] = _paper_accuracy(block, own)
    river = block.first(RIVER)
    row["River's speedup [95%]"] = speedup(river, "matched")
    row["vs eager [95%]"] = speedup(river, "vs_eager")
    row["bound"] = _bound(river)
    row["paper's speedup"] = _paper_speedup(block, river)
    return row


def block_task(block: Block) -> str:
    """The task of a block, with what tells it from others of the same model and task."""
    return f"{block.task}, {block.protocol}" if block.protocol else block.task


def accuracy_frame(block: Block) -> pd.DataFrame:
    """Accuracy and speed of a block's runs; columns for the paper where its cells are known."""
    rows = []
    known = block.paper is not None
    for row in block.rows:
        made = {"Run": row.name, "n": _samples(row), "Accuracy % [95%]": _accuracy(row)}
        if known:
            made["Paper %"] = _paper_accuracy(block, row)
        made["To no_exit, points [95%]"] = _difference(row)
        made["McNemar p"] = _mcnemar(row)
        made["Mean depth"] = _depth(row)
        made["Speedup [95%]"] = speedup(row, "matched")
        made["Bound"] = _bound(row)
        made["vs eager [95%]"] = speedup(row, "vs_eager")
        made["vs HF [95%]"] = speedup(row, "vs_hf")
        if known:
            made["Paper's speedup"] = _paper_speedup(block, row)
        made["Note"] = _note(row)
        rows.append(made)
    return pd.DataFrame(rows)


def fidelity_frame(block: Block) -> pd.DataFrame:
    """Fidelity, noise floors and memory of a block's runs; places without a run are left out."""
    rows = []
    for row in block.rows:
        if row.point is None:
            continue
        measured = pick(row.summary, "fidelity")
        rows.append(
            {
                "Run": row.name,
                "Agreement % [95%]": percents(estimate(measured, "agreement")),
                "Excess NLL [95%]": with_interval(estimate(measured, "excess_nll"), 4),
                "Floor, HF: % / NLL": _floor(measured, "noise_floor"),
                "Floor, engine: % / NLL": _floor(measured, "engine_noise_floor"),
                "Peak memory MiB": _mib(figure(row.summary, "memory", "peak_bytes")),
                "Weights and KV MiB": _mib(parts_bytes(row.summary)),
                "Identity": row.point.identity,
            }
        )
    return pd.DataFrame(rows)


def equal_frame(blocks: Sequence[Block], margin: float) -> pd.DataFrame:
    """Each method's fastest point that is proven to be within the margin of no_exit's accuracy.

    Args:
        blocks: those with runs.
        margin: in percentage points.
    """
    rows = []
    for block in blocks:
        for entry in equal_accuracy(block, margin):
            point = entry.fastest
            smallest = NOT_RUN if entry.provable is None else fixed(entry.provable, 1)
            rows.append(
                {
                    "Model": block.model,
                    "Task": block_task(block),
                    "Method": entry.line,
                    "Runs": str(entry.points),
                    "Pairs": str(entry.pairs),
                    "Smallest provable margin": smallest,
                    "Fastest within the margin": _fastest(entry, margin),
                    **_of_fastest(point),
                }
            )
    return pd.DataFrame(rows)


def _fastest(entry: EqualAccuracy, margin: float) -> str:
    if entry.fastest is not None:
        setting = entry.fastest.point.setting if entry.fastest.point else ""
        return setting or "yes"
    if not entry.judged:
        return "no run below full depth" if entry.full_depth_only else NOT_RUN
    if entry.provable is not None and entry.provable > margin:
        return f"n too small (needs {pairs_needed(margin)})"
    return "none"


def _of_fastest(row: Row | None) -> dict[str, str]:
    absent = NOT_AVAILABLE
    return {
        "Mean depth": absent if row is None else _depth(row),
        "To no_exit, points [95%]": absent if row is None else _difference(row),
        "Speedup [95%]": absent if row is None else speedup(row, "matched"),
        "Bound": absent if row is None else _bound(row),
    }


def measured_speedup(row: Row, against: str) -> Mapping[str, Any] | None:
    """A decode speedup of a run, None where it was not measured.

    Args:
        row: of the table.
        against: one of :data:`REFERENCES`.
    """
    found = pick(row.summary, "speedup", "decode", against)
    return None if figure(found, "value") is None else found


def parts_bytes(summary: Any) -> int | None:
    """Sum of the weights, scratch and KV of a run's memory in bytes; None: not recorded."""
    found = [pick(summary, "memory", f"{part}_bytes") for part in PARTS]
    known = [int(size) for size in found if size is not None]
    return sum(known) if known else None


def speedup(row: Row, against: str) -> str:
    """`1.80 [1.70, 1.90]`, or that it was not run."""
    return with_interval(estimate(measured_speedup(row, against), "value", ""), 2)


def _samples(row: Row) -> str:
    graded = pick(row.summary, "accuracy", "graded")
    return str(graded) if graded else NOT_RUN


def _accuracy(row: Row) -> str:
    return percents(estimate(pick(row.summary, "accuracy"), "value", ""))


def _difference(row: Row) -> str:
    if row.is_no_exit and row.summary is not None:
        return NOT_AVAILABLE
    if row.difference is None:
        return NOT_RUN
    value, low, high = row.difference.points
    return f"{_signed(value, 1)} [{_signed(low, 1)}, {_signed(high, 1)}]"


def _mcnemar(row: Row) -> str:
    if row.is_no_exit and row.summary is not None:
        return NOT_AVAILABLE
    if row.difference is None:
        return NOT_RUN
    return "<0.001" if row.difference.p < 0.001 else fixed(row.difference.p, 3)


def _depth(row: Row) -> str:
    if row.mean_depth is None or row.point is None:
        return NOT_RUN
    return f"{row.mean_depth:.1f} / {row.point.layers}"


def _bound(row: Row) -> str:
    return fixed(figure(measured_speedup(row, "matched"), "bound_speedup"), 2, NOT_RUN)


def paper_figures(block: Block, row: Row) -> tuple[float | None, float | None]:
    """The paper's accuracy and speedup beside a row; None where it has none, or none is known."""
    place = row.place
    # Only the run with the default quantizer stands for its place, and so beside the paper's cell.
    if block.paper is None or place is None or row is not block.first(place):
        return None, None
    names = (place.paper_accuracy, place.paper_speedup)
    accuracy, speed = (None if name is None else getattr(block.paper, name) for name in names)
    return accuracy, speed


def _paper_accuracy(block: Block, row: Row) -> str:
    accuracy = figure(row.summary, "accuracy", "value")
    own = None if accuracy is None else 100 * accuracy
    if block.paper is None or row.place is None or row.place.paper_accuracy is None:
        return NOT_AVAILABLE
    return _paper(paper_figures(block, row)[0], own, 1)


def _paper_speedup(block: Block, row: Row) -> str:
    own = figure(measured_speedup(row, "matched"), "value")
    if block.paper is None or row.place is None or row.place.paper_speedup is None:
        return NOT_AVAILABLE
    return _paper(paper_figures(block, row)[1], own, 2)


def _paper(theirs: float | None, ours: float | None, decimals: int) -> str:
    """`33.2 (-0.1)`: the paper's cell, and ours minus it."""
    if theirs is None:
        return UNKNOWN
    difference = "" if ours is None else f" ({_signed(ours - theirs, decimals)})"
    return f"{theirs:.{decimals}f}{difference}"


def _signed(value: float | None, decimals: int) -> str:
    return NOT_AVAILABLE if value is None else f"{value:+z.{decimals}f}"


def _floor(measured: Any, name: str) -> str:
    floor = pick(measured, name)
    if floor is None:
        return NOT_RUN
    return f"{cells.percent(figure(floor, 'agreement'))} / {fixed(figure(floor, 'excess_nll'), 4)}"


def _mib(size: float | None) -> str:
    return fixed(None if size is None else size / MIB, 0, NOT_RUN)


def flags(row: Row) -> list[str]:
    """What a reader must know about the speedups of a run: the flags of their measurement."""
    found = []
    for against in REFERENCES:
        measured = measured_speedup(row, against)
        if measured is None or measured.get("same_as_matched"):
            continue  # one measurement under two names says it once
        marks = [str(flag) for flag in measured.get("flags") or []]
        start = "" if against == "matched" else against.replace("_", " ") + ": "
        found += [start + mark for mark in marks]
    return found


def _note(row: Row) -> str:
    if row.summary is None:
        return NOT_RUN
    words = flags(row)
    depth, timed = row.mean_depth, row.timed_depth
    if depth is not None and timed is not None and abs(depth - timed) > DEPTH_TOLERANCE:
        words.append(f"timed at depth {timed:.1f}")
    graded = row.summary["accuracy"]["graded"]
    if row.difference is not None and row.difference.pairs != graded:
        words.append(f"{row.difference.pairs} pairs with no_exit")
    engine = pick(row.summary, "settings", "engine")
    if row.no_exit_engine not in (None, str(engine)):
        words.append(f"no_exit ran on {row.no_exit_engine}, this on {engine}")
    if waiting := row.summary["samples"] - graded:
        words.append(f"{waiting} not graded")
    return "; ".join(words) or "-"
