"""transformers' own `generate`, timed decode step by decode step.

Imports torch and transformers alone, so that a process of its own can time it without anything
else of this project.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StaticCache,
)
from transformers.generation.streamers import BaseStreamer

CACHES = ("dynamic", "static")


class Stamps(BaseStreamer):
    """Notes the time when the prompt is taken and when each token is there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """Called by `generate` with the prompt, then with each token, on the host."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Called by `generate` at the end."""


class _Forced(LogitsProcessor):
    """Lets given tokens win, whatever the model prefers.

    One number of the logits is written, since this is on the clock.
    """

    def __init__(self, prompt_length: int, tokens: Sequence[int]) -> None:
        self._prompt_length = prompt_length
        self._tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, self._tokens[input_ids.shape[1] - self._prompt_length]] = torch.inf
        return scores


class Generate:
    """Greedy `generate` behind one prompt, which is fed once; end tokens end nothing.

    A pass continues from the prompt's last token, as `generate` does with a cache that holds the
    tokens before it. Its first token is not timed, the steps behind it are.

    Args:
        model: with the attention that `generate` is to use.
        cache: `dynamic` (transformers' default) or `static`.
        prompt: token ids.
        steps: decode steps in a pass.
        forced: the steps + 1 tokens that each pass emits, and feeds but for the last; None: those
            that the model prefers.

    Attributes:
        prefill_seconds: from the prompt to the first token, when it was fed.
        tokens: of the last pass.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: str,
        prompt: Sequence[int],
        steps: int,
        forced: Sequence[int] | None = None,
    ) -> None:
        self._model = model
        self._steps = steps
        self._processors = LogitsProcessorList()
        if forced is not None:
            self._processors.append(_Forced(len(prompt), forced))
        self._ids = torch.tensor([list(prompt)], device=model.device)
        length = len(prompt) + steps + 1
        self._cache: Any = (
            DynamicCache(config=model.config)
            if cache == "dynamic"
            else StaticCache(config=model.config, max_cache_len=length)
        )
        self._settings = GenerationConfig(
            max_new_tokens=steps + 1,
            do_sample=False,
            pad_token_id=0,
            use_cache=True,
            # On CUDA a static cache would have the model compiled, and what is timed another one.
            disable_compile=True,
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
                logits_processor=self._processors,
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
