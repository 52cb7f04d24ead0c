"""How alike river and backbone are in what they leave in the KV cache, token by token:

    python scripts/analyze_kv.py exp=gsm_mini limit=4 --tokens 48

Writes layers.parquet, entries.parquet and summary.json to
<output.dir>/analysis/kv/<exp>-<model>/; docs/records.md says what is in them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from river_llm.composition import load_config
from river_llm.entry_point import end
from river_llm.errors import UserError
from river_llm.sweeps.recipe import depth_of

if TYPE_CHECKING:
    from river_llm.evaluation.runtime import Runtime

DEPTHS = "0,1,3,L/2"


def main() -> int:
    """Measures, writes and prints the similarities."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="as for run.py: exp=gsm8k model=... limit=8")
    parser.add_argument(
        "--tokens", type=int, default=64, help="generated per prompt, for exp.max_new_tokens"
    )
    parser.add_argument(
        "--depths", default=DEPTHS, help=f"exit depths of the river runs (default {DEPTHS})"
    )
    arguments = parser.parse_intermixed_args()
    folder, summary = analyze(arguments.overrides, arguments.tokens, arguments.depths)
    print(report(summary))
    print(f"{folder}: layers.parquet, entries.parquet, summary.json")
    return 0


def analyze(
    overrides: Sequence[str],
    tokens: int,
    depths: str = DEPTHS,
    runtime: Runtime | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Compares the entries along no_exit's texts and leaves the figures on disk.

    Args:
        overrides: Hydra overrides.
        tokens: budget of each text; N tokens are N-1 decode steps.
        depths: exit depths of the river runs with commas between, numbers or shares of L.
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
        raise UserError(
            f"method={config.method.name}: entries are compared along no_exit's text, leave "
            "method out"
        )
    wanted = depths.split(",")
    for depth in wanted:
        depth_of(depth, 1)  # told before the model is loaded
    # Imported late: a mistake on the command line is told without waiting for torch.
    from river_llm.analysis.kv import ENTRIES, LAYERS, SUMMARY, summarize_kv
    from river_llm.evaluation.kv_similarity import measure_kv
    from river_llm.evaluation.run import Run, code_mark
    from river_llm.evaluation.runtime import Runtime
    from river_llm.records import write_json

    run = Run(config, runtime or Runtime.load(config))
    count = run.runtime.adapter.num_layers
    layers, entries = measure_kv(run, [depth_of(depth, count) for depth in wanted])
    header = run.header()
    summary = {
        **{key: header[key] for key in ("exp", "label", "model", "settings")},
        "commit": code_mark(),
        "made_by": {"overrides": list(overrides), "tokens": tokens, "depths": depths},
        "quant": asdict(config.quant),
        "environment": {
            **run.environment(),
            "linears_per_backend": run.runtime.river(config.quant).backend_counts(),
        },
        **summarize_kv(layers, entries),
    }
    folder = Path(config.output.dir) / "analysis" / "kv" / f"{config.exp.name}-{config.model.name}"
    folder.mkdir(parents=True, exist_ok=True)
    layers.to_parquet(folder / LAYERS, index=False)
    entries.to_parquet(folder / ENTRIES, index=False)
    write_json(folder / SUMMARY, summary)
    return folder, summary


def report(summary: dict[str, Any]) -> str:
    """The figures for a terminal."""
    lines = [
        f"{summary['label']}, {summary['model']}: {summary['steps']} decode steps of "
        f"{summary['samples']} texts",
        "cosine of river and backbone entries: mean over layers, last layer",
    ]
    for arm in summary["entries"]:
        name = arm["arm"] if arm["arm"] != "river" else f"river {arm['depth']} {arm['prefill']}"
        parts = [
            f"{kind} {sum(arm[key]) / len(arm[key]):.4f}, {arm[key][-1]:.4f}"
            for kind, key in (("keys", "key_cosine"), ("values", "value_cosine"))
        ]
        lines.append(f"  {name.ljust(20)}{'; '.join(parts)}")
    lines.append("similarity of the tested block against the last layer's value cosine, Pearson r")
    for row in summary["early_last"]:
        name = f"river {row['depth']} {row['prefill']}"
        lines.append(f"  {name.ljust(20)}{_r(row)}")
    return "\n".join(lines)


def _r(row: dict[str, Any]) -> str:
    if row["r"] is None:
        return "none: one of the two does not vary"
    if row["low"] is None:
        return f"{row['r']:.3f} [no interval]"
    return f"{row['r']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


if __name__ == "__main__":
    end(main)
