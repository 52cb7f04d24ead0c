"""Invented runs on disk for the tests of Table 2: samples, summary, environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from invented import record, summary

from river_llm.analysis.saved import SavedRuns, saved_runs
from river_llm.records import RunFolder, SampleRecord

LAYERS = 30
HQQ = {"name": "hqq_int4", "group_size": 64, "bits": 4}
RTN8 = {"name": "rtn_int8", "bits": 8}
ENVIRONMENT = {
    "processor": "Abacus 3",
    "cores": 2,
    "threads": 1,
    "device_name": None,
    "packages": {"torch": "2.13.0"},
}


def speeds(value: float | None, **others: dict[str, Any]) -> dict[str, Any]:
    """A speedup block; the matched one has an interval of 0.1 to each side."""
    if value is None:
        return {"decode": {"matched": None, **others}}
    ends = {"value": value, "low": value - 0.1, "high": value + 0.1}
    size = {"prompts": 8, "tokens": 32, "rounds": 1}
    own = {**ends, **size, "mean_depth": 3.0, "bound_speedup": 2.0, "flags": []}
    return {"decode": {"matched": own, **others}}


def save(
    root: Path,
    identity: str,
    method: str,
    verdicts: Sequence[bool | None],
    *,
    settings: dict[str, Any] | None = None,
    prompt: str = "p",
    depth: float = 3.0,
    **changes: Any,
) -> Path:
    """Writes a finished run: one sample per verdict, named by its place.

    Args:
        root: for all runs of a test.
        identity: of the run.
        method: its method.
        verdicts: of the samples.
        settings: beside engine, dtype and method; a quantizer is the default one.
        prompt: start of the samples' prompt hashes.
        depth: mean exit depth.
        changes: of the summary.
    """
    folder = RunFolder(root / f"{method}-{identity}")
    folder.path.mkdir(parents=True)
    folder.rewrite(
        [
            SampleRecord(
                **record(
                    id=str(i), index=i, correct=verdict, prompt_hash=f"{prompt}{i}", margins=[]
                ),
                block_lengths={},
                commit="abc",
            )
            for i, verdict in enumerate(verdicts)
        ]
    )
    graded = [verdict for verdict in verdicts if verdict is not None]
    share = sum(graded) / len(graded) if graded else None
    ends = {} if share is None else {"low": max(share - 0.1, 0), "high": min(share + 0.1, 1)}
    quant = {} if method == "no_exit" else {"quant": HQQ}
    content = summary(
        exp="gsm8k",
        label="GSM8K",
        model="llama3.2_1b",
        method=method,
        arm=method,
        identity=identity,
        settings={
            "engine": "compiled",
            "dtype": "bf16",
            "method": {"name": method},
            **quant,
            **(settings or {}),
        },
        samples=len(verdicts),
        accuracy={"value": share, "low": None, "high": None, "graded": len(graded), **ends},
        exit_depth={"mean": depth if verdicts else None, "layers": LAYERS, "histogram": []},
        speedup=speeds(1.5),
        commits=["abc"],
    )
    folder.write_json("summary.json", {**content, **changes})
    folder.write_json("environment.json", [ENVIRONMENT])
    return folder.path


def river(tau: float, prefill: str = "sequence", **changes: Any) -> dict[str, Any]:
    """Settings of a River run with the similarity criterion."""
    criterion = {"name": "similarity", "tau": tau, "min_depth": 1, "max_depth": None}
    return {"prefill": prefill, "criterion": {**criterion, **changes}}


def found(root: Path) -> SavedRuns:
    """All runs below a folder, by name."""
    return saved_runs(sorted(path.parent for path in root.rglob("summary.json")))


def write_sweep(folder: Path, cells: Sequence[tuple[list[str], Path | None, str | None]]) -> Path:
    """A sweep.json of cells given as overrides, run folder and reason."""
    folder.mkdir(parents=True)
    content = [
        {
            "overrides": overrides,
            "status": "finished" if run_dir else "failed" if reason else "waiting",
            "run_dir": None if run_dir is None else str(run_dir),
            "reason": reason,
        }
        for overrides, run_dir, reason in cells
    ]
    (folder / "sweep.json").write_text(json.dumps({"name": "x", "cells": content}))
    return folder
