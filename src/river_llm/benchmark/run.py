"""The benchmark from settings to files: each context is timed, then all figures are saved."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from river_llm import environment
from river_llm.analysis.bench_figures import Arms, arm_figures, pass_figures
from river_llm.benchmark.arms import HF_GENERATE, INT8
from river_llm.benchmark.bandwidth import measure_bandwidth, rates_at
from river_llm.benchmark.building import BuiltArms, build_arms
from river_llm.benchmark.clock import Clock
from river_llm.benchmark.decoders import DecoderArm
from river_llm.benchmark.linears import linear_rates
from river_llm.benchmark.rounds import TimedArm, time_rounds
from river_llm.benchmark.settings import BenchConfig
from river_llm.benchmark.transformers_arm import faster_cache, seconds_alone
from river_llm.engine.weights import Layers, ResidentLayers
from river_llm.evaluation.runtime import Runtime
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import load_model
from river_llm.quant.quantizers import quant_record
from river_llm.records import write_json

WARM_UP_SHARE = 0.6
"""Of a context's time: arms that are not warm by then are dropped, those behind the others."""


@dataclass(frozen=True)
class BenchResult:
    """What a benchmark came to.

    Attributes:
        folder: holds bench.json.
        line: the object that ends standard output.
        contexts: figures of each context's arms, by length of the prompt.
    """

    folder: Path
    line: dict[str, Any]
    contexts: Mapping[int, Arms]


@dataclass(frozen=True)
class Measured:
    """What was measured in one context, so far.

    Attributes:
        arms: records that :func:`river_llm.analysis.bench_figures.arm_figures` takes.
        rounds: that were made.
        dropped: arms that were left out, since time was up.
        alone: seconds of transformers in a process of its own, by cache; None: not asked for.
        load_average: of the machine at the end.
    """

    arms: dict[str, dict[str, Any]]
    rounds: int
    dropped: list[str]
    alone: dict[str, list[float]] | None
    load_average: list[float]


def execute(config: BenchConfig) -> BenchResult:
    """Times every arm in every context; what is there is saved after each round.

    Raises:
        UserError: settings that do not fit the model, or a peer that is missing.
    """
    clock = Clock(config.budget_s)
    runtime = Runtime(load_model(config.model))
    built = build_arms(config, runtime)
    device = runtime.adapter.device
    name = f"{config.model.name}-{built.engine}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    folder = Path(config.output.dir) / "bench" / name
    bandwidth = measure_bandwidth(device)
    common = {
        "folder": str(folder),
        "linears": _linears(runtime.adapter, built.arms),
        "settings": _settings(config, runtime),
        "environment": environment.snapshot(device),
    }
    measured: dict[int, Measured] = {}

    def save() -> tuple[dict[str, Any], Mapping[int, Arms]]:
        contexts = {
            length: arm_figures(found.arms, config.steps, bandwidth.gb_per_s)
            for length, found in measured.items()
        }
        line = _line(config, runtime, built, measured, contexts)
        line["bandwidth_gb_per_s"] = bandwidth.gb_per_s
        record = {
            **line,
            **common,
            "bandwidth": {"kernel": bandwidth.kernel, "gb_per_s": bandwidth.rates},
            "measured": {str(length): asdict(found) for length, found in measured.items()},
        }
        folder.mkdir(parents=True, exist_ok=True)
        # As a whole, in place of the one before: who is cut short leaves a whole one.
        write_json(folder / "bench.json", record)
        return {**line, "folder": str(folder), "linears": common["linears"]}, contexts

    for number, context in enumerate(config.contexts):
        part = clock.part(1 / (len(config.contexts) - number))
        for found in _measure(config, runtime, built.arms, built.prompt[:context], part):
            measured[context] = found
            save()
        bandwidth = bandwidth.best_with(measure_bandwidth(device))
        line, contexts = save()
    return BenchResult(folder, line, contexts)


def _measure(
    config: BenchConfig,
    runtime: Runtime,
    arms: Sequence[TimedArm],
    prompt: list[int],
    clock: Clock,
) -> Iterator[Measured]:
    """Prefills every arm, warms it up by a whole pass, and times all in rounds.

    Yields:
        What is there after each round.
    """
    context = len(prompt)
    warm, dropped = _warm_up(arms, prompt, clock.part(WARM_UP_SHARE))
    kinds = [arm.bytes_per_token() for arm in warm]
    rates = rates_at(runtime.adapter.device, [sum((k or {}).values()) for k in kinds])
    for seconds in time_rounds(warm, config.rounds, f"context {context}: rounds"):
        records = {
            arm.name: {
                "seconds": seconds[arm.name],
                "prefill_seconds": arm.prefill_seconds,
                "bytes": read,
                "cached_gb_per_s": rate if read else None,
                **arm.details(),
            }
            for arm, read, rate in zip(warm, kinds, rates, strict=True)
        }
        made = len(seconds[warm[0].name])
        load = [round(number, 2) for number in os.getloadavg()]
        found = Measured(faster_cache(records), made, dropped, None, load)
        yield found
        if clock.over:
            break
    if made < config.rounds:
        tell(f"context {context}: {made} of {config.rounds} rounds, since time is up")
    if config.hf_alone:
        alone = seconds_alone(
            runtime.adapter.model, config.model, prompt, config.steps, config.rounds, config.seed
        )
        yield replace(found, alone=alone)


def _warm_up(
    arms: Sequence[TimedArm], prompt: list[int], clock: Clock
) -> tuple[list[TimedArm], list[str]]:
    """Prefill and one pass of each arm; those that are not reached in time are dropped, aloud."""
    # Whoever feeds a prompt of this length first would pay for what all others only use.
    arms[0].prefill(prompt)
    warm: list[TimedArm] = []
    for arm in tqdm(arms, desc=f"context {len(prompt)}: prefill", unit="arm"):
        if warm and clock.over:
            continue
        arm.prefill(prompt)
        arm.timed_pass()
        warm.append(arm)
    dropped = [arm.name for arm in arms[len(warm) :]]
    if dropped:
        tell(f"context {len(prompt)}: NOT TIMED, since time is up: {', '.join(dropped)}")
    return warm, dropped


def _linears(
    adapter: BackboneAdapter, arms: Sequence[TimedArm]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Rates of the linears alone: the backbone's, and those of each river that an arm runs."""
    stacks: dict[str, Layers] = {"backbone": ResidentLayers(adapter.layers)}
    for arm in arms:
        if isinstance(arm, DecoderArm) and arm.river is not None:
            stacks.setdefault("river/int8" if arm.name == INT8 else "river", arm.river)
    return {name: linear_rates(adapter, stack) for name, stack in stacks.items()}


def _line(
    config: BenchConfig,
    runtime: Runtime,
    built: BuiltArms,
    measured: dict[int, Measured],
    contexts: Mapping[int, Arms],
) -> dict[str, Any]:
    shown = {
        str(length): {
            "arms": arms,
            "rounds_made": measured[length].rounds,
            "dropped": measured[length].dropped,
            "hf_alone": _alone(config, measured[length].alone, arms),
        }
        for length, arms in contexts.items()
    }
    first = config.contexts[0]
    line = {
        **shown[str(first)],
        "context": first,
        "steps": config.steps,
        "rounds": config.rounds,
        "model": config.model.name,
        "layers": runtime.adapter.num_layers,
        "engine": built.engine,
        "threads": torch.get_num_threads(),
        "compile_seconds": built.compile_seconds(),
    }
    return {**line, "contexts": shown} if len(config.contexts) > 1 else line


def _alone(
    config: BenchConfig, seconds: dict[str, list[float]] | None, arms: Arms
) -> dict[str, Any] | None:
    if seconds is None:
        return None
    by_cache = {cache: pass_figures(own, config.steps) for cache, own in seconds.items()}
    best = min(by_cache, key=lambda cache: by_cache[cache]["ms_per_token"])
    here = arms[HF_GENERATE]["ms_per_token"] if HF_GENERATE in arms else None
    ratio = None if here is None else here / by_cache[best]["ms_per_token"]
    return {"cache": best, **by_cache[best], "hf_generate_ratio": ratio}


def _settings(config: BenchConfig, runtime: Runtime) -> dict[str, Any]:
    """What was asked for, without paths: the model stands there by its content."""
    return {
        "model": config.model.name,
        "model_fingerprint": runtime.model.fingerprint[:12],
        "dtype": config.model.dtype,
        "quant": quant_record(config.quant),
        "engine": asdict(config.engine),
        "seed": config.seed,
    }


def tell(message: str) -> None:
    """Says aloud what was not done as asked."""
    print(f"river_llm: {message}", file=sys.stderr)
