"""The two sides of a paired timing: a decoder, or transformers' `generate`, forced along a text."""

from __future__ import annotations

from typing import Protocol

from river_llm.decoding import Decoder
from river_llm.engine.executor import Exit
from river_llm.evaluation.fidelity import ForcedText
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.attention import transformers_sdpa
from river_llm.models.generate import Generate
from river_llm.timing import Timer

WARM_UP_STEPS = 4


class PairedArm(Protocol):
    """One side of a paired timing."""

    def take(self, text: ForcedText) -> None:
        """Feeds the prompt, and warms up."""

    def timed_pass(self) -> float:
        """Seconds of the decode steps from the prompt's first token along the text.

        One step for each token but the last, which is not fed; the device is done at both ends.
        """


class ForcedDecoder:
    """A method, or no_exit on any engine.

    Args:
        decoder: with a cache of its own.

    Attributes:
        traces: of the steps of the last pass.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.traces: list[Exit] = []

    def take(self, text: ForcedText) -> None:
        self.decoder.executor.criterion.begin_sample(text.id)
        self._fed = text.tokens[:-1]
        self.decoder.prefill([text.prompt])
        for token in self._fed[:WARM_UP_STEPS]:
            self.decoder.step(forced=[token])
        self.decoder.rollback(len(self._fed[:WARM_UP_STEPS]))

    def timed_pass(self) -> float:
        """See :meth:`PairedArm.timed_pass`; leaves the decoder at the end of the prompt."""
        timer = Timer(self.decoder.executor.device)
        traces = []
        with timer:
            for token in self._fed:
                traces.append(self.decoder.step(forced=[token]).trace)
        self.decoder.rollback(len(self._fed))
        self.traces = traces
        return timer.seconds


class ForcedGenerate:
    """transformers' own `generate` with sdpa attention and its default cache, which grows.

    Args:
        adapter: this project's own backbone; the model's attention is put back after each call.
    """

    def __init__(self, adapter: BackboneAdapter) -> None:
        self._model = adapter.model

    def take(self, text: ForcedText) -> None:
        self._tokens = text.tokens
        # The prompt comes with a whole pass, so all is warm.
        with transformers_sdpa(self._model):
            self._generate = Generate(
                self._model, "dynamic", text.prompt, len(text.tokens) - 1, text.tokens
            )

    def timed_pass(self) -> float:
        """See :meth:`PairedArm.timed_pass`."""
        with transformers_sdpa(self._model):
            seconds = self._generate.timed_pass()
        if self._generate.tokens != self._tokens:
            raise RuntimeError("generate went another way than that of the text")
        return seconds
