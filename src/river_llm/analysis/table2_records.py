"""Table 2 as data: one row per run, plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from river_llm.analysis.cells import figure, pick
from river_llm.analysis.points import Estimate, estimate
from river_llm.analysis.table2_frames import (
    REFERENCES,
    flags,
    measured_speedup,
    paper_figures,
    parts_bytes,
)
from river_llm.analysis.table2_rows import Block, Row


def records_frame(blocks: Sequence[Block]) -> pd.DataFrame:
    """One row per finished run; what was not measured is empty."""
    frame = pd.DataFrame(
        [_record(block, row) for block in blocks for row in block.rows if row.summary is not None]
    )
    # Else a count with an empty cell in its column would be written as a float.
    return frame.convert_dtypes()


def _record(block: Block, row: Row) -> dict[str, Any]:
    summary = row.summary
    settings = pick(summary, "settings")
    fidelity = pick(summary, "fidelity")
    accuracy = _percent(estimate(pick(summary, "accuracy"), "value", ""))
    difference = row.difference
    record = {
        "model": block.model,
        "task": block.exp,
        "task_label": pick(summary, "label"),
        "protocol": block.protocol or None,
        "run": row.name,
        "identity": pick(summary, "identity"),
        "commits": " ".join(pick(summary, "commits") or []),
        "method": pick(summary, "method"),
        "prefill": pick(settings, "prefill"),
        "criterion": pick(settings, "criterion", "name"),
        "tau": pick(settings, "criterion", "tau"),
        "k_layers": pick(settings, "method", "k"),
        "quantizer": pick(settings, "quant", "name"),
        "quantizer_bits": pick(settings, "quant", "bits"),
        "quantizer_group_size": pick(settings, "quant", "group_size"),
        "engine": pick(settings, "engine"),
        "dtype": pick(settings, "dtype"),
        "fewshot": pick(settings, "fewshot"),
        "max_new_tokens": pick(settings, "max_new_tokens"),
        "samples": pick(summary, "samples"),
        "graded_samples": pick(summary, "accuracy", "graded"),
        **_ends("accuracy", "_percent", accuracy),
        "paired_samples": None if difference is None else difference.pairs,
        "right_to_wrong_samples": None if difference is None else difference.lost,
        "wrong_to_right_samples": None if difference is None else difference.gained,
        **_ends(
            "accuracy_minus_no_exit",
            "_points",
            Estimate(None) if difference is None else difference.points,
        ),
        "mcnemar_p": None if difference is None else difference.p,
        "layers": pick(summary, "exit_depth", "layers"),
        "mean_exit_depth_layers": figure(summary, "exit_depth", "mean"),
        "mean_prefill_depth_layers": figure(summary, "prefill_depth", "mean"),
        "timed_mean_exit_depth_layers": row.timed_depth,
        "decode_ms_per_token": figure(summary, "time", "decode_ms_per_token"),
    }
    for against in REFERENCES:
        measured = measured_speedup(row, against)
        record |= _ends(f"speedup_{against}", "", estimate(measured, "value", ""))
        record[f"speedup_{against}_prompts"] = pick(measured, "prompts")
        record[f"speedup_{against}_tokens_per_prompt"] = pick(measured, "tokens")
    record["bound_speedup"] = figure(measured_speedup(row, "matched"), "bound_speedup")
    record["speedup_flags"] = "; ".join(flags(row)) or None
    record |= {
        "peak_memory_bytes": figure(summary, "memory", "peak_bytes"),
        "weights_and_kv_bytes": parts_bytes(summary),
        "fidelity_texts": pick(fidelity, "samples"),
        "fidelity_tokens": pick(fidelity, "tokens"),
        **_ends("agreement", "_percent", _percent(estimate(fidelity, "agreement"))),
        **_ends("excess_nll", "_nats_per_token", estimate(fidelity, "excess_nll")),
    }
    for name, key in (("hf", "noise_floor"), ("engine", "engine_noise_floor")):
        floor = pick(fidelity, key)
        share = _percent(Estimate(figure(floor, "agreement")))
        record[f"{name}_noise_floor_agreement_percent"] = share.value
        record[f"{name}_noise_floor_excess_nll_nats_per_token"] = figure(floor, "excess_nll")
    paper_accuracy, paper_speedup = paper_figures(block, row)
    speed = figure(measured_speedup(row, "matched"), "value")
    record["paper_accuracy_percent"] = paper_accuracy
    record["accuracy_minus_paper_points"] = _minus(accuracy.value, paper_accuracy)
    record["paper_speedup"] = paper_speedup
    record["speedup_minus_paper"] = _minus(speed, paper_speedup)
    return record


def _ends(name: str, unit: str, value: Estimate) -> dict[str, float | None]:
    return {
        f"{name}{unit}": value.value,
        f"{name}_low{unit}": value.low,
        f"{name}_high{unit}": value.high,
    }


def _percent(share: Estimate) -> Estimate:
    return Estimate(*(None if part is None else 100 * part for part in share))


def _minus(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours - theirs
