"""What offloading part of the backbone cost a run, and what memory it should need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from river_llm.errors import UserError

FULL_QUANT_PARTS = ("river", "scratch", "shared", "head", "kv")
"""What full_quant keeps in memory."""

MIB = 2**20


def summarize_offload(
    setting: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    fetches: Mapping[str, Mapping[str, Any]],
    memory: Mapping[str, Any],
) -> dict[str, Any]:
    """The part `offload` of a run's summary; its keys are told in docs/records.md.

    Args:
        setting: `after`, `on_miss`, `layers` (L) and `layer_bytes`.
        records: the run's samples.
        fetches: lines of offload.jsonl by sample id.
        memory: bytes of the parts, and `tensor_bytes` where a process of its own measured them.

    Raises:
        UserError: a sample without its line.
    """
    rows = []
    for record in records:
        row = fetches.get(record["id"])
        if row is None or len(row["fetched"]) != len(record["exit_depths"]):
            raise UserError(
                f"offload.jsonl lacks what sample {record['id']} fetched: move the folder away"
            )
        rows.append(row)
    held_back = setting["on_miss"] == "exit_at_k"
    missed = [
        depth == setting["after"] if held_back else bool(miss)
        for record, row in zip(records, rows, strict=True)
        for depth, miss in zip(record["exit_depths"], row["missed"], strict=True)
    ]
    fetched = sum(sum(row["fetched"]) for row in rows)
    in_prefill = sum(row["prefill_fetched"] for row in rows)
    step_ms = [1000 * seconds for row in rows for seconds in row["step_seconds"]]
    prefill_ms = [1000 * record["prefill_seconds"] for record in records]
    return {
        **setting,
        "decode_steps": len(missed),
        "miss_rate": sum(missed) / len(missed) if missed else None,
        "fetched_layers": fetched,
        "fetched_bytes": fetched * setting["layer_bytes"],
        "step_ms": _quantiles(step_ms, {"median": 0.5, "p99": 0.99}),
        "prefill": {
            "fetched_layers": in_prefill,
            "fetched_bytes": in_prefill * setting["layer_bytes"],
            "ms": _quantiles(prefill_ms, {"median": 0.5, "p90": 0.9}),
        },
        "memory": predicted_memory(memory),
    }


def predicted_memory(memory: Mapping[str, Any]) -> dict[str, Any]:
    """What stays in device memory: full_quant's parts, resident backbone layers, staging layers.

    Args:
        memory: bytes of the parts, and `tensor_bytes`, which may be None.
    """
    parts = {
        "full_quant_bytes": sum(memory[f"{part}_bytes"] for part in FULL_QUANT_PARTS),
        "resident_bytes": memory["backbone_bytes"],
        "staging_bytes": memory["staging_bytes"],
    }
    return {
        **parts,
        "predicted_bytes": sum(parts.values()),
        "measured_bytes": memory.get("tensor_bytes"),
    }


def memory_words(offload: Mapping[str, Any]) -> str:
    """The prediction as a sum, and what was measured beside it."""
    memory = offload["memory"]
    full, resident, staging, total = (
        f"{memory[f'{part}_bytes'] / MIB:.1f}"
        for part in ("full_quant", "resident", "staging", "predicted")
    )
    words = (
        f"{full} full_quant + {resident} layers 0..{offload['after'] - 1} + {staging} two staging "
        f"layers = {total} MiB"
        if offload["after"]
        else f"{full} full_quant + {staging} two staging layers = {total} MiB"
    )
    measured = memory["measured_bytes"]
    if measured is None:
        return words
    off = measured / memory["predicted_bytes"] - 1
    return f"{words}; tensors of its own process {measured / MIB:.1f} ({off:+.1%})"


def _quantiles(values: Sequence[float], wanted: Mapping[str, float]) -> dict[str, float | None]:
    return {
        name: float(np.quantile(values, share)) if values else None
        for name, share in wanted.items()
    }
