"""Typed settings of `scripts/bench_decode.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from river_llm.config import (
    CriterionConfig,
    EngineConfig,
    ExpConfig,
    Method,
    ModelConfig,
    NeverConfig,
    NoExitConfig,
    OutputConfig,
    QuantConfig,
    RunConfig,
    check_ranges,
    read,
)
from river_llm.errors import UserError


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """One benchmark. Built by :func:`parse`; `conf/bench_decode.yaml` says what the keys mean."""

    model: ModelConfig
    quant: QuantConfig
    engine: EngineConfig
    arms: tuple[str, ...] | None = None
    contexts: tuple[int, ...] = (256,)
    steps: int = 16
    rounds: int = 7
    gguf: str | None = None
    hf_alone: bool = False
    budget_s: float | None = None
    seed: int = 0
    output: OutputConfig = field(default_factory=OutputConfig)

    def run(
        self, method: Method, criterion: CriterionConfig, quant: QuantConfig | None = None
    ) -> RunConfig:
        """A method of this benchmark as a run; its task is never asked for.

        Args:
            method: how it decodes.
            criterion: where a token leaves the backbone.
            quant: of the river; None: the benchmark's. The head is the benchmark's in any case.
        """
        own = self.quant if quant is None else replace(quant, head=self.quant.head)
        return RunConfig(
            exp=ExpConfig(name="bench_decode", max_new_tokens=self.steps),
            model=self.model,
            method=method,
            criterion=criterion,
            quant=own,
            engine=self.engine,
            seed=self.seed,
        )


def parse(composed: Mapping[str, Any]) -> BenchConfig:
    """Checks a composed configuration and types it.

    Args:
        composed: plain nested dict.

    Raises:
        UserError: a key that no schema knows, a missing or ill-typed value, a value out of range.
    """
    config: BenchConfig = read(BenchConfig, dict(composed), "")
    if not config.contexts:
        raise UserError("contexts=[] is empty: give one prompt length or more")
    for key, values in (
        ("contexts", config.contexts),
        ("steps", (config.steps,)),
        ("rounds", (config.rounds,)),
    ):
        for value in values:
            if value < 1:
                raise UserError(f"{key}={value} is too small: give 1 or more")
    if config.budget_s is not None and not config.budget_s > 0:
        raise UserError(f"budget_s={config.budget_s} is too small: give seconds above 0")
    for key, names in (("contexts", config.contexts), ("arms", config.arms or ())):
        twice = sorted({str(name) for name in names if names.count(name) > 1})
        if twice:
            raise UserError(f"{key} names {twice[0]} twice: give each once")
    check_ranges(config.run(NoExitConfig(), NeverConfig()))
    return config
