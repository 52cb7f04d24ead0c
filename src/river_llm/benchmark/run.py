"""The benchmark from settings to files: each context is timed, then all figures are saved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from river_llm import environment
from river_llm.analysis.bench_figures import Arms, arm_figures, pass_figures
from river_llm.analysis.bench_plot import decode_plot
from river_llm.benchmark.arms import HF_GENERATE
from river_llm.benchmark.bandwidth import measure_bandwidth, rates_at
from river_llm.benchmark.building import BuiltArms, build_arms
from river_llm.benchmark.rounds import TimedArm, time_rounds
from river_llm.benchmark.settings import BenchConfig
from river_llm.benchmark.transformers_arm import faster_cache, seconds_alone
from river_llm.evaluation.runtime import Runtime
from river_llm.models.loading import load_model
from river_llm.quant.quantizers import quant_record


@dataclass(frozen=True)
class BenchResult:
    """What a benchmark came to.

    Attributes:
        folder: holds bench.json and decode.png.
        line: the object that ends standard output.
        contexts: figures of each context's arms, by length of the prompt.
    """

    folder: Path
    line: dict[str, Any]
    contexts: Mapping[int, Arms]


@dataclass(frozen=True)
class Measured:
    """What was measured in one context.

    Attributes:
        arms: records that :func:`river_llm.analysis.bench_figures.arm_figures` takes.
        alone: seconds of transformers in a process of its own, by cache; None: not asked for.
        load_average: of the machine at the end.
    """

    arms: dict[str, dict[str, Any]]
    alone: dict[str, list[float]] | None
    load_average: list[float]


def execute(config: BenchConfig) -> BenchResult:
    """Times every arm in every context; what is there is saved after each.

    Raises:
        UserError: settings that do not fit the model, or a peer that is missing.
    """
    runtime = Runtime(load_model(config.model))
    built = build_arms(config, runtime)
    device = runtime.adapter.device
    name = f"{config.model.name}-{built.engine}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    folder = Path(config.output.dir) / "bench" / name
    bandwidth = measure_bandwidth(device)
    measured: dict[int, Measured] = {}
    for context in config.contexts:
        measured[context] = _measure(config, runtime, built.arms, built.prompt[:context])
        bandwidth = bandwidth.best_with(measure_bandwidth(device))
        contexts = {
            length: arm_figures(found.arms, config.steps, bandwidth.gb_per_s)
            for length, found in measured.items()
        }
        line = _line(config, runtime, built, measured, contexts)
        line |= {"bandwidth_gb_per_s": bandwidth.gb_per_s, "folder": str(folder)}
        record = {
            **line,
            "bandwidth": {"kernel": bandwidth.kernel, "gb_per_s": bandwidth.rates},
            "settings": _settings(config, runtime),
            "environment": environment.snapshot(device),
            "measured": {str(length): asdict(found) for length, found in measured.items()},
        }
        _save(folder, record, contexts, runtime.adapter.num_layers)
    return BenchResult(folder, line, contexts)


def _measure(
    config: BenchConfig, runtime: Runtime, arms: Sequence[TimedArm], prompt: list[int]
) -> Measured:
    """Prefills every arm, warms it up by a whole pass, and times all in rounds."""
    context = len(prompt)
    # Whoever feeds a prompt of this length first would pay for what all others only use.
    arms[0].prefill(prompt)
    for arm in tqdm(arms, desc=f"context {context}: prefill", unit="arm"):
        arm.prefill(prompt)
        arm.timed_pass()
    seconds = time_rounds(arms, config.rounds, f"context {context}: rounds")
    kinds = [arm.bytes_per_token() for arm in arms]
    rates = rates_at(runtime.adapter.device, [sum((k or {}).values()) for k in kinds])
    records = {
        arm.name: {
            "seconds": seconds[arm.name],
            "prefill_seconds": arm.prefill_seconds,
            "bytes": read,
            "cached_gb_per_s": rate if read else None,
            **arm.details(),
        }
        for arm, read, rate in zip(arms, kinds, rates, strict=True)
    }
    alone = None
    if config.hf_alone:
        alone = seconds_alone(
            runtime.adapter.model, config.model, prompt, config.steps, config.rounds, config.seed
        )
    load = environment.snapshot(runtime.adapter.device)["load_average"]
    return Measured(faster_cache(records), alone, load)


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


def _save(folder: Path, record: dict[str, Any], contexts: Mapping[int, Arms], layers: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    (folder / "bench.json").write_text(text, encoding="utf-8")
    subtitle = (
        f"{record['model']}, {record['settings']['dtype']}, engine {record['engine']}, "
        f"{record['threads']} threads, {record['bandwidth_gb_per_s']:.1f} GB/s; medians and "
        f"quartiles of {record['rounds']} rounds"
    )
    decode_plot(contexts, layers, subtitle, folder / "decode.png")
