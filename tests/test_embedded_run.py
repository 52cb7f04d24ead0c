"""The embedded model end to end: real weights, 4-bit kernels, both tasks that need no hub."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest
from torch import float32

from river_llm.composition import load_config
from river_llm.evaluation.run import execute
from river_llm.evaluation.runtime import Runtime

TOKENS = 24
SIZES = [
    "limit=2",
    f"exp.max_new_tokens={TOKENS}",
    "speedup.prompts=1",
    "speedup.tokens=8",
    "fidelity.limit=2",
    "fidelity.tokens=12",
]


@pytest.fixture(scope="module")
def runtime():
    return Runtime.load(load_config(["exp=gsm_mini"]))


@pytest.fixture(scope="module", params=["gsm_mini", "humaneval"])
def finished(request, runtime, tmp_path_factory):
    output = tmp_path_factory.mktemp("results")
    task = [f"exp={request.param}", f"output.dir={output}", *SIZES]
    if request.param == "humaneval":
        task += ["exp.allow_code_execution=true", "exp.sandbox=process"]
    return execute(load_config([*task, "method=river", "criterion.tau=0.9"]), runtime)


def test_the_river_runs_on_4_bit_kernels(finished):
    (start,) = json.loads((finished.folder / "environment.json").read_text())
    assert start["linears_per_backend"] == {"int4_cpu": 210}
    # 106.2 million weights at 4 bits, and 32 bits of scale and zero for each 64 of them.
    weights = 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576)
    assert finished.summary["memory"]["river_bytes"] == weights // 2 + weights // 64 * 4
    assert finished.summary["memory"]["backbone_bytes"] == weights * 2


def test_samples_are_generated_graded_and_traced(finished):
    lines = (finished.folder / "samples.jsonl").read_text().splitlines()
    assert len(lines) == 2
    for line in lines:
        record = json.loads(line)
        assert record["completion"].strip()
        assert record["correct"] in (True, False)
        assert len(record["token_ids"]) == record["tokens_timed"] <= TOKENS
        assert len(record["exit_depths"]) == record["tokens_timed"] - 1
        assert all(0 < depth <= 30 for depth in record["exit_depths"])
        assert all(-1 <= score <= 1 for score in record["exit_scores"])
        assert record["prefill_seconds"] > 0
        assert record["decode_seconds"] > 0
    steps = pd.read_parquet(finished.folder / "steps.parquet")
    assert len(steps) == sum(json.loads(line)["tokens_timed"] - 1 for line in lines)


def test_the_summary_holds_what_was_measured(finished):
    summary = finished.summary
    assert summary["samples"] == summary["accuracy"]["graded"] == 2
    assert summary["problems"] == {"gsm_mini": 50, "humaneval": 164}[summary["exp"]]
    assert sum(summary["exit_depth"]["histogram"]) == summary["time"]["decode_steps"]
    fidelity = summary["fidelity"]
    assert fidelity["tokens"] == 24
    assert fidelity["noise_floor"]["agreement"] >= 0.9
    assert 0 < fidelity["agreement"] <= 1
    assert fidelity["excess_nll"] > fidelity["noise_floor"]["excess_nll"]
    speedup = summary["speedup"]["decode"]["matched"]
    assert speedup["value"] > 0
    assert 1.5 < speedup["bound_speedup"] < 2.31
    assert finished.folder.joinpath("summary.json").read_text() == (
        json.dumps(summary, indent=2) + "\n"
    )


def test_fp32_runs_on_dequantized_copies_and_says_so(capsys, tmp_path):
    task = ["exp=gsm_mini", f"output.dir={tmp_path}", *SIZES, "limit=1", "model.dtype=fp32"]
    sizes = ["fidelity.limit=1", "speedup.prompts=0", "exp.max_new_tokens=12"]
    config = load_config([*task, *sizes, "method=full_quant"])
    runtime = Runtime.load(config)
    summary = execute(config, runtime).summary
    assert runtime.adapter.dtype == float32
    assert "NO 4-BIT KERNEL" in capsys.readouterr().err
    assert summary["speedup"]["decode"]["matched"] is None
    assert summary["exit_depth"]["mean"] == 0
    # The same function in fp32: transformers differs by rounding alone.
    assert math.isclose(summary["fidelity"]["noise_floor"]["excess_nll"], 0, abs_tol=1e-4)
    assert summary["fidelity"]["noise_floor"]["agreement"] == 1
