"""The check of a bare machine: its plan, its report, and a real one on tiny shapes, cut short."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from command import ROOT
from river_llm.analysis.gpu_report import Outcome, report, targets
from river_llm.benchmark.arms import parse_arms
from river_llm.benchmark.plan import ARMS, CPU, CUDA, Part, shares
from river_llm.benchmark.settings import parse
from river_llm.composition import complete, composed
from river_llm.models.random_weights import SHAPES

SCRIPT = str(ROOT / "scripts" / "gpu_check.py")


@pytest.mark.parametrize("plan", [CPU, CUDA], ids=["cpu", "cuda"])
def test_every_part_is_a_benchmark_that_can_be_asked_for(plan):
    for part in plan.parts:
        config = parse(complete(composed(plan.command(part, '/a "b', 12.5), "bench_decode")))
        assert config.arms == ARMS
        assert config.output.dir == '/a "b'
        assert config.budget_s == 12.5
        assert (config.model.shape, config.model.device) == (part.shape, plan.device)
        assert (config.engine.name, config.quant.name) == (part.engine, "rtn_int4")
        # None is refused for its depth, and none is added.
        assert len(parse_arms(config.arms, SHAPES[part.shape].layers, False)) == len(ARMS)


def test_both_shapes_run_on_both_engines():
    wanted = {(s, e) for s in ("llama3.2_1b", "llama3.1_8b") for e in ("cuda_graphs", "eager")}
    assert {(part.shape, part.engine) for part in CUDA.parts} == wanted


def test_what_a_part_leaves_goes_to_those_behind_it():
    parts = [Part("a", "x", 1.0), Part("b", "x", 2.0), Part("c", "x", 1.0)]
    assert shares(parts, 80.0) == [20.0, 40.0, 20.0]
    assert shares(parts[1:], 75.0) == [50.0, 25.0]


def bench(engine, no_exit_ms, model="random-llama3.1_8b", device="cuda", **river):
    figures = {"q1": 1.0, "q3": 1.0, "bound_ms": 1.0, "gb_per_s": 1.0, "bytes": None}
    figures |= {"prefill_ms": 1.0, "vs_eager": 1.0, "vs_hf": None, "bound_share": 0.8}
    arms = {
        "no_exit": {**figures, "ms_per_token": no_exit_ms, "vs_no_exit": 1.0},
        "river@3": {**figures, "ms_per_token": 2.0, "vs_no_exit": 0.5, **river},
    }
    record = {
        "model": model,
        "engine": engine,
        "threads": 1,
        "bandwidth_gb_per_s": 4000.0,
        "compile_seconds": 1.0,
        "rounds": 7,
        "steps": 16,
        "context": 512,
        "hf_alone": None,
        "environment": {"device": device},
    }
    return record, {512: arms}


def reached(**benches):
    return [target.reached for target in targets(benches)]


def test_targets_are_those_of_the_8b_shape_on_the_engine_where_no_exit_is_fastest():
    slow = bench("eager", 9.0, vs_no_exit=0.9, test_share=0.01)
    fast = bench("cuda_graphs", 4.0, vs_no_exit=0.55, test_share=0.06)
    assert reached(a=slow, b=fast) == [True, True, False]
    assert reached(a=slow) == [True, False, True]


def test_a_target_that_was_not_measured_is_neither_reached_nor_missed():
    small = bench("cuda_graphs", 1.0, model="random-llama3.2_1b", test_share=0.01)
    rehearsal = bench("eager", 1.0, device="cpu", test_share=0.01)
    assert reached(a=small, b=rehearsal) == [None] * 3
    assert reached(a=bench("eager", 1.0)) == [True, True, None]


def test_the_report_names_what_is_missing_and_what_was_dropped():
    environment = {
        "device_name": "GPU",
        "packages": {"torch": "2", "transformers": "5"},
        "cuda": "12",
        "python": "3.12",
        "commit": None,
        "clean": None,
        "gpus": [{"name": "GPU", "clocks.sm": "1980 MHz"}],
        "device": "cuda",
    }
    outcomes = [Outcome("tests", "failed", 3.0, "1 failed"), Outcome("a", "dropped", note="x|y")]
    text = report(environment, outcomes, {"b": bench("eager", 9.0)})
    assert "clocks.sm 1980 MHz" in text
    assert "| tests | failed | 3 | 1 failed |" in text
    assert "| a | dropped | 0 | x/y |" in text
    assert "river@3 at 0.60 of no_exit's time or less: reached (0.500)" in text
    assert "exit tests at 5% of a river@3 step or less: NOT MEASURED" in text
    assert "## b" in text


def start(folder, offline, budget):
    environment = {**os.environ, **offline, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [sys.executable, SCRIPT, "--cpu", "--budget-s", budget, "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def test_cut_short_in_the_middle_it_prints_and_saves_what_there_is(tmp_path, offline):
    """SIGTERM as soon as the first benchmark has saved a round."""
    check = start(tmp_path, offline, "600")
    deadline = time.monotonic() + 150
    while not list(tmp_path.glob("*/bench/*/bench.json")):
        assert check.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    check.send_signal(signal.SIGTERM)
    output, _ = check.communicate(timeout=60)
    assert check.returncode == 1
    line = json.loads(output.splitlines()[-1])
    statuses = {outcome["part"]: outcome["status"] for outcome in line["parts"]}
    assert statuses["tests"] == "done"
    assert statuses["the check"] == "cut short"
    assert "tiny-compiled" not in statuses
    (name,) = line["benches"]
    assert name == "tiny-eager"
    assert "| no_exit " in output
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "summary.json").read_text("utf-8")) == line
    assert (folder / "report.md").read_text("utf-8") in output
    assert json.loads((folder / "environment.json").read_text("utf-8"))["device"] == "cpu"


def test_without_time_every_part_is_dropped_aloud(tmp_path, offline):
    check = start(tmp_path, offline, "1")
    output, _ = check.communicate(timeout=60)
    assert check.returncode == 1
    statuses = [outcome["status"] for outcome in json.loads(output.splitlines()[-1])["parts"]]
    assert statuses == ["cut short", "dropped", "dropped"]
    assert "NOT MEASURED" in output
