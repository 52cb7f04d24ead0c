"""The summary of one run, computed from its sample records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import numpy as np

from river_llm.analysis.statistics import wilson_interval
from river_llm.errors import UserError

Record = Mapping[str, Any]


def summarize(samples: Iterable[Record], *, header: Mapping[str, Any]) -> dict[str, Any]:
    """Build the summary of one run.

    Every mean of a time is a ratio of sums, so that a sample counts by its length. What cannot be
    computed (no samples, nothing graded, no decode steps) is None, never NaN and never 0.

    Args:
        samples: Sample records of the run: correct (bool or None), detail, finish_reason,
            tokens_timed, tokens_kept, prefill_seconds, decode_seconds, prefill_depth and
            exit_depths (one depth in 0..layers for each decode step) are read.
        header: What the records do not hold: exp, label, model, method, arm, identity, settings,
            layers (L of the model), fidelity, speedup and memory; the last three may be None.
            offload may be there, see river_llm.analysis.offload.

    Returns:
        A dict that json.dumps(..., allow_nan=False) accepts. Its keys: those of the header
        (layers under exit_depth), samples, problems (of the task; None where the header does not
        say), accuracy, cut_share, exit_depth, prefill_depth, time.

    Raises:
        UserError: An exit depth outside 0..layers.
    """
    records = list(samples)
    layers = int(header["layers"])
    return {
        **{key: header[key] for key in ("exp", "label", "model", "method", "arm", "identity")},
        "samples": len(records),
        "problems": header.get("problems"),
        "settings": header["settings"],
        "accuracy": _accuracy(records),
        "cut_share": _mean([record["finish_reason"] == "length" for record in records]),
        "exit_depth": _exit_depth(records, layers),
        "prefill_depth": {"mean": _mean([record["prefill_depth"] for record in records])},
        "time": _time(records),
        "fidelity": _finite(header["fidelity"]),
        "speedup": _finite(header["speedup"]),
        "memory": _finite(header["memory"]),
        "offload": _finite(header.get("offload")),
    }


def _accuracy(records: list[Record]) -> dict[str, Any]:
    verdicts = [record["correct"] for record in records if record["correct"] is not None]
    low, high = wilson_interval(sum(verdicts), len(verdicts))
    marks: dict[str, list[bool]] = {}
    for record in records:
        for name, mark in (record["detail"] or {}).items():
            if isinstance(mark, bool):
                marks.setdefault(name, []).append(mark)
    return {
        "value": _mean(verdicts),
        "low": low,
        "high": high,
        "graded": len(verdicts),
        "extra": {name: _mean(values) for name, values in marks.items()},
    }


def _exit_depth(records: list[Record], layers: int) -> dict[str, Any]:
    for record in records:
        for depth in record["exit_depths"]:
            if not 0 <= depth <= layers:
                raise UserError(
                    f"sample {record['id']!r}: exit depth {depth} lies outside 0..{layers}; "
                    "the records are of another model, give the run a new folder"
                )
    depths = [depth for record in records for depth in record["exit_depths"]]
    counts = np.bincount(np.asarray(depths, dtype=np.int64), minlength=layers + 1)
    return {"mean": _mean(depths), "layers": layers, "histogram": counts.tolist()}


def _time(records: list[Record]) -> dict[str, Any]:
    steps = sum(len(record["exit_depths"]) for record in records)
    seconds = sum(record["decode_seconds"] for record in records)
    prefill_ms = [1000 * record["prefill_seconds"] for record in records]
    median, p90 = np.quantile(prefill_ms, [0.5, 0.9]).tolist() if prefill_ms else (None, None)
    return {
        "decode_ms_per_token": 1000 * seconds / steps if steps else None,
        "prefill_ms": {"median": median, "p90": p90},
        "decode_steps": steps,
        "tokens_timed": sum(record["tokens_timed"] for record in records),
        "tokens_kept": sum(record["tokens_kept"] for record in records),
    }


def _mean(values: list[Any]) -> float | None:
    return sum(values) / len(values) if values else None


def _finite(value: Any) -> Any:
    """The same figures with None in place of NaN and infinity, which JSON does not know."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
