"""What a Pareto picture counts, and what it does not show, in words."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from river_llm.analysis import cells
from river_llm.analysis.pareto_marks import MEASURES, Mark, Y, estimate, noise_band
from river_llm.analysis.points import OperatingPoint, lines
from river_llm.analysis.saved import MissingRun
from river_llm.analysis.tables import few_prompts

NOTE_COLUMNS = 200
NAMED = 6  # missing runs that are named in the picture; the table names all


def notes(
    points: Sequence[OperatingPoint],
    marks: Sequence[Mark],
    y: Y,
    missing: Sequence[MissingRun],
) -> list[str]:
    """What the picture counts, and what it does not show; lines of text."""
    found = [_counts(points, y)]
    slow = [point for point in points if point.speedup.value is None]
    unknown = [point for point in points if estimate(point, y).value is None]
    unbounded = [mark.point for mark in marks if mark.point.bound is None]
    if slow:
        found.append(f"Not drawn, no speedup: {_named(slow)}.")
    if unknown:
        found.append(f"Not drawn, no {MEASURES[y].name}: {_named(unknown)}.")
    if unbounded:
        found.append(f"No bound, so without a share in the limit: {_named(unbounded)}.")
    if noise_band(points, y) is None:
        why = "is measured of tokens, not of answers" if y == "accuracy" else cells.NOT_RUN
        found.append(f"Noise floor: {why}.")
    flags = dict.fromkeys(flag for mark in marks for flag in mark.point.flags)
    for flag in flags:
        flagged = [mark.point for mark in marks if flag in mark.point.flags]
        found.append(f"! {flag}: {_named(flagged)}.")
    if missing:
        names = [f"{run.name} ({run.reason})" for run in missing[:NAMED]]
        more = f"; and {len(missing) - NAMED} more, see the table" if missing[NAMED:] else ""
        found.append(f"Without records: {'; '.join(names)}{more}.")
    return [line for note in found for line in textwrap.wrap(note, NOTE_COLUMNS)]


def _counts(points: Sequence[OperatingPoint], y: Y) -> str:
    """How much was measured, in one sentence."""
    parts = []
    if y == "accuracy":
        graded = [point.graded for point in points if point.graded]
        parts.append(f"accuracy over {cells.span(graded or [0])} graded answers")
    else:
        tokens = [point.tokens for point in points if point.tokens is not None]
        texts = [point.texts for point in points if point.texts is not None]
        over = f"{cells.span(tokens or [0])} tokens of {cells.span(texts or [0])} answers"
        parts.append(f"{MEASURES[y].name} over {over}, teacher-forced on no_exit's text")
    prompts = [point.prompts for point in points if point.prompts is not None]
    over = f"{cells.span(prompts or [0])} prompts{few_prompts(prompts)}"
    parts.append(f"speedup paired with no_exit over {over}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _named(points: Sequence[OperatingPoint]) -> str:
    """The points by line: `static_first k=1, k=3; quant_decode`."""
    return "; ".join(
        " ".join([line, ", ".join(point.setting for point in own)]).strip()
        for line, own in lines(points).items()
    )
