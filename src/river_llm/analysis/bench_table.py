"""The table of a decode benchmark, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from river_llm.analysis.bench_figures import KINDS, Arms

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
    return "\n\n".join(parts)


def bench_table(arms: Arms) -> str:
    """One row per arm; ratios are times over the reference's, below 1 is faster."""
    rows = [_HEAD, ("---",) + ("---:",) * (len(_HEAD) - 1)]
    rows += [_row(name, arm) for name, arm in arms.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
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
