"""Time per token of every method, of transformers and of llama.cpp, beside the memory's bound:

    python scripts/bench_decode.py model=smollm2_135m contexts=[64,512] gguf=embedded
    python scripts/bench_decode.py 'arms=[no_exit,river@3,"river~2"]' rounds=15

Keys and their defaults: conf/bench_decode.yaml; columns and what is on the clock:
docs/benchmark.md. Writes bench.json (after each round) and decode.png to
<output.dir>/bench/<model>-<engine>-<time>/;
the last line of standard output is one JSON object with all figures.
"""

from __future__ import annotations

import argparse
import json
import sys

from river_llm.composition import complete, composed
from river_llm.entry_point import end


def main() -> int:
    """Runs the benchmark; status 1 where a figure contradicts the memory's bandwidth."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help="key=value, as in conf/bench_decode.yaml")
    arguments = parser.parse_args()
    impossible_arms = bench(arguments.overrides)
    if impossible_arms:
        print(
            f"error: {', '.join(impossible_arms)}: bound_share above 1, so the bandwidth was "
            "measured too low or the bytes are counted too high; run again on a quiet machine",
            file=sys.stderr,
        )
        return 1
    return 0


def bench(overrides: list[str]) -> list[str]:
    """Runs, saves and prints; names the arms that would have read faster than the memory can.

    Raises:
        UserError: settings that do not fit, or a peer that is missing.
    """
    from river_llm.benchmark.settings import parse

    config = parse(complete(composed(overrides, "bench_decode")))
    # Imported late: a mistake on the command line is told without waiting for torch.
    from river_llm.analysis.bench_figures import impossible
    from river_llm.analysis.bench_files import plot_bench
    from river_llm.analysis.bench_table import bench_report
    from river_llm.benchmark.run import execute

    result = execute(config)
    print(bench_report(result.line, result.contexts))
    plot_bench(result.folder / "bench.json")
    print(f"{result.folder}: bench.json, decode.png")
    print(json.dumps(result.line, allow_nan=False), flush=True)
    return [
        f"{name} at context {context}"
        for context, arms in result.contexts.items()
        for name in impossible(arms)
    ]


if __name__ == "__main__":
    end(main)
