"""Invented records and summaries for the tests of the analysis package."""

from __future__ import annotations

from typing import Any


def record(**changes: Any) -> dict[str, Any]:
    """One sample record; every field can be replaced."""
    fields: dict[str, Any] = {
        "id": "a",
        "index": 0,
        "prompt_hash": "0",
        "prompt_tokens": 9,
        "completion": "",
        "token_ids": [],
        "extracted": None,
        "correct": True,
        "detail": {},
        "finish_reason": "eos",
        "tokens_timed": 3,
        "tokens_kept": 2,
        "prefill_seconds": 0.1,
        "decode_seconds": 0.3,
        "prefill_depth": 2,
        "exit_depths": [1, 2, 4],
        "exit_scores": [None, None, None],
    }
    return {**fields, **changes}


def header(**changes: Any) -> dict[str, Any]:
    """The header of a run of a four-layer model without fidelity and speedup."""
    fields: dict[str, Any] = {
        "exp": "gsm_mini",
        "label": "GSM-mini",
        "model": "tiny",
        "method": "river",
        "arm": "river tau=0.5 sequence",
        "identity": "ab12cd34",
        "settings": {"engine": "eager"},
        "layers": 4,
        "fidelity": None,
        "speedup": {"decode": {"matched": None}},
        "memory": {"backbone_bytes": 2**21, "river_bytes": 2**20, "shared_bytes": 0},
    }
    return {**fields, **changes}


def matched(value: float | None, **changes: Any) -> dict[str, Any]:
    """A speedup block with one matched measurement."""
    fields: dict[str, Any] = {
        "value": value,
        "low": None if value is None else value - 0.1,
        "high": None if value is None else value + 0.1,
        "prompts": 2,
        "tokens": 32,
        "rounds": 1,
        "bound_speedup": 2.0,
        "flags": [],
    }
    return {"decode": {"matched": {**fields, **changes}}}


def fidelity(agreement: float | None = 0.9, **changes: Any) -> dict[str, Any]:
    """A fidelity block over 320 tokens."""
    fields: dict[str, Any] = {
        "samples": 5,
        "tokens": 320,
        "agreement": agreement,
        "excess_nll": 0.05,
        "equal_answers": {"value": 0.8, "samples": 5, "both_empty": 0, "reason": None},
        "noise_floor": {"agreement": 0.987, "excess_nll": 0.0001},
    }
    return {**fields, **changes}


def summary(**changes: Any) -> dict[str, Any]:
    """A complete summary of five samples, one of them right."""
    fields: dict[str, Any] = {
        **{key: value for key, value in header().items() if key != "layers"},
        "samples": 5,
        "accuracy": {"value": 0.2, "low": 0.036, "high": 0.624, "graded": 5, "extra": {}},
        "cut_share": 0.4,
        "exit_depth": {"mean": 3.06, "layers": 30, "histogram": [0, 0, 0, 620, *[0] * 25, 15, 5]},
        "prefill_depth": {"mean": 2.0},
        "time": {
            "decode_ms_per_token": 20.128,
            "prefill_ms": {"median": 123.44, "p90": 150.2},
            "decode_steps": 640,
            "tokens_timed": 640,
            "tokens_kept": 630,
        },
        "fidelity": fidelity(),
        "speedup": matched(1.8),
        "memory": {
            "backbone_bytes": 200 * 2**20,
            "river_bytes": 60 * 2**20,
            "scratch_bytes": 7 * 2**20,
            "shared_bytes": 54 * 2**20,
            "kv_bytes": 3 * 2**19,
        },
    }
    return {**fields, **changes}


NOT_GRADED = {"value": None, "low": None, "high": None, "graded": 0, "extra": {}}
