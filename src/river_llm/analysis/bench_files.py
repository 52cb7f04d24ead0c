"""Saved benchmarks: reading bench.json back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from river_llm.analysis.bench_figures import Arms
from river_llm.errors import UserError


def read_bench(path: Path) -> tuple[dict[str, Any], dict[int, Arms]]:
    """The record of a benchmark, and the figures of its arms by length of the prompt.

    Args:
        path: of bench.json.

    Raises:
        UserError: no such file, or it is none of a benchmark.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        shown = record.get("contexts", {str(record["context"]): record})
        return record, {int(length): context["arms"] for length, context in shown.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no bench.json of scripts/bench_decode.py: {error!r}") from error


def plot_bench(path: Path) -> Path:
    """Draws decode.png beside a bench.json.

    Raises:
        UserError: the file is not there, or holds no benchmark.
    """
    # Imported late: reading needs no matplotlib.
    from river_llm.analysis.bench_plot import decode_plot

    record, contexts = read_bench(path)
    picture = path.with_name("decode.png")
    subtitle = (
        f"{record['model']}, {record['settings']['dtype']}, engine {record['engine']}, "
        f"{device_words(record)}, {record['bandwidth_gb_per_s']:.1f} GB/s; medians and "
        f"quartiles of {record['rounds']} rounds"
    )
    decode_plot(contexts, record["layers"], subtitle, picture)
    return picture


def device_words(record: dict[str, Any]) -> str:
    """What a benchmark ran on: the GPU's name, or how many threads."""
    return record["environment"]["device_name"] or f"{record['threads']} threads"
