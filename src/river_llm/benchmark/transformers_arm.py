"""`hf_generate`: transformers' own generation loop as arms, one for each kind of cache."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

from river_llm.benchmark.arms import HF_GENERATE
from river_llm.benchmark.decoders import mean_bytes
from river_llm.benchmark.hf_alone import Request
from river_llm.config import ModelConfig
from river_llm.errors import UserError
from river_llm.evaluation.traffic import Traffic
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.attention import transformers_sdpa
from river_llm.models.embedded import ensure_embedded
from river_llm.models.generate import Generate
from river_llm.models.loading import EMBEDDED


class TransformersArm:
    """`generate` with sdpa attention and one kind of cache.

    Args:
        adapter: this project's own backbone; the model's attention is put back after each pass.
        cache: `dynamic` or `static`.
        steps: decode steps in a pass.

    Attributes:
        prefill_seconds: of the last prefill.
    """

    def __init__(self, adapter: BackboneAdapter, cache: str, steps: int) -> None:
        self.name = f"{HF_GENERATE}/{cache}"
        self.cache = cache
        self.prefill_seconds = 0.0
        self._adapter = adapter
        self._model = adapter.model
        self._steps = steps
        self._prompt_length = 0
        self._generate: Generate | None = None

    def prefill(self, prompt: Sequence[int]) -> None:
        """Takes another prompt, with a new cache."""
        with transformers_sdpa(self._model):
            self._generate = Generate(self._model, self.cache, prompt, self._steps)
        self.prefill_seconds = self._generate.prefill_seconds
        self._prompt_length = len(prompt)

    def timed_pass(self) -> float:
        """Seconds of the decode steps behind the prompt's first token."""
        if self._generate is None:
            raise RuntimeError("there is no prompt yet")
        with transformers_sdpa(self._model):
            return self._generate.timed_pass()

    def bytes_per_token(self) -> dict[str, float]:
        """What a step has to read; a static cache, and copying a dynamic one, read more."""
        traffic = Traffic(self._adapter, None)
        extents = range(self._prompt_length + 1, self._prompt_length + self._steps + 1)
        return mean_bytes(
            [traffic.step_breakdown(self._adapter.num_layers, extent) for extent in extents]
        )

    def details(self) -> dict[str, Any]:
        """The kind of cache."""
        return {"cache": self.cache}


def faster_cache(records: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """One record `hf_generate` in place of those of its caches: that of the faster one.

    Args:
        records: of all arms by name, with `seconds` of each pass.
    """
    caches = {r["cache"]: r for r in records.values() if "cache" in r}
    medians = {cache: median(record["seconds"]) for cache, record in caches.items()}
    kept: dict[str, dict[str, Any]] = {}
    for name, record in records.items():
        if "cache" not in record:
            kept[name] = dict(record)
        elif record["cache"] == min(medians, key=lambda cache: medians[cache]):
            kept[HF_GENERATE] = {**record, "cache_median_seconds": medians}
    return kept


def seconds_alone(
    model: PreTrainedModel,
    config: ModelConfig,
    prompt: Sequence[int],
    steps: int,
    rounds: int,
    seed: int,
) -> dict[str, list[float]]:
    """Times `generate` in a process that knows nothing but torch and transformers.

    Args:
        model: this process's backbone; random weights are drawn anew from its configuration.
        config: where it came from.
        prompt: token ids.
        steps: decode steps in a pass.
        rounds: passes with each cache.
        seed: of random weights.

    Returns:
        Seconds of each pass, by cache.

    Raises:
        UserError: the process failed.
    """
    random = getattr(config, "shape", None) is not None
    with tempfile.TemporaryDirectory() as folder:
        if random:
            model.config.save_pretrained(folder)
        source = str(ensure_embedded()) if config.path == EMBEDDED else config.path
        request = Request(
            folder=folder if random else source,
            random=random,
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(model.device),
            threads=torch.get_num_threads(),
            prompt=list(prompt),
            steps=steps,
            rounds=rounds,
            seed=seed,
        )
        done = subprocess.run(
            [sys.executable, "-m", "river_llm.benchmark.hf_alone"],
            input=json.dumps(asdict(request)),
            capture_output=True,
            text=True,
        )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise UserError(f"hf_alone=true: transformers in a process of its own failed: {reason[0]}")
    seconds: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return seconds
