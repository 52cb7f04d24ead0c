"""transformers' own `generate`, timed in a process of its own.

Imports torch, transformers, what loads a checkpoint and the one loop that times it, so that
nothing else of this project could slow it down:

    python -m river_llm.benchmark.hf_alone < request.json

The request holds the fields of :class:`Request`; the answer is one JSON object on stdout, seconds
of each pass by the kind of cache.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from river_llm.models.checkpoint import NO_FOREIGN_CODE, load_decoder
from river_llm.models.generate import CACHES, Generate


@dataclass(frozen=True)
class Request:
    """What a process of its own times.

    Attributes:
        folder: of the checkpoint, or a hub id; of the configuration alone where `random`.
        random: whether the weights are drawn instead of loaded.
        dtype: of the weights, as torch names it.
        device: where they lie.
        threads: of torch.
        prompt: token ids.
        steps: decode steps in a pass.
        rounds: passes with each cache.
        seed: of random weights.
    """

    folder: str
    random: bool
    dtype: str
    device: str
    threads: int
    prompt: list[int]
    steps: int
    rounds: int
    seed: int


def load(request: Request) -> PreTrainedModel:
    """The model of a request, with sdpa attention."""
    dtype = getattr(torch, request.dtype)
    if request.random:
        torch.manual_seed(request.seed)
        config = AutoConfig.from_pretrained(request.folder, **NO_FOREIGN_CODE)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    else:
        model = load_decoder(request.folder, dtype, attn_implementation="sdpa")
    prepared: PreTrainedModel = model.to(request.device).eval()
    return prepared


def answer(request: Request) -> dict[str, list[float]]:
    """Seconds of each pass, by cache; the two take turns."""
    torch.set_num_threads(request.threads)
    model = load(request)
    arms = {cache: Generate(model, cache, request.prompt, request.steps) for cache in CACHES}
    seconds: dict[str, list[float]] = {cache: [] for cache in CACHES}
    for number in range(request.rounds):
        for cache in CACHES if number % 2 else CACHES[::-1]:
            seconds[cache].append(arms[cache].timed_pass())
    return seconds


if __name__ == "__main__":
    print(json.dumps(answer(Request(**json.load(sys.stdin)))))
