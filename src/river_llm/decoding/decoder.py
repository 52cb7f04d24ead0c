"""The decoder: a KV strategy over an executor. It knows no text, no tasks, no files."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from river_llm.cache import SlotCache
from river_llm.engine.executor import Executor, Exit, NumericsError, StepInputs
from river_llm.errors import UserError


@dataclass(frozen=True)
class StepOutput:
    """What one prefill or decode step emits.

    Attributes:
        tokens: for each row the emitted token ids (greedy).
        margins: for each token, its logit minus the second largest.
        logits: [B, n, V] on the device, the logits that chose them.
        trace: where the backbone was left.
        block: tokens that were in the block where it was left: 1, or more where earlier tokens
            run again.
        pending_depths: depth that each earlier token without all its entries had after this step,
            in the order of the text up to the present one.
    """

    tokens: list[list[int]]
    margins: list[list[float]]
    logits: torch.Tensor
    trace: Exit
    block: int = 1
    pending_depths: tuple[int, ...] = ()


class Decoder(ABC):
    """Greedy decoding, one token a step, left-padded batches.

    A subclass says how the prompt and how a decode step run through the layers.

    Args:
        executor: runs the layers.
        cache: the executor's cache.
    """

    batched: ClassVar[bool] = False
    """Whether several rows may share a step: at one depth, where the least similar row decides."""

    def __init__(self, executor: Executor, cache: SlotCache) -> None:
        self.executor = executor
        self.cache = cache
        self.num_layers = executor.num_layers
        self.reset()

    def reset(self) -> None:
        """Forgets the sequence."""
        self.cache.truncate(0)
        self._ids: list[list[int]] = []
        self._pad: list[int] = []
        self._live: list[bool] = []
        self._prompt_length = 0
        self._length = 0

    @property
    def steps_done(self) -> int:
        """Decode steps since the prefill; 0 while the prompt runs."""
        return max(0, self._length - self._prompt_length)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> StepOutput:
        """Feeds the prompts and emits the first token of each row.

        Args:
            prompts: B lists of token ids, of any lengths above 0.

        Raises:
            UserError: several prompts for a method that decodes one sequence at a time.
            NumericsError: NaN in a score, or NaN or infinity in the logits.
        """
        if len(prompts) > 1 and not self.batched:
            raise UserError(
                f"{type(self).__name__} decodes one sequence at a time, {len(prompts)} were given: "
                "what a row skips differs from row to row"
            )
        self.reset()
        longest = max(len(prompt) for prompt in prompts)
        self._pad = [longest - len(prompt) for prompt in prompts]
        self._ids = [
            [0] * pad + list(prompt) for pad, prompt in zip(self._pad, prompts, strict=True)
        ]
        self._live = [True] * len(prompts)
        self._prompt_length = longest
        trace = self._run_prefill(range(longest))
        self._length = longest
        return self._emit(trace)

    def step(self, forced: Sequence[int] | None = None) -> StepOutput:
        """Feeds the token emitted last and emits the next.

        Args:
            forced: token ids to feed instead of those emitted last, one per row (teacher forcing).

        Raises:
            NumericsError: NaN in a score, or NaN or infinity in the logits.
        """
        if forced is not None:
            for row, token in zip(self._ids, forced, strict=True):
                row[-1] = token
        trace = self._run_step(self._length)
        self._length += 1
        return self._emit(trace)

    def finish(self, row: int) -> None:
        """Takes a row out of the exit decision; it goes on being computed."""
        self._live[row] = False

    def rollback(self, steps: int) -> None:
        """Undoes the last `steps` decode steps; the next step feeds the token emitted before them.

        Raises:
            ValueError: more steps than were made since the prefill.
        """
        if not 0 <= steps <= self.steps_done:
            raise ValueError(f"cannot roll back {steps} of {self.steps_done} decode steps")
        if steps:
            self._ids = [row[:-steps] for row in self._ids]
            self._length -= steps
            self.cache.truncate(self._length)

    @abstractmethod
    def _run_prefill(self, slots: range) -> Exit:
        """Runs the prompt's slots through the layers."""

    @abstractmethod
    def _run_step(self, slot: int) -> Exit:
        """Runs the token at `slot` through the layers."""

    def _inputs(self, slots: range) -> StepInputs:
        ids = [row[slots.start : slots.stop] for row in self._ids]
        return StepInputs(slots=slots, ids=ids, pad=self._pad)

    def _emit(self, trace: Exit) -> StepOutput:
        choice = self.executor.choose()
        best = zip(choice.peaks, choice.seconds, self._live, strict=True)
        if not all(math.isfinite(p) and math.isfinite(s) for p, s, alive in best if alive):
            raise NumericsError("the logits hold NaN or infinity")
        for row, token in zip(self._ids, choice.tokens, strict=True):
            row.append(token)
        tokens = [[token] for token in choice.tokens]
        margins = [[p - s] for p, s in zip(choice.peaks, choice.seconds, strict=True)]
        return StepOutput(tokens, margins, choice.logits, trace)
