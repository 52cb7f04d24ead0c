"""What each step of a sample fetches of an offloaded backbone, read between steps."""

from __future__ import annotations

from typing import Any

from river_llm.engine.offload import OffloadedLayers
from river_llm.generation import Generation


class OffloadMeter:
    """Differences of the stack's counts from step to step.

    Nothing is read or clocked inside a step: the counts are whole numbers on the host, and a
    step's seconds are those that the generation loop adds up anyway.

    Args:
        stack: that the sample's decoder runs.
    """

    def __init__(self, stack: OffloadedLayers) -> None:
        self._stack = stack
        self._before = stack.fetches()
        self._missed: list[int] = []
        self._fetched: list[int] = []
        self._seconds: list[float] = []

    def after_step(self, result: Generation) -> None:
        """Call it once behind the prefill, and once behind each decode step."""
        now = self._stack.fetches()
        self._missed.append(int(now.needed > self._before.needed))
        self._fetched.append(now.layers - self._before.layers)
        self._before = now
        self._seconds = result.step_seconds

    def row(self, sample_id: str) -> dict[str, Any]:
        """The sample's line of offload.jsonl, see docs/records.md."""
        return {
            "id": sample_id,
            "prefill_fetched": self._fetched[0],
            "missed": self._missed[1:],
            "fetched": self._fetched[1:],
            "step_seconds": [float(f"{seconds:.6g}") for seconds in self._seconds],
        }
