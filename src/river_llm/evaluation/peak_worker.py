"""Peak memory of one method, in a process of its own without any other arm.

    python -m river_llm.evaluation.peak_worker < request.json

The request holds the fields of :class:`PeakRequest`; the last line of stdout is one JSON object
with `peak_bytes`, `peak_source` and `tensor_bytes`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from river_llm.config import FullQuantConfig, RunConfig, parse
from river_llm.evaluation.criteria import recorded_depths
from river_llm.evaluation.resident import (
    AnonymousPeak,
    anonymous_bytes,
    give_back_freed,
    tensor_bytes,
)
from river_llm.evaluation.runtime import Runtime
from river_llm.models.loading import resolve_device
from river_llm.models.release import release_linears


@dataclass(frozen=True)
class PeakRequest:
    """What is measured.

    Attributes:
        config: settings of the run, its engine resolved.
        sample: id of the prompt's sample, for depths that were recorded.
        prompt: token ids.
        steps: decode steps behind it.
        slots: of the cache, as in the run.
    """

    config: dict[str, Any]
    sample: str
    prompt: list[int]
    steps: int
    slots: int


def answer(request: PeakRequest) -> dict[str, Any]:
    """Builds what the method needs, and measures from there on."""
    config = parse(request.config)
    give_back_freed()
    on_cpu = resolve_device(config.model.device).type == "cpu"
    before = anonymous_bytes() if on_cpu else 0
    runtime, config = prepare(config)
    decoder = runtime.decoder(
        config, runtime.criterion(config, recorded_depths(config)), request.slots
    )

    def run() -> None:
        decoder.prefill([request.prompt])
        for _ in range(request.steps):
            decoder.step()

    decoder.executor.criterion.begin_sample(request.sample)
    device = decoder.executor.device
    give_back_freed()
    peak = peak_of(run, device)
    if on_cpu:
        source = "anonymous resident memory (RssAnon) of the process"
        source += f", {before / 2**20:.0f} MiB of it there before the model"
    else:
        source = "torch.cuda.max_memory_allocated"
    source += f"; prompt of {len(request.prompt)} tokens and {request.steps} decode steps"
    if isinstance(config.method, FullQuantConfig):
        source += "; linears of the backbone's attention and FFN released before"
    if config.offload.after is not None:
        source += f"; those of its layers from {config.offload.after} on released before"
    # While the decoder still holds all that it needs between two steps.
    return {"peak_bytes": peak, "peak_source": source, "tensor_bytes": tensor_bytes(device)}


def prepare(config: RunConfig) -> tuple[Runtime, RunConfig]:
    """A model without what the method never runs, and the settings with the engine that serves."""
    runtime = Runtime.load(config)
    # Compares engines on both stacks, so it comes before one of them leaves memory.
    config = runtime.with_engine(config)
    river = runtime.river_of(config)
    if isinstance(config.method, FullQuantConfig) and river is not None:
        layers = [river.acquire(layer, 1) for layer in range(runtime.adapter.num_layers)]
        release_linears(runtime.adapter, layers)
    offloaded = runtime.offloaded(config)
    if offloaded is not None:
        release_linears(runtime.adapter, offloaded.layers, offloaded.first)
    return runtime, config


def peak_of(run: Callable[[], None], device: torch.device) -> int:
    """The largest memory while `run` runs: allocated on a GPU, or anonymous of the process."""
    if device.type == "cpu":
        with AnonymousPeak() as peak:
            run()
        return peak.nbytes
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return torch.cuda.max_memory_allocated(device)


if __name__ == "__main__":
    print(json.dumps(answer(PeakRequest(**json.load(sys.stdin)))))
