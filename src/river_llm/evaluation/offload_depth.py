"""How many backbone layers stay in memory where `offload.after=auto` asks the exit depths."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace

from river_llm.config import OffloadConfig, RunConfig
from river_llm.errors import UserError
from river_llm.evaluation.criteria import Depths
from river_llm.evaluation.numerics import named
from river_llm.evaluation.prompts import Prompt
from river_llm.evaluation.runtime import Runtime

PROMPTS, STEPS = 2, 32
"""Size of the warm-up: the first prompts of the run, and decode steps behind each."""


def with_offload(
    runtime: Runtime, config: RunConfig, prompts: Sequence[Prompt], depths: Depths | None
) -> RunConfig:
    """The settings with `offload.after` as a number, which is what identities count.

    Args:
        runtime: the loaded model, all of it in memory.
        config: the run, its engine resolved.
        prompts: of the run; the first are the warm-up.
        depths: recorded depths for `replay`.

    Raises:
        UserError: no layer would be offloaded.
    """
    after, layers = config.offload.after, runtime.adapter.num_layers
    if after is None:
        return config
    if after == "auto":
        found = warm_up_depths(runtime, config, prompts, depths)
        after = covering_depth(found, config.offload.coverage)
        print(
            f"river_llm: offload.after=auto: {after} of {layers} layers, which "
            f"{config.offload.coverage:.0%} of {len(found)} warm-up steps did not go beyond",
            file=sys.stderr,
        )
        if after >= layers:
            raise UserError(
                f"offload.after=auto: more than {1 - config.offload.coverage:.0%} of the warm-up's "
                f"tokens run all {layers} layers, so that none is offloaded: give offload.after=k "
                "or a smaller offload.coverage"
            )
    if not isinstance(after, int) or after >= layers:
        raise UserError(
            f"offload.after={after}: this model has {layers} layers; give 0 to {layers - 1}"
        )
    return replace(config, offload=replace(config.offload, after=after))


def covering_depth(depths: Sequence[int], coverage: float) -> int:
    """The smallest depth that at least a share `coverage` of the depths does not exceed."""
    ordered = sorted(depths)
    # A product that should be whole may come out a little above.
    place = max(1, math.ceil(coverage * len(ordered) - 1e-9))
    return ordered[place - 1]


def warm_up_depths(
    runtime: Runtime, config: RunConfig, prompts: Sequence[Prompt], depths: Depths | None
) -> list[int]:
    """Exit depths of the first decode steps of the first prompts, nothing offloaded.

    Raises:
        UserError: no step could be made.
    """
    config = replace(config, offload=OffloadConfig())
    criterion = runtime.criterion(config, depths)
    chosen = [p for p in prompts if criterion.recorded_steps(p.sample.id) != 0][:PROMPTS]
    longest = max((len(prompt.ids) for prompt in chosen), default=0)
    slots = min(runtime.adapter.context, longest + STEPS)
    decoder = runtime.decoder(config, criterion, slots)
    found: list[int] = []
    for prompt in chosen:
        criterion.begin_sample(prompt.sample.id)
        recorded = criterion.recorded_steps(prompt.sample.id)
        steps = min(slots - len(prompt.ids), STEPS if recorded is None else min(STEPS, recorded))
        with named(prompt.sample.id, lambda: f"warm-up, step {decoder.steps_done}"):
            decoder.prefill([prompt.ids])
            found += [decoder.step().trace.depth for _ in range(steps)]
    if not found:
        raise UserError("offload.after=auto: no prompt leaves room for a warm-up; give k")
    return found
