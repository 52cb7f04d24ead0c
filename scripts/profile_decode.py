"""Where the time of a decode step goes, part by part:

    python scripts/profile_decode.py 'arms=[no_exit,full_quant,river@3]' contexts=[256]
    python scripts/profile_decode.py engine=eager 'arms=[no_exit]'

Takes the keys of scripts/bench_decode.py; the first of `contexts` counts, `rounds` does not, and
of the arms only this project's own. Prints tables; times are of a profiled run, so a little long.
"""

from __future__ import annotations

import argparse

from river_llm.composition import complete, composed
from river_llm.entry_point import end


def main() -> int:
    """Prints the profiles."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help="key=value, as in conf/bench_decode.yaml")
    print(profiles(parser.parse_args().overrides))
    return 0


def profiles(overrides: list[str]) -> str:
    """Profiles every own arm; returns the tables.

    Raises:
        UserError: settings that do not fit, or no arm of this project's.
    """
    from river_llm.benchmark.settings import parse

    config = parse(complete(composed(overrides, "bench_decode")))
    # Imported late: a mistake on the command line is told without waiting for torch.
    from river_llm.benchmark.building import build_arms
    from river_llm.benchmark.decoders import DecoderArm
    from river_llm.benchmark.profile import profile_arm, profile_table
    from river_llm.evaluation.runtime import Runtime
    from river_llm.models.loading import load_model

    built = build_arms(config, Runtime(load_model(config.model)))
    own = [arm for arm in built.arms if isinstance(arm, DecoderArm)]
    prompt = built.prompt[: config.contexts[0]]
    return profile_table([profile_arm(arm, prompt, config.steps) for arm in own])


if __name__ == "__main__":
    end(main)
