"""The summary of a run against values worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from invented import fidelity, header, matched, record

from river_llm.analysis.summary import summarize
from river_llm.errors import UserError

RECORDS = [
    record(
        id="a",
        correct=True,
        detail={"strict": True, "flexible": True, "status": "passed"},
        finish_reason="eos",
        tokens_timed=3,
        tokens_kept=2,
        prefill_seconds=0.1,
        decode_seconds=0.06,
        prefill_depth=1,
        exit_depths=[1, 2, 4],
    ),
    record(
        id="b",
        correct=False,
        detail={"strict": False, "flexible": True, "status": None},
        finish_reason="length",
        tokens_timed=5,
        tokens_kept=5,
        prefill_seconds=0.3,
        decode_seconds=0.14,
        prefill_depth=4,
        exit_depths=[1, 1, 1, 1, 4],
    ),
    record(
        id="c",
        correct=None,
        detail=None,
        finish_reason="stop",
        tokens_timed=0,
        tokens_kept=0,
        prefill_seconds=0.2,
        decode_seconds=0.0,
        prefill_depth=2,
        exit_depths=[],
    ),
]


def test_summary_by_hand() -> None:
    result = summarize(iter(RECORDS), header=header(problems=164))
    assert (result["samples"], result["problems"]) == (3, 164)
    # One of two graded: centre 0.5, half width z * sqrt(1/8 + z^2/16) / (1 + z^2/2) = 0.405469.
    assert result["accuracy"] == {
        "value": 0.5,
        "low": pytest.approx(0.094531, abs=2e-6),
        "high": pytest.approx(0.905469, abs=2e-6),
        "graded": 2,
        "extra": {"strict": 0.5, "flexible": 1.0},
    }
    assert result["cut_share"] == pytest.approx(1 / 3)
    # Depths 1 2 4 1 1 1 1 4: mean 15/8 over steps; a mean of the samples' means would be 1.98.
    assert result["exit_depth"] == {"mean": 1.875, "layers": 4, "histogram": [0, 5, 1, 0, 2]}
    assert result["prefill_depth"] == {"mean": pytest.approx(7 / 3)}
    # 200 ms over 8 steps; median of 100, 300, 200 and their p90 200 + 0.8 * 100.
    assert result["time"] == {
        "decode_ms_per_token": pytest.approx(25.0),
        "prefill_ms": {"median": pytest.approx(200.0), "p90": pytest.approx(280.0)},
        "decode_steps": 8,
        "tokens_timed": 8,
        "tokens_kept": 7,
    }


def test_header_is_carried_over() -> None:
    given = header(fidelity=fidelity(), speedup=matched(1.8))
    result = summarize(RECORDS, header=given)
    for key in given.keys() - {"layers"}:
        assert result[key] == given[key]


def test_ungraded_samples_do_not_count_as_wrong() -> None:
    ungraded = [record(correct=None, detail={"status": "not_executed"}) for _ in range(3)]
    result = summarize(ungraded, header=header())
    assert result["accuracy"] == {
        "value": None,
        "low": None,
        "high": None,
        "graded": 0,
        "extra": {},
    }
    assert result["samples"] == 3


@pytest.mark.parametrize("steps", [[], [record(exit_depths=[], decode_seconds=0.0)]])
def test_without_steps_figures_are_null_not_zero_or_nan(steps: list[dict[str, Any]]) -> None:
    result = json.loads(json.dumps(summarize(steps, header=header()), allow_nan=False))
    assert result["exit_depth"] == {"mean": None, "layers": 4, "histogram": [0, 0, 0, 0, 0]}
    assert result["time"]["decode_ms_per_token"] is None
    assert (result["cut_share"] is None) == (not steps)


def test_empty_run_has_nulls() -> None:
    result = summarize([], header=header())
    assert result["samples"] == 0
    assert result["accuracy"]["value"] is None
    assert result["prefill_depth"]["mean"] is None
    assert result["time"]["prefill_ms"] == {"median": None, "p90": None}


def test_nan_of_a_measurement_becomes_null() -> None:
    nan, infinity = float("nan"), float("inf")
    noisy = fidelity(nan, noise_floor={"agreement": 0.9, "excess_nll": infinity})
    result = summarize(RECORDS, header=header(fidelity=noisy, speedup=matched(nan)))
    text = json.dumps(result, allow_nan=False)
    assert json.loads(text)["fidelity"]["agreement"] is None
    assert json.loads(text)["fidelity"]["noise_floor"] == {"agreement": 0.9, "excess_nll": None}
    assert json.loads(text)["speedup"]["decode"]["matched"]["value"] is None


@pytest.mark.parametrize("depth", [5, -1])
def test_depth_outside_the_model_is_refused(depth: int) -> None:
    with pytest.raises(UserError, match=f"sample 'x': exit depth {depth} .*0..4"):
        summarize([record(id="x", exit_depths=[1, depth])], header=header())
