"""What stands below Table 2: where its figures come from, and what they do not show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from river_llm.analysis import cells
from river_llm.analysis.cells import NOT_AVAILABLE, NOT_RUN, pick
from river_llm.analysis.equal_accuracy import pairs_needed
from river_llm.analysis.saved import SavedRuns
from river_llm.analysis.table2_frames import UNKNOWN
from river_llm.analysis.table2_rows import FULL_QUANT, NO_EXIT, RIVER, Block
from river_llm.analysis.tables import few_prompts
from river_llm.records import RunFolder


def headline(blocks: Sequence[Block]) -> str:
    """What of the paper has run, in one sentence before everything else."""
    of_paper = [block for block in blocks if block.paper is not None]
    ran = [
        f"{block.model} on {block.exp} (n = {fewest})"
        for block in of_paper
        if (fewest := _fewest_answers(block))
    ]
    if not ran:
        return (
            "No row of the paper has run to its end here (no_exit, full_quant and River), so this "
            "table reproduces nothing of the paper and refutes nothing of it."
        )
    return (
        f"Of the paper's {len(of_paper)} rows no_exit, full_quant and River have run for "
        f"{'; '.join(ran)}. Of the other rows this table shows nothing."
    )


def paper_note(blocks: Sequence[Block]) -> str:
    """How the paper's layout is to be read."""
    sources: dict[str, list[str]] = {}
    for block in blocks:
        if block.paper is not None and block.paper.source is not None:
            names = sources.setdefault(block.paper.source, [])
            names += [name for name in [f"{block.model} {block.exp}"] if name not in names]
    listed = ". ".join(f"{source}: {', '.join(names)}" for source, names in sources.items())
    return (
        "River: tau 0.5, prefill sequence, as in the paper. The paper's cells are percents and "
        "factors, in parentheses ours minus the paper's; its samples, checkpoints and prompts are "
        "not known, and MATH-500 is a subset of its MATH. Speedup: decode against no_exit on the "
        "same engine; vs eager: against no_exit on the eager engine; bound: what the bytes read "
        "allow at the measured depth. What the paper's speedup is against is not known. "
        f"{NOT_RUN}: not run or not measured; {UNKNOWN}: a cell of the paper that we do not know. "
        f"Sources of the paper's cells: {listed}."
    )


def _fewest_answers(block: Block) -> int:
    """The smallest number of graded answers among what the paper's row is made of."""
    rows = [block.first(place) for place in (NO_EXIT, FULL_QUANT, RIVER)]
    return min(pick(row.summary, "accuracy", "graded") or 0 for row in rows)


def detail_note(block: Block) -> str:
    """What a block's figures are counted over."""
    summaries = [row.summary for row in block.rows if row.summary is not None]
    graded = [s["accuracy"]["graded"] for s in summaries if s["accuracy"]["graded"]]
    parts = [f"Accuracy: n = {cells.span(graded)} samples" if graded else "Accuracy: not run"]
    timed = _found(summaries, ("speedup", "decode", "matched"), "prompts", "tokens")
    parts.append(
        f"speedups: {cells.span(timed[0])} prompts x {cells.span(timed[1])} tokens of no_exit's "
        f"text{few_prompts(timed[0])}"
        if timed[0]
        else "speedups: not run"
    )
    compared = _found(summaries, ("fidelity",), "samples", "tokens")
    parts.append(
        f"fidelity: {cells.span(compared[1])} tokens of {cells.span(compared[0])} of no_exit's "
        "texts"
        if compared[0]
        else "fidelity: not run"
    )
    return "; ".join(parts) + "."


def _found(
    summaries: Sequence[Any], path: tuple[str, ...], first: str, second: str
) -> tuple[list[int], list[int]]:
    """Two counts of a measurement, of the runs that have both."""
    pairs = [(pick(s, *path, first), pick(s, *path, second)) for s in summaries]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return [a for a, _ in known], [b for _, b in known]


def columns_note() -> str:
    """What the columns of the blocks are."""
    return (
        "Accuracy: percent of graded samples, 95 % Wilson interval. To no_exit: difference in "
        "points, paired by sample, with Tango's 95 % score interval, and the p of the exact "
        "McNemar test. Mean depth: backbone layers per decode step of the free-running texts, of "
        "L. Speedup: decode, paired with no_exit on the same engine, 95 % bootstrap over prompts; "
        "vs eager and vs HF: against no_exit on the eager engine and transformers' generate. "
        "'reference below par': measured above the bound, so no_exit was not limited by memory. "
        "no_exit's own speedup is the noise of the clock. Agreement (equal argmax tokens) and "
        "excess NLL (nats per token): teacher-forced on no_exit's text, bootstrap over texts; "
        "floor: what no_exit itself shows against transformers' generate (HF) and against the "
        "other engine. Peak memory: measured in a process of its own; weights and KV: the sum of "
        f"the tensors. {NOT_AVAILABLE}: there is no such figure."
    )


def equal_note(margin: float) -> str:
    """How the comparison at equal accuracy is to be read.

    Args:
        margin: in percentage points.
    """
    return (
        "For each method its fastest run below full depth whose accuracy is proven to be at most "
        f"{margin:g} {'point' if margin == 1 else 'points'} below no_exit's: the lower end of the "
        "paired 95 % interval says so. "
        "Smallest provable margin: what so many pairs prove where not one verdict changed; above "
        f"the margin, a run that answers as no_exit does proves nothing, which takes "
        f"{pairs_needed(margin)} samples. none: no run is proven to be within it, which is no "
        "proof that one is not. The choice of the fastest of several runs is not corrected for."
    )


def origin_note(runs: SavedRuns) -> str:
    """Machines, engines and commits behind the figures."""
    commits = sorted({mark for s in runs.summaries for mark in s["commits"]})
    engines = sorted({str(pick(s, "settings", "engine")) for s in runs.summaries})
    machines = sorted({name for folder in runs.folders for name in _machines(RunFolder(folder))})
    return (
        f"{len(runs.summaries)} runs. Machine: {'; '.join(machines) or 'not recorded'}. "
        f"Engine: {', '.join(engines)}. Commit: {', '.join(commits) or 'not recorded'}."
    )


def _machines(folder: RunFolder) -> list[str]:
    found = []
    for start in folder.read_json("environment.json") or []:
        if start.get("device_name"):
            device = str(start["device_name"])
        else:
            cores, threads = start.get("cores"), start.get("threads")
            device = f"{start.get('processor')}, {cores} cores, threads: {threads}"
        torch = (start.get("packages") or {}).get("torch")
        found.append(f"{device}, torch {torch}")
    return found
