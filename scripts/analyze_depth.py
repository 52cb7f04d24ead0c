"""How early no_exit's own token could have been told, layer by layer:

    python scripts/analyze_depth.py exp=gsm_mini limit=4 --tokens 48

Writes steps.parquet, summary.json and depths.png to
<output.dir>/analysis/oracle_depth/<exp>-<model>/.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from river_llm.composition import load_config
from river_llm.entry_point import end
from river_llm.errors import UserError
from river_llm.records import write_json

if TYPE_CHECKING:
    from river_llm.evaluation.runtime import Runtime


def main() -> int:
    """Measures, writes and prints the depths."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="as for run.py: exp=gsm8k model=... limit=8")
    parser.add_argument(
        "--tokens", type=int, default=64, help="generated per prompt, for exp.max_new_tokens"
    )
    arguments = parser.parse_intermixed_args()
    folder, summary = analyze(arguments.overrides, arguments.tokens)
    print(report(summary))
    print(f"{folder}: steps.parquet, summary.json, depths.png")
    return 0


def analyze(
    overrides: Sequence[str], tokens: int, runtime: Runtime | None = None
) -> tuple[Path, dict[str, Any]]:
    """Runs no_exit on the first prompts and leaves the figures on disk.

    Args:
        overrides: Hydra overrides.
        tokens: budget of each text; N tokens are N-1 decode steps.
        runtime: a loaded model; None: load the one that the overrides ask for.

    Returns:
        Folder and content of its summary.json.

    Raises:
        UserError: settings that do not fit, or no decode steps.
    """
    if tokens < 2:
        raise UserError(f"--tokens {tokens}: the first token needs no decode step, give 2 or more")
    config = load_config(["method=no_exit", *overrides, f"exp.max_new_tokens={tokens}"])
    if config.method.name != "no_exit":
        raise UserError(f"method={config.method.name}: oracle depth is no_exit's, leave method out")
    # Imported late: a mistake on the command line is told without waiting for torch.
    from river_llm.analysis.depth_plot import depth_histogram
    from river_llm.evaluation.oracle_depth import depth_frame, record_predictions, summarize_depths
    from river_llm.evaluation.run import Run, code_mark
    from river_llm.evaluation.runtime import Runtime
    from river_llm.evaluation.traffic import Traffic

    run = Run(config, runtime or Runtime.load(config))
    predicted = record_predictions(run)
    frame = depth_frame(predicted)
    lengths = {prompt.sample.id: len(prompt.ids) for prompt in run.prompts}
    adapter = run.runtime.adapter
    traffic = Traffic(adapter, None, head=run.runtime.head(config.quant))
    summary = {
        **{key: run.header()[key] for key in ("exp", "label", "model", "settings")},
        "commit": code_mark(),
        "made_by": {"overrides": list(overrides), "tokens": tokens},
        "environment": run.environment(),
        **summarize_depths(frame, adapter.num_layers, traffic, lengths),
    }
    folder = (
        Path(config.output.dir)
        / "analysis"
        / "oracle_depth"
        / f"{config.exp.name}-{config.model.name}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(folder / "steps.parquet", index=False)
    write_json(folder / "summary.json", summary)
    depth_histogram(
        summary["oracle_depth"]["histogram"],
        summary["first_hit_depth"]["histogram"],
        f"{summary['label']}, {summary['model']}: {summary['steps']} decode steps of "
        f"{summary['samples']} texts, on no_exit's own text and KV",
        folder / "depths.png",
    )
    return folder, summary


def report(summary: dict[str, Any]) -> str:
    """The figures for a terminal, and what they are a limit of."""
    lines = [
        f"{summary['label']}, {summary['model']}: {summary['steps']} decode steps of "
        f"{summary['samples']} texts"
    ]
    for name, word in (("oracle_depth", "oracle depth"), ("first_hit_depth", "first hit")):
        part = summary[name]
        ends = (
            "no interval"
            if part["low"] is None
            else f"95 % interval over texts {part['low']:.2f} to {part['high']:.2f}"
        )
        lines.append(
            f"{word.ljust(14)}mean {part['mean']:.2f} of {summary['layers']} ({ends}); "
            f"{100 * part['below_full']:.1f} % of steps below {summary['layers']}; "
            f"byte bound {part['bound_speedup']:.2f}x"
        )
    lines.append(
        "First hit: the smallest depth at which norm and head predict no_exit's token; oracle "
        "depth: the smallest\nfrom which on they do so at every depth. On no_exit's own KV. A "
        "criterion whose method emits from the exit\nstate through this head cannot keep every "
        "token at a mean depth below the first hits'. Byte bounds count\nskipped layers and "
        "tests as free. River emits from the top of its stack: this limit is not River's."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    end(main)
