"""Invented records of a model of four layers, as the project itself writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from river_llm.analysis.kv import (
    ENTRIES,
    FULL_QUANT,
    LAYER_ALONE,
    LAYERS,
    OTHER_TOKEN,
    RIVER,
    SUMMARY,
    summarize_kv,
)
from river_llm.analysis.summary import summarize
from river_llm.evaluation.oracle_depth import depth_frame, summarize_depths
from river_llm.evaluation.traffic import Traffic
from river_llm.models.adapter import BackboneAdapter
from river_llm.records import FORCED_SCORES, RunFolder, SampleRecord, write_json
from tiny import tiny_model

DEPTH = 4
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ENVIRONMENT = {"device_name": None, "processor": "Abacus(R) 9 CPU @ 1 Hz", "threads": 2}
HEADER = {"exp": "gsm_mini", "label": "GSM-mini", "model": "tiny", "commit": COMMIT}
# Exit depths on no_exit's text: 8 of 4 steps, mean 2.5; the second text is shorter.
RIVER_DEPTHS = {"a": [1, 2, 2, 4, 3], "b": [4, 1, 3]}
RIGHT = {"a": True, "b": False}
# Predictions at depths 1..4: oracle 2, 3 and 4, first hit 2, 1 and 4.
PREDICTED = {"a": np.array([[1, 9, 9, 9], [9, 1, 9, 9]]), "b": np.array([[1, 1, 1, 9]])}
# Of three tokens, the same in both texts: less their means (-1, 0, 1) and (-1, 1, 0), r = 1 / 2.
EARLY, LAST = [0.2, 0.4, 0.6], [0.7, 0.9, 0.8]


def write_runs(results: Path) -> None:
    """no_exit, full_quant and River at one threshold."""
    settings = {"engine": "eager", "dtype": "fp32"}
    similarity = {"name": "similarity", "tau": 0.5, "min_depth": 1, "max_depth": None}
    _run(results, "no_exit", "no_exit", settings, {key: [4, 4] for key in RIGHT}, 4, 1.0)
    _run(results, "full_quant", "full_quant", settings, {key: [0, 0] for key in RIGHT}, 0, 1.9)
    river = {**settings, "prefill": "sequence", "criterion": similarity}
    _run(results, "river", "river tau=0.5 sequence", river, RIVER_DEPTHS, 3, 1.5)


def _run(
    results: Path,
    method: str,
    arm: str,
    settings: dict[str, Any],
    depths: dict[str, list[int]],
    prefill_depth: int,
    speedup: float,
) -> None:
    folder = RunFolder(results / "runs" / "gsm_mini" / "tiny" / f"{method}-ab12cd34")
    with folder.locked():
        for index, (key, own) in enumerate(depths.items()):
            folder.append(_sample(key, index, own, prefill_depth))
        samples = folder.samples()
        folder.write_steps(samples)
    folder.write_json("environment.json", [ENVIRONMENT])
    folder.write_json(
        FORCED_SCORES,
        {
            "tokens": 6,
            "no_exit_run": "no_exit-ab12cd34",
            "samples": {
                key: {
                    "prefill_depth": prefill_depth,
                    "equal": [True] * len(own) + [method == "no_exit"],
                    "nll": [0.1] * (len(own) + 1),
                    "excess_nll": [0.0] * (len(own) + 1),
                    "depths": own,
                }
                for key, own in depths.items()
            },
        },
    )
    agreement = 1.0 if method == "no_exit" else 0.8
    fidelity = {
        "samples": 2,
        "tokens": 10,
        "agreement": agreement,
        "agreement_low": agreement - 0.1,
        "agreement_high": agreement,
        "excess_nll": 0.05,
        "excess_nll_low": 0.04,
        "excess_nll_high": 0.06,
        "noise_floor": {"agreement": 0.95, "excess_nll": 0.001},
        "equal_answers": None,
        "no_exit_run": "no_exit-ab12cd34",
    }
    matched = {
        "value": speedup,
        "low": speedup - 0.1,
        "high": speedup + 0.1,
        "prompts": 2,
        "tokens": 6,
        "rounds": 1,
        "bound_speedup": 2.0,
        "flags": [],
    }
    header = {
        **HEADER,
        "method": method,
        "arm": arm,
        "identity": "ab12cd34",
        "settings": settings,
        "layers": DEPTH,
        "fidelity": fidelity,
        "speedup": {"decode": {"matched": matched}},
        "memory": {"backbone_bytes": 1, "river_bytes": 1, "shared_bytes": 1, "kv_bytes": 1},
    }
    records = [vars(sample) for sample in samples]
    folder.write_json("summary.json", {**summarize(records, header=header), "commits": [COMMIT]})


def _sample(key: str, index: int, depths: list[int], prefill_depth: int) -> SampleRecord:
    count = len(depths) + 1
    return SampleRecord(
        id=key,
        index=index,
        prompt_hash="0",
        prompt_tokens=9,
        completion="",
        token_ids=[5] * count,
        margins=[1.0] * count,
        extracted=None,
        correct=RIGHT[key],
        detail={},
        finish_reason="eos",
        tokens_timed=count,
        tokens_kept=count,
        prefill_seconds=0.1,
        decode_seconds=0.01 * len(depths),
        prefill_depth=prefill_depth,
        exit_depths=depths,
        exit_scores=[None] * len(depths),
        block_lengths={"1": len(depths)},
        commit=COMMIT,
    )


def write_oracle(results: Path) -> None:
    """A record of oracle depth: three steps of two texts."""
    folder = _analysis(results, "oracle_depth")
    frame = depth_frame(PREDICTED)
    traffic = Traffic(BackboneAdapter(tiny_model("llama")), None)
    figures = summarize_depths(frame, DEPTH, traffic, {"a": 9, "b": 9})
    frame.to_parquet(folder / "steps.parquet", index=False)
    write_json(folder / SUMMARY, {**_head(), **figures})


def write_kv(results: Path) -> None:
    """A record of KV similarity: three tokens in each of two texts, a river run at depth 1."""
    folder = _analysis(results, "kv")
    layers, entries = [], []
    for key in RIGHT:
        for step, (early, last) in enumerate(zip(EARLY, LAST, strict=True)):
            for layer in range(DEPTH):
                place = {"id": key, "step": step, "layer": layer}
                layers.append({**place, "similarity": early if layer == 0 else 0.9})
                value = last if layer == DEPTH - 1 else 1.0
                for arm, depth, prefill in (
                    (OTHER_TOKEN, DEPTH, ""),
                    (LAYER_ALONE, 0, ""),
                    (FULL_QUANT, 0, "sequence"),
                    (RIVER, 1, "backbone"),
                    (RIVER, 1, "sequence"),
                ):
                    named = {"arm": arm, "depth": depth, "prefill": prefill}
                    cosines = {"key_cosine": 0.99, "value_cosine": value}
                    entries.append({**named, **place, **cosines})
    tables = pd.DataFrame(layers), pd.DataFrame(entries)
    for table, name in zip(tables, (LAYERS, ENTRIES), strict=True):
        table.to_parquet(folder / name, index=False)
    write_json(folder / SUMMARY, {**_head(), **summarize_kv(*tables)})


def _analysis(results: Path, kind: str) -> Path:
    folder = results / "analysis" / kind / "gsm_mini-tiny"
    folder.mkdir(parents=True)
    return folder


def _head() -> dict[str, Any]:
    return {**HEADER, "settings": {}, "environment": ENVIRONMENT}
