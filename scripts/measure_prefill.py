"""Time to first token over the length of the prompt, for both prefills of River:

    python scripts/measure_prefill.py exp=gsm8k criterion.tau=0.9 --lengths 32,128,512

Beside them stand no_exit and full_quant; prompts are cut and joined from the task's own. Writes
times.parquet and summary.json to <output.dir>/analysis/prefill/<exp>-<model>/.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from river_llm.composition import load_config
from river_llm.entry_point import end
from river_llm.errors import UserError

LENGTHS, ROUNDS = "32,64,128,256,512,1024", 5


def main() -> int:
    """Measures, writes and prints the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="as for run.py: exp=gsm8k criterion.tau=0.9")
    parser.add_argument("--lengths", default=LENGTHS, help=f"tokens (default {LENGTHS})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    arguments = parser.parse_intermixed_args()
    folder, summary = measure(arguments.overrides, arguments.lengths, arguments.rounds)
    print(report(summary))
    print(f"{folder}: times.parquet, summary.json")
    return 0


def measure(
    overrides: Sequence[str], lengths: str = LENGTHS, rounds: int = ROUNDS
) -> tuple[Path, dict[str, Any]]:
    """Times all arms at all lengths and leaves the figures on disk.

    Args:
        overrides: Hydra overrides; the criterion is that of River's sequence-level exit.
        lengths: of the prompts, in tokens, with commas between.
        rounds: how often each is timed.

    Returns:
        Folder and content of its summary.json.

    Raises:
        UserError: settings that do not fit.
    """
    tokens = [int(part) if part.isdecimal() else 0 for part in lengths.split(",")]
    if min(tokens) < 1:
        raise UserError(f"--lengths {lengths}: give whole numbers from 1 on, with commas between")
    if rounds < 1:
        raise UserError(f"--rounds {rounds}: give 1 or more")
    # Each round has another prompt; the task's first ones are joined where they are too short.
    config = load_config([f"limit={rounds}", *overrides])
    if config.criterion.name == "replay":
        raise UserError("criterion=replay: recorded depths are of other prompts, choose another")
    # Imported late: a mistake on the command line is told without waiting for torch.
    from river_llm.analysis.prefill import SUMMARY, TIMES, summarize_prefill
    from river_llm.evaluation.prefill_times import prefill_decoders, time_prefills
    from river_llm.evaluation.run import Run, code_mark
    from river_llm.evaluation.runtime import Runtime
    from river_llm.records import write_json

    run = Run(config, Runtime.load(config))
    decoders = prefill_decoders(run.runtime, run.config, max(tokens))
    environment = run.environment()
    times = time_prefills(decoders, [prompt.ids for prompt in run.prompts], tokens, rounds)
    header = run.header()
    summary = {
        **{key: header[key] for key in ("exp", "label", "model")},
        "layers": header["layers"],
        "criterion": asdict(config.criterion),
        "quant": asdict(config.quant),
        "engine": run.config.engine.name,
        "commit": code_mark(),
        "made_by": {"overrides": list(overrides), "lengths": lengths, "rounds": rounds},
        "environment": {
            **environment,
            "linears_per_backend": run.runtime.river(config.quant).backend_counts(),
        },
        "points": summarize_prefill(times),
    }
    name = f"{config.exp.name}-{config.model.name}"
    folder = Path(config.output.dir) / "analysis" / "prefill" / name
    folder.mkdir(parents=True, exist_ok=True)
    times.to_parquet(folder / TIMES, index=False)
    write_json(folder / SUMMARY, summary)
    return folder, summary


def report(summary: dict[str, Any]) -> str:
    """The figures for a terminal."""
    lines = [f"time to first token, {summary['model']}: median and quartiles in ms"]
    for point in summary["points"]:
        lines.append(
            f"  {point['length']:6d} tokens  {point['arm'].ljust(24)}{point['median_ms']:9.1f} "
            f"[{point['low_ms']:.1f}, {point['high_ms']:.1f}]  depth {point['depth']:.1f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    end(main)
