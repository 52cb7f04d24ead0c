"""The depths that an earlier run recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from river_llm.errors import UserError
from river_llm.exits.base import Criterion


class Replay(Criterion):
    """Plans, sample by sample and step by step, what another run decided.

    Args:
        layers: number of backbone layers L.
        depths: sample id -> (prefill depth, depth of each decode step).
        source: where the depths come from, for error messages.
        cycle: begin again where the record ends, for controls whose text differs from the
            recorded run's; otherwise a longer text is an error.
    """

    def __init__(
        self,
        layers: int,
        depths: Mapping[str, tuple[int, Sequence[int]]],
        source: str,
        cycle: bool = False,
    ) -> None:
        super().__init__(layers)
        self.depths = depths
        self.source = source
        self.cycle = cycle
        self._sample: str | None = None

    def begin_sample(self, sample_id: str) -> None:
        if sample_id not in self.depths:
            raise UserError(
                f"criterion.from_run={self.source} holds no depths for sample {sample_id}: "
                "run it with the same limit first"
            )
        self._sample = sample_id

    def recorded_steps(self, sample_id: str) -> int | None:
        if self.cycle:
            return None
        return len(self.depths[sample_id][1]) if sample_id in self.depths else 0

    def plan(self, step: int | None) -> int:
        if self._sample is None:
            raise UserError("replay needs a sample: call begin_sample first")
        prefill, steps = self.depths[self._sample]
        if step is None:
            return prefill
        if step < len(steps):
            return steps[step]
        if self.cycle:
            return steps[step % len(steps)] if steps else self.layers
        raise UserError(
            f"criterion.from_run={self.source} recorded {len(steps)} decode steps for sample "
            f"{self._sample}, step {step} is asked for: the text differs from that run's"
        )
