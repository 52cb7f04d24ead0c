"""transformers' own `generate`, timed decode step by decode step.

Imports torch and transformers alone, so that it can also run in a process of its own, in which
nothing of this project could slow it down:

    python -m river_llm.benchmark.hf_alone < request.json

The request holds the fields of :class:`Request`; the answer is one JSON object on stdout, seconds
of each pass by the kind of cache.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    PreTrainedModel,
    StaticCache,
)
from transformers.generation.streamers import BaseStreamer

CACHES = ("dynamic", "static")


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


class Stamps(BaseStreamer):
    """Notes the time when the prompt is taken and when each token is there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """Called by `generate` with the prompt, then with each token, on the host."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Called by `generate` at the end."""


class Generate:
    """Greedy `generate` behind one prompt, which is fed once; end tokens end nothing.

    A pass continues from the prompt's last token, as `generate` does with a cache that holds the
    tokens before it. Its first token is not timed, the steps behind it are.

    Args:
        model: with the attention that `generate` is to use.
        cache: `dynamic` (transformers' default) or `static`.
        prompt: token ids.
        steps: decode steps in a pass.

    Attributes:
        prefill_seconds: from the prompt to the first token, when it was fed.
        tokens: of the last pass.
    """

    def __init__(
        self, model: PreTrainedModel, cache: str, prompt: Sequence[int], steps: int
    ) -> None:
        self._model = model
        self._steps = steps
        self._ids = torch.tensor([list(prompt)], device=model.device)
        length = len(prompt) + steps + 1
        self._cache: Any = (
            DynamicCache(config=model.config)
            if cache == "dynamic"
            else StaticCache(config=model.config, max_cache_len=length)
        )
        self._settings = GenerationConfig(
            max_new_tokens=steps + 1, do_sample=False, pad_token_id=0, use_cache=True
        )
        parameters = inspect.signature(type(model.model.layers[0]).forward).parameters
        self._argument = "cache" if "cache" in parameters else "past_key_values"
        self.tokens: list[int] = []
        times = self._generate()
        self.prefill_seconds = times[1] - times[0]

    def timed_pass(self) -> float:
        """Seconds of the decode steps behind the first token."""
        times = self._generate()
        return times[-1] - times[1]

    @torch.no_grad()
    def _generate(self) -> list[float]:
        stamps = Stamps()
        # A checkpoint's own settings (end tokens, penalties) would fill what is left open.
        own = self._model.generation_config
        self._model.generation_config = GenerationConfig()
        try:
            out = self._model.generate(
                self._ids,
                attention_mask=torch.ones_like(self._ids),
                generation_config=self._settings,
                streamer=stamps,
                **{self._argument: self._cache},
            )
        finally:
            self._model.generation_config = own
        self.tokens = out[0, self._ids.shape[1] :].tolist()
        if len(self.tokens) != self._steps + 1 or len(stamps.times) != self._steps + 2:
            raise RuntimeError(f"generate made {len(self.tokens)} tokens, not {self._steps + 1}")
        # The last token was never fed, and the prompt's last one is fed anew.
        self._forget(self._steps + 1)
        return stamps.times

    def _forget(self, tokens: int) -> None:
        for layer in self._cache.layers:
            if hasattr(layer, "crop"):
                layer.crop(-tokens)
            else:
                # Static layers before transformers 5.24.
                layer.cumulative_length.sub_(tokens)


def load(request: Request) -> PreTrainedModel:
    """The model of a request, with sdpa attention."""
    dtype = getattr(torch, request.dtype)
    if request.random:
        torch.manual_seed(request.seed)
        config = AutoConfig.from_pretrained(request.folder)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    else:
        model = AutoModelForCausalLM.from_pretrained(
            request.folder, dtype=dtype, attn_implementation="sdpa"
        )
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
