"""The short summary that the terminal shows after a run."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from river_llm.analysis import cells
from river_llm.analysis.cells import Summary, figure, fixed, percent, pick
from river_llm.analysis.offload import memory_words

WIDTH = 80
INDENT = 14
HISTOGRAM_COLUMNS = 40
BLOCKS = "▁▂▃▄▅▆▇█"


def terminal_summary(summary: Summary) -> str:
    """At most 23 lines of at most 80 columns: what one run gave, at what cost, how sure.

    Args:
        summary: The summary of one run (see river_llm.analysis.summary.summarize).
    """
    lines = [_one_line(f"{summary['label']}, {summary['model']}: {summary['arm']}", WIDTH)]
    lines += _entry("accuracy", _accuracy(summary))
    lines += _entry("cut", _cut(summary))
    lines += _fidelity(summary)
    lines += _depth(summary["exit_depth"], figure(summary, "prefill_depth", "mean"))
    lines += _entry("time", _time(summary["time"]))
    lines += _speedup(summary)
    lines += _entry("memory", _memory(summary))
    offload = summary.get("offload")
    if offload is not None:
        lines += _entry("offload", _offload(offload))
        lines += _entry("", memory_words(offload))
    return "\n".join(lines)


def _accuracy(summary: Summary) -> str:
    samples, graded = summary["samples"], summary["accuracy"]["graded"]
    if not graded:
        return f"{cells.accuracy(summary)} (0 of {samples} samples graded)"
    counted = f"{graded} samples" if graded == samples else f"{graded} graded of {samples} samples"
    problems = summary.get("problems")  # runs of before it was recorded lack it
    if problems not in (None, samples):
        counted += f" ({samples} of {problems} problems attempted)"
    extra = [f"{name} {percent(share)} %" for name, share in summary["accuracy"]["extra"].items()]
    text = f"{cells.accuracy(summary)} % of {counted}"
    return f"{text}; {', '.join(extra)}" if extra else text


def _cut(summary: Summary) -> str:
    share = figure(summary, "cut_share")
    return (
        "no samples"
        if share is None
        else f"{percent(share)} % of answers ended by the token budget"
    )


def _fidelity(summary: Summary) -> list[str]:
    fidelity = summary["fidelity"]
    if fidelity is None:
        why = "this is the run that others are compared with"
        word = cells.absent(summary)
        return _entry("fidelity", f"{word} ({why})" if word == cells.NOT_AVAILABLE else word)
    floor, engine = (pick(fidelity, key) for key in ("noise_floor", "engine_noise_floor"))
    floors = percent(figure(floor, "agreement"), cells.NOT_RUN)
    floors_nll = fixed(figure(floor, "excess_nll"), 4, cells.NOT_RUN)
    if engine is not None:
        floors += f", engines {percent(figure(engine, 'agreement'))}"
        floors_nll += f", {fixed(figure(engine, 'excess_nll'), 4)}"
    lines = _entry(
        "fidelity",
        f"agreement {percent(figure(fidelity, 'agreement'))} % (noise floor {floors}), "
        f"excess NLL {fixed(figure(fidelity, 'excess_nll'), 4)} ({floors_nll}); "
        f"{pick(fidelity, 'tokens')} tokens of {pick(fidelity, 'samples')} samples",
    )
    answers = pick(fidelity, "equal_answers")
    if answers is None:
        return lines
    value = figure(answers, "value")
    if value is None:
        text = f"{cells.NOT_AVAILABLE} ({pick(answers, 'reason') or 'no reason given'})"
    else:
        empty = pick(answers, "both_empty")
        text = (
            f"{percent(value)} % of {pick(answers, 'samples') - empty} samples with an answer, "
            f"{empty} without any"
        )
    return [*lines, _one_line("same answers".ljust(INDENT) + text, WIDTH)]


def _depth(exit_depth: Mapping[str, Any], prefill: float | None) -> list[str]:
    counts: Sequence[int] = exit_depth["histogram"]
    total = sum(counts)
    text = f"prefill mean {fixed(prefill, 1)}"
    if not total:
        return _entry("exit depth", f"no decode steps; {text}")
    peak = max(range(len(counts)), key=counts.__getitem__)
    text = (
        f"mean {fixed(figure(exit_depth, 'mean'), 1)} of {exit_depth['layers']} layers, "
        f"most often {peak} ({percent(counts[peak] / total)} %); {text}"
    )
    return _entry("exit depth", text) + [" " * INDENT + line for line in histogram_lines(counts)]


def histogram_lines(counts: Sequence[int]) -> list[str]:
    """Exit depths 0..L as a row of block characters and an axis with labels.

    Args:
        counts: Steps at each depth, length L+1. Beyond 40 depths several share a column, all
            columns but the last the same number.

    Returns:
        Two lines. A column is blank only where no step fell; the highest one is a full block.
    """
    stride = -(-len(counts) // HISTOGRAM_COLUMNS)
    binned = [sum(counts[start : start + stride]) for start in range(0, len(counts), stride)]
    top = max(max(binned), 1)
    bars = "".join(BLOCKS[-(-8 * count // top) - 1] if count else " " for count in binned)
    last = len(counts) - 1
    # The frame takes the first column; a label begins under the column of its depth.
    middle, end = 1 + last // 2 // stride, 1 + last // stride
    axis = " 0"
    if middle > len(axis) and middle + len(str(last // 2)) < end:
        axis = axis.ljust(middle) + str(last // 2)
    if last:
        axis = axis.ljust(end) + str(last)
    unit = f"  {stride} depths a column" if stride > 1 else ""
    return [f"│{bars}│", axis + unit]


def _time(time: Mapping[str, Any]) -> str:
    return (
        f"{fixed(figure(time, 'decode_ms_per_token'), 2)} ms per token "
        f"({time['decode_steps']} steps); first token "
        f"{fixed(figure(time, 'prefill_ms', 'median'), 0)} ms "
        f"(p90 {fixed(figure(time, 'prefill_ms', 'p90'), 0)})"
    )


def _speedup(summary: Summary) -> list[str]:
    measured = cells.matched(summary)
    if measured is None:
        return _entry("speedup", cells.speedup(summary))
    prompts = measured["prompts"]
    lines = _entry(
        "speedup",
        f"{cells.speedup(summary)} in decode, "
        f"bound {fixed(figure(measured, 'bound_speedup'), 2)} "
        f"({prompts} prompt{'s' * (prompts != 1)} x {measured['tokens']} tokens)",
    )
    marks = cells.marks(summary)
    return [*lines, _one_line(" " * INDENT + "! " + ", ".join(marks), WIDTH)] if marks else lines


def _offload(offload: Mapping[str, Any]) -> str:
    steps = offload["decode_steps"]
    per_step = offload["fetched_layers"] / steps if steps else None
    return (
        f"layers {offload['after']}..{offload['layers'] - 1}, {offload['on_miss']}: miss rate "
        f"{percent(offload['miss_rate'])} %, {fixed(per_step, 2)} fetched a step; step "
        f"{fixed(offload['step_ms']['median'], 1)} ms, p99 {fixed(offload['step_ms']['p99'], 1)}; "
        f"prompts {offload['prefill']['fetched_layers']}"
    )


def _memory(summary: Summary) -> str:
    parts = [
        ("backbone", "backbone"),
        ("staging", "staging"),
        ("river", "river"),
        ("scratch", "scratch"),
        ("shared", "shared"),
        ("head", "head"),
        ("KV", "kv"),
    ]
    sizes = []
    for name, key in parts:
        size = figure(summary, "memory", f"{key}_bytes")
        # Of the head's own only where it is quantized; else it is one of the shared parts.
        if key in ("head", "staging") and not size:
            continue
        sizes.append(f"{name} {fixed(None if size is None else size / 2**20, 1)}")
    # Of a whole process, which the parts do not add up to.
    peak = figure(summary, "memory", "peak_bytes")
    return f"{', '.join(sizes)} MiB" + ("" if peak is None else f"; peak {peak / 2**20:.0f} MiB")


def _entry(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=name.ljust(INDENT),
        subsequent_indent=" " * INDENT,
        max_lines=2,
    )


def _one_line(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
