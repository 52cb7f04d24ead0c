"""The executor interface: the only thing that runs layers.

Layer indices are 0-based and ranges half-open: depth d means that layers 0..d-1 of the backbone
ran. A decoder calls :meth:`Executor.begin` with everything that changes from step to step; no
other call takes tensors or values that do, so that an engine may capture the regions between.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from river_llm.cache import SlotCache, Source
from river_llm.engine.weights import Layers
from river_llm.exits import Criterion
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.head import Head


class EngineUnavailable(Exception):
    """An engine cannot serve here; the message says why in one line."""


class NumericsError(FloatingPointError):
    """NaN where a number was needed."""


@dataclass(frozen=True)
class StepInputs:
    """What one pass through the layers works on.

    Attributes:
        slots: cache slots of the T tokens, shared by the batch, ascending.
        pad: left padding of each row; rotary position = slot - pad.
        ids: token ids, B lists of T, for a pass from the embedding.
        hidden: states [B, T, H] of the model's dtype, for a pass from a depth that the tokens
            have reached; exactly one of `ids` and `hidden` is given.
        gaps: False: every earlier slot that is no padding holds an entry in every layer; True:
            each layer also hides the slots that are empty in it.
        pool: which rows the exit score sees: the last token, or the mean over live tokens.
    """

    slots: Sequence[int]
    pad: Sequence[int]
    ids: Sequence[Sequence[int]] | None = None
    hidden: torch.Tensor | None = None
    gaps: bool = False
    pool: Literal["last", "mean"] = "last"

    def __post_init__(self) -> None:
        if (self.ids is None) == (self.hidden is None):
            raise ValueError("a pass starts from ids or from hidden states: give exactly one")


@dataclass(frozen=True)
class Exit:
    """Where the backbone was left.

    Attributes:
        depth: 0..L.
        score: score at the last test; None when the depth was planned or nothing was tested.
        fired: whether a test ended the backbone.
        tests: tests made on the way.
    """

    depth: int
    score: float | None = None
    fired: bool = False
    tests: int = 0


@dataclass(frozen=True)
class Choice:
    """The likeliest next token of each row, of the last token's logits.

    Attributes:
        logits: [B, 1, V] on the device.
        tokens: for each row the index of the first largest logit.
        peaks: for each row the largest logit; NaN where any logit is NaN.
        seconds: for each row the next largest.
    """

    logits: torch.Tensor
    tokens: list[int]
    peaks: list[float]
    seconds: list[float]


class Executor(ABC):
    """Runs layers on fixed buffers.

    Args:
        adapter: drives the layers.
        cache: shared by both stacks.
        criterion: exit criterion whose score is bound in.
        backbone: the 16-bit stack.
        river: the 4-bit stack; None for methods that never enter it.
        head: final norm and LM head, also the criterion's.

    Attributes:
        name: of the engine, as records call it.
        adapter, cache, criterion, head: as given.
        num_layers: L.
        device: where the buffers live.
        reads: transfers to the host so far.
    """

    name: str
    reads: int = 0

    def __init__(
        self,
        adapter: BackboneAdapter,
        cache: SlotCache,
        criterion: Criterion,
        backbone: Layers,
        river: Layers | None,
        head: Head,
    ) -> None:
        self.adapter = adapter
        self.cache = cache
        self.criterion = criterion
        self.head = head
        self.num_layers = adapter.num_layers
        self.device = adapter.device
        self._stacks: Mapping[Source, Layers | None] = {
            Source.BACKBONE: backbone,
            Source.RIVER: river,
        }

    @abstractmethod
    def begin(self, inputs: StepInputs) -> None:
        """Sets states, slots, positions and visibility for what follows.

        It may be called several times in a step.
        """

    @abstractmethod
    def backbone(self, first: int, last: int) -> None:
        """Runs backbone layers first..last-1."""

    @abstractmethod
    def river(self, first: int, last: int) -> None:
        """Runs river layers first..last-1."""

    @abstractmethod
    def kv_only(self, first: int, last: int) -> None:
        """Writes the entries of backbone layers first..last-1 for the present hidden states.

        Only norm and k/v projections of the layers run; the hidden states stay as they are.
        """

    @abstractmethod
    def score(self) -> torch.Tensor:
        """The criterion's score of the layer that ran last, float32 [B] on the device."""

    @abstractmethod
    def hidden(self) -> torch.Tensor:
        """A copy of the hidden states [B, T, H]."""

    @abstractmethod
    def logits(self, rows: int = 1) -> torch.Tensor:
        """Logits of the last `rows` tokens, [B, rows, V]."""

    def read(self, *vectors: torch.Tensor) -> list[list[float]]:
        """Brings device vectors to the host in one transfer, as float64 (exact for token ids)."""
        self.reads += 1
        sizes = [vector.numel() for vector in vectors]
        parts = [vector.reshape(-1).double() for vector in vectors]
        flat = (torch.cat(parts) if len(parts) > 1 else parts[0]).tolist()
        out, start = [], 0
        for size in sizes:
            out.append(flat[start : start + size])
            start += size
        return out

    def choose(self) -> Choice:
        """The likeliest next tokens, in one transfer to the host."""
        logits = self.logits()
        tokens, peaks, seconds = self.read(*best_two(logits))
        return Choice(logits, [int(token) for token in tokens], peaks, seconds)

    def until(self, first: int, last: int, live: Sequence[bool]) -> Exit:
        """Runs the backbone from depth `first` until a test fires, at most to depth `last`.

        The smallest score over the live rows decides for the batch (paper, exit decision).

        Raises:
            NumericsError: a live score is NaN.
        """
        depth, score, tests = first, None, 0
        while depth < last:
            target = depth + 1
            while target < last and not self.criterion.tested(target):
                target += 1
            self.backbone(depth, target)
            depth = target
            if not self.criterion.tested(depth):
                continue
            scores = self._read_score()
            tests += 1
            score = min(s for s, alive in zip(scores, live, strict=True) if alive)
            if any(math.isnan(s) for s, alive in zip(scores, live, strict=True) if alive):
                raise NumericsError(f"the exit score after backbone layer {depth - 1} is NaN")
            if score > self.criterion.threshold(depth):
                return Exit(depth, score, True, tests)
        return Exit(depth, score, False, tests)

    def _read_score(self) -> list[float]:
        (scores,) = self.read(self.score())
        return scores


def best_two(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the last token's logits: index and value of the first largest, and the next largest.

    The largest is NaN if any logit is, so that no other flag must be read.

    Args:
        logits: [B, n, V].

    Returns:
        long [B], float32 [B], float32 [B].
    """
    last = logits[:, -1].float()
    # Not topk: among equal logits it need not take the first, as argmax does.
    best = last.max(-1)
    second = last.scatter(-1, best.indices[:, None], -math.inf).amax(-1)
    return best.indices, best.values, second
