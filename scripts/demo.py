"""The main job in a few minutes on the embedded model: `make demo`.

    python scripts/demo.py

Runs no_exit, full_quant and River (two thresholds, and depth 0 behind a backbone prefill) on a
few samples each of gsm_mini and HumanEval, and writes table and picture to results/demo/. The
thresholds are quantiles of the similarity measured here, for mean depths near 3 and L/2.
Beside the runs stand the records that the notebooks read: what every layer predicts, and how alike
river and backbone are in the KV cache. HumanEval runs model-written programs on this machine,
contained; where no containing sandbox works (docs/sandbox.md), it stays ungraded.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import analyze_depth
import analyze_kv

from river_llm.analysis.plots import accuracy_speed
from river_llm.analysis.tables import caption, comparison_frame, to_csv, to_markdown, to_terminal
from river_llm.calibration import scores_of_run, tau_for_mean_depth
from river_llm.composition import load_config
from river_llm.entry_point import end
from river_llm.errors import UserError
from river_llm.evaluation.run import execute
from river_llm.evaluation.runtime import Runtime
from river_llm.grading.sandbox import usable_level
from river_llm.records import write_text

OUTPUT = Path("results/demo")
COMMON = [
    f"output.dir={OUTPUT}",
    "exp.max_new_tokens=256",
    "speedup.prompts=3",
    "speedup.tokens=32",
    "fidelity.limit=3",
    "fidelity.tokens=64",
]
TASKS = {
    "gsm_mini": ["exp=gsm_mini", "limit=3"],
    "humaneval": ["exp=humaneval", "limit=3"],
}
CALIBRATION_PROMPTS, CALIBRATION_TOKENS = 2, 48
# No runs: their prompts are the first ones of the task, however many a measurement would want.
ANALYSIS = ["exp=gsm_mini", "limit=3", "fidelity.limit=0", "speedup.prompts=0"]
ANALYSIS_TOKENS, KV_DEPTHS = 24, "3,L/2"


def main() -> int:
    """Runs all arms on all tasks and shows them side by side."""
    started = time.perf_counter()
    runtime = Runtime.load(load_config([*COMMON, *TASKS["gsm_mini"]]))
    summaries = run_arms(runtime)
    leave_analyses(runtime, [f"output.dir={OUTPUT}", *ANALYSIS])
    frame = comparison_frame(summaries)
    note = caption(summaries)
    write_text(OUTPUT / "table.md", f"{to_markdown(frame)}\n{note}\n")
    write_text(OUTPUT / "table.csv", to_csv(frame))
    picture = OUTPUT / "accuracy_speed.png"
    accuracy_speed(summaries, picture)
    print(to_terminal(frame, shutil.get_terminal_size((120, 40)).columns))
    print(note)
    minutes = (time.perf_counter() - started) / 60
    print(f"{OUTPUT}/table.md, table.csv, accuracy_speed.png; {minutes:.1f} minutes")
    print(f"{OUTPUT}/analysis: oracle depth and KV similarity, see notebooks/")
    return 0


def run_arms(runtime: Runtime) -> list[dict[str, object]]:
    """The summaries of every arm on every task."""
    summaries = []
    for name, task in TASKS.items():
        common = [*COMMON, *task, *(permission() if name == "humaneval" else [])]
        early, middle = thresholds(runtime, common)
        arms = [
            ["method=no_exit"],
            ["method=full_quant"],
            ["method=river", f"criterion.tau={early}"],
            ["method=river", f"criterion.tau={middle}"],
            ["method=river", "method.prefill=backbone", "criterion=fixed", "criterion.depth=0"],
        ]
        for arm in arms:
            summaries.append(execute(load_config([*common, *arm]), runtime).summary)
    return summaries


def permission() -> list[str]:
    """To run programs where a containing sandbox works; else none, with a word on why."""
    try:
        usable_level("auto")
    except UserError as error:
        print(f"HumanEval is left ungraded. {error}", file=sys.stderr)
        return []
    return ["exp.allow_code_execution=true"]


def leave_analyses(runtime: Runtime, overrides: list[str]) -> None:
    """The records of oracle depth and of KV similarity, in analysis/ of the output folder."""
    analyze_depth.analyze(overrides, ANALYSIS_TOKENS, runtime)
    analyze_kv.analyze(overrides, ANALYSIS_TOKENS, KV_DEPTHS, runtime)


def thresholds(runtime: Runtime, overrides: list[str]) -> tuple[float, float]:
    """Tau for mean depths of 3 and of half the layers, from this task's own prompts."""
    config = load_config([*overrides, "method=river"])
    scores = scores_of_run(config, runtime, CALIBRATION_PROMPTS, CALIBRATION_TOKENS)
    half = runtime.adapter.num_layers / 2
    return tau_for_mean_depth(scores, 3), tau_for_mean_depth(scores, half)


if __name__ == "__main__":
    end(main)
