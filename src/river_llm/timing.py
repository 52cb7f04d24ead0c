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
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.type == "cuda":
            self._events = (
                torch.cuda.Event(enable_timing=True),
                torch.cuda.Event(enable_timing=True),
            )

    def __enter__(self) -> Self:
        super().__enter__()
        if self._events is not None:
            self._events[0].record()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._events is None:
            super().__exit__(*exception)
            return
        first, last = self._events
        last.record()
        super().__exit__(*exception)
        # Known by now: both events lie before the synchronization.
        self.device_seconds = first.elapsed_time(last) / 1000
