"""Wall clock around device work."""

from __future__ import annotations

import time
from typing import Self

import torch


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what was asked of it (nothing to wait for on CPU)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Timer:
    """Context manager: seconds of wall-clock time, device synchronized at both ends.

    Attributes:
        seconds: duration of the last `with` block.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0

    def __enter__(self) -> Self:
        synchronize(self.device)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        synchronize(self.device)
        self.seconds = time.perf_counter() - self._start


class CheckedTimer(Timer):
    """The same with a second clock, where the device has one.

    Attributes:
        device_seconds: on CUDA the same duration by events in the device's own queue; None
            elsewhere.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.device_seconds: float | None = None
        self._events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def __enter__(self) -> Self:
        super().__enter__()
        for first in self._events[:1]:
            first.record()
        return self

    def __exit__(self, *exception: object) -> None:
        for last in self._events[1:]:
            last.record()
        super().__exit__(*exception)
        if self._events:
            # Known by now: both events lie before the synchronization.
            self.device_seconds = self._events[0].elapsed_time(self._events[1]) / 1000
