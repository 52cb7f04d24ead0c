"""The speedups of decoding: against no_exit on the same engine, on the eager one, and transformers.

All are paired with the arm on the same texts. `matched` is timed first and alone; the others have
passes of their own behind it, in which the arm is timed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from river_llm.analysis.statistics import bootstrap_ratio
from river_llm.config import (
    EagerConfig,
    NoExitConfig,
    RunConfig,
    StatePropagationConfig,
)
from river_llm.decoding import Decoder
from river_llm.evaluation.fidelity import ForcedText
from river_llm.evaluation.numerics import named
from river_llm.evaluation.paired_arms import ForcedDecoder, ForcedGenerate
from river_llm.evaluation.prompts import Prompt
from river_llm.evaluation.runtime import Runtime
from river_llm.evaluation.speedup import PairedTimes, paired_times, tokens_ignoring_eos
from river_llm.evaluation.traffic import Traffic
from river_llm.exits import Confidence

SPREAD_LIMIT = 0.15
"""Passes of one arm on one prompt that differ by more than this share flag the speedup."""

Speedups = dict[str, dict[str, Any] | None]
"""`matched`, `vs_eager` and `vs_hf`; None: not measured."""


def decode_speedups(
    runtime: Runtime, config: RunConfig, arm: Decoder, no_exit: Decoder, prompts: Sequence[Prompt]
) -> Speedups:
    """Times the arm beside each reference that the settings ask for.

    Args:
        runtime: the model.
        config: the run, its engine resolved.
        arm: the method.
        no_exit: on the same engine, with a cache of its own.
        prompts: the first `speedup.prompts` of them are used. Those whose timed tokens exceed the
            context or the recorded depths are left out.
    """
    texts = _texts(config, arm, no_exit, prompts)
    found: Speedups = {"matched": None, "vs_eager": None, "vs_hf": None}
    if not texts:
        return found
    size, forced = config.speedup, ForcedDecoder(arm)
    times = paired_times(ForcedDecoder(no_exit), forced, texts, size.rounds)
    matched = _matched(runtime, config, arm, times)
    found["matched"] = matched
    if size.vs_eager and isinstance(config.engine, EagerConfig):
        found["vs_eager"] = _same_as(matched)
    elif size.vs_eager:
        eager = ForcedDecoder(eager_no_exit(runtime, config, no_exit.cache.slots))
        times = paired_times(eager, forced, texts, size.rounds)
        found["vs_eager"] = {**_figures(config, times), "same_as_matched": False}
    if size.vs_hf:
        times = paired_times(ForcedGenerate(runtime.adapter), forced, texts, size.rounds)
        found["vs_hf"] = figures = _figures(config, times)
        if config.quant.head != "none":
            figures["flags"].append("the reference has its head at 16 bits")
    return found


def eager_no_exit(runtime: Runtime, config: RunConfig, slots: int) -> Decoder:
    """no_exit of a run's settings on the eager engine, with a cache of its own."""
    engine = EagerConfig(threads=config.engine.threads)
    eager = replace(config.as_no_exit(), engine=engine)
    return runtime.decoder(eager, runtime.criterion(eager, None), slots)


def _texts(
    config: RunConfig, arm: Decoder, no_exit: Decoder, prompts: Sequence[Prompt]
) -> list[ForcedText]:
    """The texts along which every arm is timed."""
    texts = []
    count = config.speedup.tokens
    for prompt in prompts[: config.speedup.prompts]:
        recorded = arm.executor.criterion.recorded_steps(prompt.sample.id)
        if len(prompt.ids) + count > no_exit.cache.slots:
            continue
        if recorded is not None and recorded + 1 < count:
            continue
        with named(prompt.sample.id, lambda: "paired timing"):
            tokens = tokens_ignoring_eos(no_exit, prompt.ids, count)
        texts.append(ForcedText(prompt.sample.id, prompt.ids, tokens))
    return texts


def _figures(config: RunConfig, times: Sequence[PairedTimes]) -> dict[str, Any]:
    """The ratio of the sums of times, its interval, and what a reader must know of it."""
    reference = [sum(t.reference_seconds) for t in times]
    measured = [sum(t.arm_seconds) for t in times]
    ratio, low, high = bootstrap_ratio(reference, measured, seed=config.seed)
    spread = max(max(s) / min(s) - 1 for t in times for s in (t.reference_seconds, t.arm_seconds))
    steps = sum(t.steps for t in times) * 2 * config.speedup.rounds
    return {
        "value": ratio,
        "low": low,
        "high": high,
        "prompts": len(times),
        "tokens": config.speedup.tokens,
        "rounds": config.speedup.rounds,
        "reference_ms_per_token": 1000 * sum(reference) / steps,
        "arm_ms_per_token": 1000 * sum(measured) / steps,
        "flags": [f"passes differ by up to {spread:.0%}"] if spread > SPREAD_LIMIT else [],
    }


def _matched(
    runtime: Runtime, config: RunConfig, arm: Decoder, times: Sequence[PairedTimes]
) -> dict[str, Any]:
    """The figures against no_exit on the same engine, with the bound that the bytes set."""
    figures = _figures(config, times)
    layers = runtime.adapter.num_layers
    head = runtime.head(config.quant)
    own = Traffic(
        runtime.adapter,
        runtime.river_of(config),
        propagates=isinstance(config.method, StatePropagationConfig),
        tests_read_head=isinstance(arm.executor.criterion, Confidence),
        head=head,
    )
    full = Traffic(runtime.adapter, None, head=head)
    own_bytes = sum(own.total(t.arm_depths, t.prompt_tokens, t.arm_tests) for t in times)
    full_bytes = sum(full.total([layers] * t.steps, t.prompt_tokens) for t in times)
    bound = full_bytes / own_bytes
    ratio = figures["value"]
    # no_exit against itself may well come out above its bound of 1: that is the clock's noise.
    if ratio is not None and ratio > bound and not isinstance(config.method, NoExitConfig):
        figures["flags"].insert(0, "reference below par")
    if config.offload.after is not None:
        figures["flags"].append("fetched layers come over a slower link than the bound counts")
    figures["no_exit_ms_per_token"] = figures.pop("reference_ms_per_token")
    depths = [depth for t in times for depth in t.arm_depths]
    return {**figures, "mean_depth": sum(depths) / len(depths), "bound_speedup": bound}


def _same_as(matched: dict[str, Any]) -> dict[str, Any]:
    """The matched figures as those against the eager engine, which is the run's own."""
    left = {k: v for k, v in matched.items() if k not in ("mean_depth", "bound_speedup")}
    left["reference_ms_per_token"] = left.pop("no_exit_ms_per_token")
    return {**left, "same_as_matched": True}
