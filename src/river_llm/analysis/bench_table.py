"""The table of a decode benchmark, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from river_llm.analysis.bench_figures import KINDS, Arms, clocks_apart

_HEAD = (
    "Arm",
    "ms/token [quartiles]",
    "bound ms",
    "share",
    "GB/s",
    "MB/token",
    "/".join(KINDS),
    "prefill ms",
    "vs no_exit",
    "vs eager",
    "vs hf",
)
MISSING = "n/a"


def bench_report(line: Mapping[str, Any], contexts: Mapping[int, Arms]) -> str:
    """Tables of all contexts, with what holds for all of them.

    Args:
        line: the object that ends the benchmark's output.
        contexts: figures of each context's arms, by length of the prompt.
    """
    parts = [
        f"{line['model']}, engine {line['engine']}, {line['threads']} threads, memory read at "
        f"{line['bandwidth_gb_per_s']:.1f} GB/s, {line['compile_seconds']:.1f} s of compiling"
    ]
    shown = line.get("contexts", {str(line["context"]): line})
    for context, arms in contexts.items():
        parts.append(
            f"Context {context}, {line['rounds']} rounds of {line['steps']} decode steps:\n\n"
            + bench_table(arms)
        )
        parts += _notes(arms)
        if dropped := shown[str(context)].get("dropped"):
            parts.append(f"Dropped, since time was up: {', '.join(dropped)}")
        if alone := shown[str(context)]["hf_alone"]:
            parts.append(
                f"transformers alone in a process of its own ({alone['cache']} cache): "
                f"{alone['ms_per_token']:.2f} [{alone['q1']:.2f}, {alone['q3']:.2f}] ms/token"
                + (
                    f"; hf_generate took {alone['hf_generate_ratio']:.3f} of that"
                    if alone["hf_generate_ratio"] is not None
                    else ""
                )
            )
    if linears := line.get("linears"):
        parts.append(
            "The linears alone, one token, each layer's in turn:\n\n" + linear_table(linears)
        )
    return "\n\n".join(parts)


def _notes(arms: Arms) -> list[str]:
    """What else the rows of one context say."""
    notes = []
    shares = [(n, a["test_share"]) for n, a in arms.items() if "test_share" in a]
    for name, arm in arms.items():
        if "test_us" in arm:
            notes.append(
                f"Exit test: {arm['test_us']:.1f} [{arm['test_us_q1']:.1f}, "
                f"{arm['test_us_q3']:.1f}] us each ({name} less no_exit)"
                + "".join(f"; {share:.1%} of a step of {river}" for river, share in shares)
            )
    for name, ratio in clocks_apart(arms).items():
        notes.append(
            f"CLOCKS APART: {name} took {ratio:.3f} of the wall clock's time by CUDA events; its "
            "time is not to be trusted"
        )
    return notes


def linear_table(linears: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """One row per linear: shape, and the rate at which each stack's are read."""
    head = ("Linear", "out x in", *(f"{stack} GB/s" for stack in linears))
    first = next(iter(linears.values()))
    rows = [
        (
            name,
            f"{shape['rows']} x {shape['columns']}",
            *(f"{stack[name]['gb_per_s']:.1f}" for stack in linears.values()),
        )
        for name, shape in first.items()
    ]
    return _aligned([head, ("---", *("---:",) * (len(head) - 1)), *rows])


def bench_table(arms: Arms) -> str:
    """One row per arm; ratios are times over the reference's, below 1 is faster."""
    rows = [_HEAD, ("---",) + ("---:",) * (len(_HEAD) - 1)]
    rows += [_row(name, arm) for name, arm in arms.items()]
    return _aligned(rows)


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "| "
        + " | ".join(_fill(cell, width) for cell, width in zip(row, widths, strict=True))
        + " |"
        for row in rows
    )


def _fill(cell: str, width: int) -> str:
    return (
        cell.replace("---", "-" * (width - len(cell) + 3)) if "---" in cell else cell.ljust(width)
    )


def _row(name: str, arm: Mapping[str, Any]) -> tuple[str, ...]:
    shown = f"{name} ({arm['cache']} cache)" if arm.get("cache") else name
    if "dequantized" in arm.get("backends", ()):
        # No kernel could serve: neither smaller nor faster than the backbone.
        shown += " (dequantized)"
    kinds = arm["bytes"]
    return (
        shown,
        f"{arm['ms_per_token']:.2f} [{arm['q1']:.2f}, {arm['q3']:.2f}]",
        _number(arm["bound_ms"], 2),
        _number(arm["bound_share"], 3),
        _number(arm["gb_per_s"], 1),
        MISSING if kinds is None else f"{kinds['total'] / 1e6:.1f}",
        MISSING if kinds is None else "/".join(f"{kinds[kind] / 1e6:.1f}" for kind in KINDS),
        _number(arm["prefill_ms"], 0),
        *(_number(arm[key], 3) for key in ("vs_no_exit", "vs_eager", "vs_hf")),
    )


def _number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"
