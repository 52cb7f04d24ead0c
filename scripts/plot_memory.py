"""Peak memory over the context: no_exit, full_quant, River, River with an offloaded backbone.

    python scripts/plot_memory.py model=random model.shape=llama3.2_1b quant=rtn_int4 --after 4

Each arm is measured in a process of its own: a cache as long as the context, a short prompt and one
decode step that needs two offloaded layers. Writes <output.dir>/memory/<model>.json, .png, .svg and
.pdf. There must be room for the largest arm; fewer contexts: --contexts 4096,8192.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from river_llm.analysis.memory_plot import GIB, memory_figure, predicted_bytes
from river_llm.composition import load_config
from river_llm.entry_point import end
from river_llm.errors import UserError

CONTEXTS = "4096,8192,16384,32768,65536"
PROMPT_TOKENS = 128
"""Enough for a wide step of the river, which goes through its scratch layer."""


def main() -> int:
    """Measures, writes, draws and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="as for run.py: model=random quant=rtn_int4")
    parser.add_argument(
        "--after", type=int, default=4, help="backbone layers that stay (default 4)"
    )
    parser.add_argument("--contexts", default=CONTEXTS, help=f"tokens (default {CONTEXTS})")
    arguments = parser.parse_intermixed_args()
    written, record = measure(arguments.overrides, arguments.after, arguments.contexts)
    print(report(record))
    print(*written, sep="\n")
    return 0


def arms(after: int) -> dict[str, tuple[str, list[str]]]:
    """For each arm its look and its settings; every exit is planned two layers beyond `after`."""
    river = ["method=river", "criterion=fixed", f"criterion.depth={after + 2}"]
    return {
        "no_exit": ("no_exit", ["method=no_exit"]),
        "full_quant": ("full_quant", ["method=full_quant"]),
        "river": ("river", river),
        f"river, offload k={after}": ("river backbone", [*river, f"offload.after={after}"]),
    }


def measure(
    overrides: Sequence[str], after: int, contexts: str = CONTEXTS
) -> tuple[list[Path], dict[str, Any]]:
    """Measures all arms and leaves record and picture on disk.

    Args:
        overrides: Hydra overrides.
        after: backbone layers that stay in memory where the others are offloaded.
        contexts: in tokens, with commas between.

    Raises:
        UserError: settings that do not fit, or a process that failed.
    """
    lengths = [int(part) if part.isdecimal() else 0 for part in contexts.split(",")]
    if min(lengths) <= PROMPT_TOKENS:
        raise UserError(
            f"--contexts {contexts}: give whole numbers above {PROMPT_TOKENS}, with commas between"
        )
    chosen = arms(after)
    configs = {arm: load_config([*overrides, *own]) for arm, (_, own) in chosen.items()}
    # Imported late: a mistake on the command line is told without waiting for torch.
    from river_llm.analysis.figures import write_figure
    from river_llm.analysis.provenance import commits, machine
    from river_llm.environment import snapshot
    from river_llm.evaluation.memory_curve import measure_curve
    from river_llm.evaluation.run import code_mark
    from river_llm.models.loading import resolve_device
    from river_llm.records import write_json

    first = configs["no_exit"]
    curves = {}
    for arm, config in configs.items():
        print(f"river_llm: {arm}", file=sys.stderr)
        curves[arm] = measure_curve(config, sorted(lengths), PROMPT_TOKENS)
    mark = code_mark()
    environment = snapshot(resolve_device(first.model.device))
    record = {
        "model": first.model.name,
        "after": after,
        "quant": first.quant.name,
        "dtype": first.model.dtype,
        "prompt_tokens": PROMPT_TOKENS,
        "commit": mark,
        "made_by": {"overrides": list(overrides), "after": after, "contexts": contexts},
        "environment": environment,
        "arms": curves,
    }
    folder = Path(first.output.dir) / "memory"
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / first.model.name
    path = Path(f"{stem}.json")
    write_json(path, record)
    counted = (
        "memory allocated on the device"
        if environment["device"] == "cuda"
        else "anonymous memory of the process, less what it held before the model"
    )
    figure = memory_figure(
        curves,
        {arm: look for arm, (look, _) in chosen.items()},
        f"Memory over the context, {first.model.name}",
        [
            f"Batch 1, {first.model.dtype}, {first.quant.name}; each arm in a process of its own: "
            f"{PROMPT_TOKENS} tokens of prompt and one decode step. Measured: {counted}.",
            f"{machine(environment)}; {commits([mark])}.",
        ],
    )
    return [path, *write_figure(figure, stem)], record


def report(record: dict[str, Any]) -> str:
    """The figures for a terminal."""
    lines = [f"memory over the context, {record['model']}: measured, and the sum of the parts, GiB"]
    for arm, points in record["arms"].items():
        for point in points:
            total = predicted_bytes(point["parts"])
            found, tensors = point["peak_bytes"], point["tensor_bytes"]
            lines.append(
                f"  {arm.ljust(24)}{point['context']:7d}  {found / GIB:7.3f}  {total / GIB:7.3f} "
                f"({found / total - 1:+.1%}; tensors {tensors / total - 1:+.1%})"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    end(main)
