"""Run folders as a run leaves them, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def sample(index: int, **changes: Any) -> dict[str, Any]:
    """A line of samples.jsonl: three tokens, decode steps at depths 1 and 4, 20 ms each."""
    fields: dict[str, Any] = {
        "id": f"q{index}",
        "index": index,
        "prompt_hash": "0",
        "prompt_tokens": 9,
        "completion": f"text {index}",
        "token_ids": [1, 2, 3],
        "margins": [0.5, 0.5, 0.5],
        "extracted": "7",
        "correct": True,
        "detail": {},
        "finish_reason": "eos",
        "tokens_timed": 3,
        "tokens_kept": 2,
        "prefill_seconds": 0.125,
        "decode_seconds": 0.04,
        "prefill_depth": 4,
        "exit_depths": [1, 4],
        "exit_scores": [0.9, None],
        "block_lengths": {"1": 2},
        "commit": "abc",
    }
    return {**fields, **changes}


def summary(samples: int, **changes: Any) -> dict[str, Any]:
    """A summary of a four-layer model's run."""
    fields: dict[str, Any] = {
        "exp": "gsm_mini",
        "label": "GSM-mini",
        "model": "tiny",
        "method": "river",
        "arm": "river tau=0.5 sequence",
        "identity": "ab12cd34ef56",
        "samples": samples,
        "settings": {
            "engine": "eager",
            "method": {"name": "river", "prefill": "sequence"},
            "criterion": {"name": "similarity", "tau": 0.5},
        },
        "accuracy": {"value": 0.5, "low": 0.1, "high": 0.9, "graded": 2, "extra": {"strict": 0.5}},
        "cut_share": 0.0,
        "exit_depth": {"mean": 2.5, "layers": 4, "histogram": [0, 3, 0, 0, 3]},
        "prefill_depth": {"mean": 4.0},
        "time": {
            "decode_ms_per_token": 20.0,
            "prefill_ms": {"median": 125.0, "p90": 125.0},
            "decode_steps": 6,
            "tokens_timed": 9,
            "tokens_kept": 6,
        },
        "fidelity": None,
        "speedup": {
            "decode": {
                "matched": {
                    "value": 1.5,
                    "low": 1.25,
                    "high": 1.75,
                    "prompts": 2,
                    "bound_speedup": 2.0,
                    "mean_depth": 2.5,
                    "flags": ["one", "two"],
                }
            }
        },
        "memory": {"backbone_bytes": 100, "river_bytes": 25},
        "commits": ["abc"],
    }
    return {**fields, **changes}


def config(**changes: Any) -> dict[str, Any]:
    """The settings that config.json holds, with paths of somebody's machine."""
    fields: dict[str, Any] = {
        "exp": {"name": "gsm_mini", "max_new_tokens": 8},
        "model": {"name": "tiny", "path": "/home/somebody/models/tiny", "dtype": "fp32"},
        "method": {"name": "river", "prefill": "sequence", "pool": "last"},
        "criterion": {"name": "replay", "from_run": "/home/somebody/results/runs/x"},
        "quant": {"name": "hqq_int4", "group_size": 64},
        "engine": {"name": "auto", "threads": None},
        "data": {"path": "~/data/rows.jsonl", "fewshot_path": None},
        "output": {"dir": "/home/somebody/results"},
        "logger": {"name": "wandb", "mode": "offline", "project": "mine"},
        "resume": {"force": False},
        "seed": 0,
    }
    return {**fields, **changes}


def save(folder: Path, samples: list[dict[str, Any]], **changes: Any) -> Path:
    """Writes a finished run; `changes` are those of its summary."""
    folder.mkdir(parents=True)
    lines = [json.dumps(row) + "\n" for row in samples]
    (folder / "samples.jsonl").write_text("".join(lines), "utf-8")
    contents: dict[str, Any] = {
        "summary.json": summary(len(samples), **changes),
        "config.json": config(),
        "environment.json": [{"device": "cpu", "threads": 1}, {"device": "cpu", "threads": 2}],
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content), "utf-8")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Everything in a folder, to be compared with later."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
