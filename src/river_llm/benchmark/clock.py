"""How much time is left of what a benchmark may take."""

from __future__ import annotations

import math
import time


class Clock:
    """Runs from when it is made.

    Args:
        seconds: that there are; None: as many as it takes.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether there are none."""
        return not self.left

    def part(self, share: float) -> Clock:
        """A clock of its own over a share of what is left."""
        return Clock(None if math.isinf(self._end) else share * self.left)
