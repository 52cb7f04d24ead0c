"""One run, or with -m a sweep:

    python run.py exp=gsm8k method=river
    python run.py -m exp=humaneval method=river criterion.tau=0.5,0.7,0.9 limit=20

The last line of standard output is one JSON object with `run_dir` and the summary.
"""

from __future__ import annotations

import sys

import hydra
from omegaconf import DictConfig

from river_llm.composition import expand_sweep, load_config, typed
from river_llm.config import RunConfig
from river_llm.errors import UserError


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def run(composed: DictConfig) -> None:
    """One job of Hydra's."""
    try:
        execute_job(typed(composed))
    except UserError as error:
        # Hydra would print a traceback for anything but an exit.
        fail(error)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last finished sample", file=sys.stderr)
        sys.exit(130)


def execute_job(config: RunConfig) -> None:
    """Runs one configuration and prints its summary."""
    # Imported late: a mistake on the command line is told without waiting for torch.
    from river_llm.analysis.report import terminal_summary
    from river_llm.evaluation.run import execute
    from river_llm.evaluation.summary import last_line

    result = execute(config)
    print(terminal_summary(result.summary))
    if result.ungraded:
        print(
            f"{result.ungraded} samples have no verdict, since programs were not run. Grade them "
            f"with:\n  python scripts/regrade.py {result.folder} --allow-code-execution"
        )
    print(last_line(result), flush=True)


def fail(error: UserError) -> None:
    """Prints the message and ends with status 2."""
    sys.stdout.flush()
    print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(2)


if __name__ == "__main__":
    # Composed once before Hydra does it, every cell of a sweep, to tell a mistake in one line and
    # before anything runs; with other options (--help, --cfg, ...) that is left to Hydra.
    given = [argument for argument in sys.argv[1:] if argument not in ("-m", "--multirun")]
    if not any(argument.startswith("-") for argument in given):
        try:
            for cell in expand_sweep(given) if len(given) < len(sys.argv) - 1 else [given]:
                load_config(cell)
        except UserError as mistake:
            fail(mistake)
    run()
