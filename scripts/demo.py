"""The main job in a few minutes on the embedded model: `make demo`.

    python scripts/demo.py

Runs no_exit, full_quant and River (two thresholds, and depth 0 behind a backbone prefill) on a
few samples each of gsm_mini and HumanEval, and writes table and picture to results/demo/. The
thresholds are quantiles of the similarity measured here, for mean depths near 3 and L/2.
HumanEval runs model-written programs on this machine, see README.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from river_llm.analysis.plots import accuracy_speed
from river_llm.analysis.tables import caption, comparison_frame, to_csv, to_markdown, to_terminal
from river_llm.calibration import scores_of_run, tau_for_mean_depth
from river_llm.composition import load_config
from river_llm.errors import UserError
from river_llm.evaluation.run import execute
from river_llm.evaluation.runtime import Runtime

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
    "humaneval": ["exp=humaneval", "limit=3", "exp.allow_code_execution=true"],
}
CALIBRATION_PROMPTS, CALIBRATION_TOKENS = 2, 48


def main() -> int:
    """Runs all arms on all tasks and shows them side by side."""
    started = time.perf_counter()
    try:
        summaries = run_arms()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    frame = comparison_frame(summaries)
    note = caption(summaries)
    (OUTPUT / "table.md").write_text(f"{to_markdown(frame)}\n{note}\n", encoding="utf-8")
    (OUTPUT / "table.csv").write_text(to_csv(frame), encoding="utf-8")
    picture = OUTPUT / "accuracy_speed.png"
    accuracy_speed(summaries, picture)
    print(to_terminal(frame, shutil.get_terminal_size((120, 40)).columns))
    print(note)
    minutes = (time.perf_counter() - started) / 60
    print(f"{OUTPUT}/table.md, table.csv, accuracy_speed.png; {minutes:.1f} minutes")
    return 0


def run_arms() -> list[dict[str, object]]:
    """The summaries of every arm on every task."""
    runtime = Runtime.load(load_config([*COMMON, *TASKS["gsm_mini"]]))
    summaries = []
    for task in TASKS.values():
        common = [*COMMON, *task]
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


def thresholds(runtime: Runtime, overrides: list[str]) -> tuple[float, float]:
    """Tau for mean depths of 3 and of half the layers, from this task's own prompts."""
    config = load_config([*overrides, "method=river"])
    scores = scores_of_run(config, runtime, CALIBRATION_PROMPTS, CALIBRATION_TOKENS)
    half = runtime.adapter.num_layers / 2
    return tau_for_mean_depth(scores, 3), tau_for_mean_depth(scores, half)


if __name__ == "__main__":
    sys.exit(main())
