"""The exit criterion of a run, and the recorded depths that `replay` needs."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from river_llm.config import (
    ConfidenceConfig,
    CriterionConfig,
    FixedConfig,
    NeverConfig,
    ReplayConfig,
    RiverShuffledConfig,
    RunConfig,
    SimilarityConfig,
)
from river_llm.errors import UserError
from river_llm.exits import Confidence, Criterion, Fixed, Never, Replay, Similarity
from river_llm.records import FORCED_SCORES, RunFolder

Depths = Mapping[str, tuple[int, Sequence[int]]]
"""Sample id to prefill depth and depth of each decode step."""


def build_criterion(
    config: CriterionConfig, layers: int, depths: Depths | None, cycle: bool = False
) -> Criterion:
    """The criterion of a configuration for a model of `layers` layers.

    Args:
        config: the criterion's settings.
        layers: L.
        depths: recorded depths for `replay`.
        cycle: whether a replay begins again where its record ends.

    Raises:
        UserError: a depth outside the model.
    """
    match config:
        case SimilarityConfig():
            _check_tested_depths(config, layers)
            return Similarity(layers, config.tau, config.min_depth, config.max_depth)
        case ConfidenceConfig():
            _check_tested_depths(config, layers)
            return Confidence(layers, config.tau, config.min_depth, config.max_depth)
        case FixedConfig(depth=depth):
            if not 0 <= depth <= layers:
                raise UserError(f"criterion.depth={depth}: this model has depths 0 to {layers}")
            return Fixed(layers, depth)
        case NeverConfig():
            return Never(layers)
        case ReplayConfig(from_run=source):
            if depths is None:
                raise TypeError("replay needs recorded depths")
            deepest = max(max([first, *steps]) for first, steps in depths.values())
            if deepest > layers:
                raise UserError(
                    f"criterion.from_run={source} recorded depth {deepest}, this model has depths "
                    f"0 to {layers}: give a run of the same model"
                )
            return Replay(layers, depths, source, cycle)


def _check_tested_depths(config: SimilarityConfig | ConfidenceConfig, layers: int) -> None:
    lowest, deepest = config.min_depth, config.max_depth
    if not 1 <= lowest < layers:
        raise UserError(
            f"criterion.min_depth={lowest}: scores are tested at depths 1 to {layers - 1}"
        )
    if deepest is not None and deepest < lowest:
        raise UserError(f"criterion.max_depth={deepest} is below criterion.min_depth={lowest}")


def recorded_depths(config: RunConfig) -> Depths | None:
    """The depths that `criterion=replay` names; None for every other criterion.

    For `river_shuffled` the depths of the decode steps are permuted within each sample, by the
    run's seed. They are those on no_exit's text where the named run was measured there, since
    there both runs see the same text; else those of its own text.

    Raises:
        UserError: the run folder holds no samples, or river_shuffled has nothing to shuffle.
    """
    shuffled = isinstance(config.method, RiverShuffledConfig)
    if not (config.method.exits and isinstance(config.criterion, ReplayConfig)):
        if shuffled:
            raise UserError(
                "method=river_shuffled permutes the depths of a run: give criterion=replay "
                "criterion.from_run=RUN_DIR"
            )
        return None
    source = config.criterion.from_run
    folder = RunFolder(Path(source))
    depths = {r.id: (r.prefill_depth, list(r.exit_depths)) for r in folder.samples()}
    if shuffled:
        forced = folder.read_json(FORCED_SCORES) or {"samples": {}}
        for key, row in forced["samples"].items():
            depths[key] = (row["prefill_depth"], list(row["depths"]))
    if not depths:
        raise UserError(f"criterion.from_run={source} holds no samples: give a run's folder")
    if shuffled:
        for key, (_, steps) in depths.items():
            random.Random(f"{config.seed} {key}").shuffle(steps)
    return depths


def depths_fingerprint(depths: Depths) -> str:
    """Hash of recorded depths, for the run identity."""
    content = json.dumps({key: [p, list(d)] for key, (p, d) in depths.items()}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
