"""What a run is called in tables, and the settings that its summary shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from river_llm.config import (
    ConfidenceConfig,
    CriterionConfig,
    FixedConfig,
    HqqInt4Config,
    MonoDecreasingConfig,
    NeverConfig,
    RecomputeConfig,
    ReplayConfig,
    RiverConfig,
    RunConfig,
    SimilarityConfig,
    StaticConfig,
)
from river_llm.quant.quantizers import quant_record


def shown_settings(config: RunConfig, used: dict[str, Any], fingerprint: str) -> dict[str, Any]:
    """The settings of a run's summary.

    Args:
        config: the run.
        used: what :func:`river_llm.config.effective_settings` gives for it.
        fingerprint: of the model.
    """
    settings = {key: value for key, value in used.items() if key not in ("exp", "model")}
    settings |= {key: value for key, value in used["exp"].items() if key != "name"}
    settings |= {
        "dtype": config.model.dtype,
        "engine": config.engine.name,
        "prefill": config.method.prompt_in,
        "model_fingerprint": fingerprint[:12],
    }
    if config.method.needs_river:
        settings["quant"] = quant_record(config.quant)
    return settings


def arm_name(config: RunConfig) -> str:
    """Short name of a method with its settings, for tables and plots."""
    method = config.method
    words: list[str] = [method.name]
    if method.exits:
        words.append(_criterion_name(config.criterion))
    match method:
        case RiverConfig(prefill=prefill, pool=pool):
            words.append(prefill if pool == "last" else f"{prefill} pool={pool}")
        case RecomputeConfig(max_pending=most, restart=restart):
            words += [] if most is None else [f"max_pending={most}"]
            words += [] if restart == "embedding" else [f"restart={restart}"]
        case MonoDecreasingConfig(form="schedule", most=most, fewest=fewest, place=place):
            words.append(f"{'all' if most is None else most}->{fewest} in {method.length} {place}")
        case StaticConfig(k=k):
            words.append(f"k={k}")
    # What differs from the defaults shows, lest two rows of a table carry one name.
    if method.needs_river and replace(config.quant, head="none") != HqqInt4Config():
        size = getattr(config.quant, "group_size", None)
        words.append(config.quant.name if size is None else f"{config.quant.name} g{size}")
    if config.offload.after is not None:
        words.append(f"offload k={config.offload.after}")
        if config.offload.on_miss != "fetch":
            words.append(config.offload.on_miss)
    if config.quant.head != "none":
        words.append(f"head={config.quant.head}")
    if config.model.dtype != "bf16":
        words.append(config.model.dtype)
    return " ".join(words)


def _criterion_name(criterion: CriterionConfig) -> str:
    match criterion:
        case SimilarityConfig():
            return f"tau={criterion.tau:.6g}{_tested_depths(criterion)}"
        case ConfidenceConfig():
            return f"confidence={criterion.tau:.6g}{_tested_depths(criterion)}"
        case FixedConfig(depth=depth):
            return f"depth={depth}"
        case NeverConfig():
            return "never exits"
        case ReplayConfig(from_run=source):
            return f"replay of {Path(source).name}"


def _tested_depths(criterion: SimilarityConfig | ConfidenceConfig) -> str:
    low = f" min={criterion.min_depth}" if criterion.min_depth != 1 else ""
    return low + (f" max={criterion.max_depth}" if criterion.max_depth is not None else "")
