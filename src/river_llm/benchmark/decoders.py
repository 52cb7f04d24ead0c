"""The project's own methods as arms: forced decode steps, then back to the prompt's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from river_llm.config import RunConfig, StatePropagationConfig
from river_llm.decoding import Decoder, StepOutput
from river_llm.evaluation.runtime import Runtime
from river_llm.evaluation.traffic import Traffic
from river_llm.exits import Confidence
from river_llm.quant.river import RiverLayers
from river_llm.timing import CheckedTimer


class DecoderArm:
    """One method.

    Args:
        name: of the arm.
        decoder: of the method, with room for the longest prompt and the steps behind it.
        traffic: of the method's decode steps.
        tokens: ids that are fed, one a step.
        river: that the decoder runs; None: none.

    Attributes:
        prefill_seconds: of the last prefill.
        river: as given.
    """

    def __init__(
        self,
        name: str,
        decoder: Decoder,
        traffic: Traffic,
        tokens: Sequence[int],
        river: RiverLayers | None = None,
    ) -> None:
        self.name = name
        self.decoder = decoder
        self.prefill_seconds = 0.0
        self._traffic = traffic
        self._tokens = list(tokens)
        self.river = river
        self._timer = CheckedTimer(decoder.executor.device)
        self._context = 0
        self._outputs: list[StepOutput] = []

    def prefill(self, prompt: Sequence[int]) -> None:
        """Forgets what was there and feeds the prompt."""
        with self._timer:
            self.decoder.prefill([prompt])
        self.prefill_seconds = self._timer.seconds
        self._context = len(prompt)

    def timed_pass(self) -> float:
        """Seconds of the decode steps behind the prompt."""
        # The peers come to their first timed step from one like it; so does every arm here.
        self.decoder.step(forced=self._tokens[:1])
        self.decoder.rollback(1)
        outputs = []
        with self._timer:
            for token in self._tokens:
                outputs.append(self.decoder.step(forced=[token]))
        self.decoder.rollback(len(outputs))
        self._outputs = outputs
        return self._timer.seconds

    def bytes_per_token(self) -> dict[str, float]:
        """Mean bytes that a decode step of the last pass read, by kind."""
        return mean_bytes(
            [
                self._traffic.step_breakdown(
                    out.trace.depth, self._context + step, out.trace.tests, out.block
                )
                for step, out in enumerate(self._outputs, start=1)
            ]
        )

    def details(self) -> dict[str, Any]:
        """Of the last pass: mean exit depth, tokens fed and tests made in a step; both clocks.

        `device_share` is the time by the device's own clock over the wall clock's, None on CPU.
        """
        steps = len(self._outputs)
        device = self._timer.device_seconds
        return {
            "mean_depth": sum(out.trace.depth for out in self._outputs) / steps,
            "mean_block": sum(out.block for out in self._outputs) / steps,
            "mean_tests": sum(out.trace.tests for out in self._outputs) / steps,
            "device_share": None if device is None else device / self._timer.seconds,
            "backends": {} if self.river is None else self.river.backend_counts(),
        }


def mean_bytes(steps: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Mean over decode steps of their bytes by kind."""
    return {kind: sum(step[kind] for step in steps) / len(steps) for kind in steps[0]}


def decoder_arm(
    name: str, runtime: Runtime, config: RunConfig, tokens: Sequence[int], slots: int
) -> DecoderArm:
    """Builds the decoder of a run as an arm.

    Args:
        name: of the arm.
        runtime: the model.
        config: method, criterion, quantizer and engine.
        tokens: ids that are fed.
        slots: cache slots.

    Raises:
        UserError: settings outside the model.
    """
    criterion = runtime.criterion(config, None)
    river = runtime.river_of(config)
    traffic = Traffic(
        runtime.adapter,
        river,
        propagates=isinstance(config.method, StatePropagationConfig),
        tests_read_head=isinstance(criterion, Confidence),
        head=runtime.head(config.quant),
    )
    decoder = runtime.decoder(config, criterion, slots)
    return DecoderArm(name, decoder, traffic, tokens, river)
