"""The pictures of `scripts/reproduce_figures.py`, from records alone, with their captions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from river_llm.analysis import cells
from river_llm.analysis.depth_records import read_oracle
from river_llm.analysis.equal_score import curves, default_levels, reference_ms, score_of
from river_llm.analysis.equal_score_plot import equal_score_figure
from river_llm.analysis.exit_distribution import (
    DepthRow,
    exit_distribution_figure,
    oracle_row,
    river_rows,
)
from river_llm.analysis.kv import read_kv
from river_llm.analysis.kv_plot import kv_figure
from river_llm.analysis.points import check_comparable, operating_points
from river_llm.analysis.prefill import read_prefill
from river_llm.analysis.prefill_plot import prefill_figure
from river_llm.analysis.provenance import commits, machine
from river_llm.analysis.saved import SUMMARY, SavedRuns, forced_scores, saved_runs
from river_llm.errors import UserError

PROMPTS = {"sequence": "prompt included", "backbone": "the prompt in the backbone"}


def draw_exit_depths(sweep: Path, depths: Path) -> Figure:
    """Figure 2: the oracle's depths and River's; without one of the two the other alone.

    Args:
        sweep: folder of a sweep with River runs.
        depths: folder of a record of `scripts/analyze_depth.py`, which need not be there.

    Raises:
        UserError: neither is there, or a record that cannot be read.
    """
    rows: list[DepthRow] = []
    names, notes = set(), []
    if (depths / SUMMARY).exists():
        oracle = read_oracle(depths)
        rows.append(oracle_row(oracle.steps, int(oracle.summary["layers"])))
        names.add(_name(oracle.summary))
        notes.append(
            "Oracle: the smallest depth from which on final norm and head predict no_exit's own "
            "token at every depth; on the right the one depth that keeps every token of a text "
            f"({oracle.counted}; {_where(oracle.summary)})."
        )
    else:
        notes.append("Oracle: not run.")
    runs = _sweep(sweep)
    if runs is not None:
        forced = [forced_scores(folder) for folder in runs.folders]
        found = river_rows(runs.summaries, forced)
        rows += found
        names |= {_name(summary) for summary in runs.summaries}
        if found:
            texts, tokens = sum(found[0].texts), sum(found[0].tokens)
            notes.append(
                f"River: exit depths of {tokens} decode steps on no_exit's text, on the right of "
                f"the {texts} prompts (prefill sequence; {_where_run(runs)}). River's tokens "
                "go on through the 4-bit layers, so it may leave earlier than the oracle, whose "
                "tokens come from the exit state."
            )
    if len(names) > 1:
        raise UserError(f"records of {', '.join(sorted(names))} cannot share a picture")
    title = "Where tokens leave the backbone"
    return exit_distribution_figure(rows, ", ".join([title, *names]), notes)


def draw_equal_score(sweep: Path, levels: Sequence[float] | None = None) -> Figure:
    """Figure 3: milliseconds per token of the KV strategies at equal score.

    Args:
        sweep: folder of a sweep.
        levels: shares; None: see :func:`river_llm.analysis.equal_score.default_levels`.

    Raises:
        UserError: no sweep there, runs that cannot be compared, or none that was timed.
    """
    runs = _sweep(sweep)
    if runs is None:
        raise UserError(f"{sweep} is no sweep with finished cells: run the sweep first")
    names = {_name(summary) for summary in runs.summaries}
    if len(names) > 1:
        raise UserError(f"runs of {', '.join(sorted(names))} cannot share a picture")
    check_comparable(runs.summaries)
    score = score_of(runs.summaries)
    found = curves(runs.summaries, score)
    chosen = default_levels(found, score) if levels is None else levels
    points = operating_points(runs.summaries)
    if score == "accuracy":
        counted = f"{cells.span([p.graded for p in points])} graded answers"
    else:
        tokens = [p.tokens for p in points if p.tokens is not None]
        texts = [p.texts for p in points if p.texts is not None]
        counted = (
            f"{cells.span(tokens or [0])} tokens of {cells.span(texts or [0])} texts, "
            "teacher-forced on no_exit's text"
        )
    prompts = [p.prompts for p in points if p.prompts is not None]
    flagged = sum(bool(cells.marks(summary)) for summary in runs.summaries)
    notes = [
        "Each curve goes through a method's settings in the order of mean exit depth, linear "
        "between neighbours; bars are where it crosses the dashed score. Not reached: every "
        "setting scores less, and nothing is extrapolated. Hatched: every setting scores more, "
        "told is the fastest one.",
        f"Score over {counted}. Time: no_exit's median of {reference_ms(runs.summaries):.1f} ms "
        f"per token over each setting's paired speedup ({cells.span(prompts or [0])} prompts; "
        f"{flagged} of {len(points)} timings carry a flag). {_where_run(runs)}.",
    ]
    if runs.missing:
        notes.append(f"Cells of the sweep that are not run: {len(runs.missing)}.")
    title = f"Time per token at equal score, {names.pop()}"
    return equal_score_figure(found, score, chosen, title, notes)


def draw_kv(folder: Path, prefill: str = "sequence") -> Figure:
    """Figure 7: similarity and KV entries by layer, early similarity against the last value.

    Args:
        folder: of a record of `scripts/analyze_kv.py`.
        prefill: of the river runs that are drawn, `sequence` or `backbone`.

    Raises:
        UserError: no readable record there.
    """
    record = read_kv(folder)
    summary = record.summary
    notes = [
        f"{_steps(summary)}, teacher-forced on no_exit's text; {_where(summary)}. River runs have "
        f"a planned exit depth, {PROMPTS[prefill]} (prefill {prefill}), and the entries compared "
        "are those that they really leave; each river layer alone: fed with the backbone's own "
        "state. Every dot is a token; r with its 95 % bootstrap over texts."
    ]
    title = f"What the river leaves in the KV cache, {_name(summary)}, prefill {prefill}"
    return kv_figure(record, title, notes, prefill)


def draw_prefill(folder: Path) -> Figure:
    """Time to first token over the prompt's length.

    Args:
        folder: of a record of `scripts/measure_prefill.py`.

    Raises:
        UserError: no readable record there.
    """
    summary = read_prefill(folder)
    points = summary["points"]
    depths = [p["depth"] for p in points if p["arm"] == "river, prefill sequence"]
    criterion = summary["criterion"]
    setting = ", ".join(f"{key} {criterion[key]}" for key in ("tau", "depth") if key in criterion)
    notes = [
        f"Medians of {points[0]['rounds']} interleaved rounds, each with another prompt. River's "
        f"prompt leaves the backbone by {criterion['name']} ({setting}), here after "
        f"{cells.span([round(depth) for depth in depths])} of {summary['layers']} layers with "
        f"prefill sequence. Engine: {summary['engine']}; {_where(summary)}."
    ]
    return prefill_figure(points, f"Time to first token, {_name(summary)}", notes)


def _sweep(folder: Path) -> SavedRuns | None:
    """The finished runs of a sweep; None where there are none."""
    if not (folder / "sweep.json").exists():
        return None
    return saved_runs([folder])


def _name(summary: Mapping[str, Any]) -> str:
    return f"{summary['label']}, {summary['model']}"


def _steps(summary: Mapping[str, Any]) -> str:
    return f"{summary['steps']} decode steps of {summary['samples']} texts"


def _where(summary: Mapping[str, Any]) -> str:
    return f"{machine(summary['environment'])}, {commits([summary['commit']])}"


def _where_run(runs: SavedRuns) -> str:
    measured = _json(runs.folders[0] / "measurements.json")
    marks = {mark for summary in runs.summaries for mark in summary["commits"]}
    return f"{machine(measured['speedup']['environment'])}, {commits(marks)}"


def _json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): make the record again") from error
    return content
