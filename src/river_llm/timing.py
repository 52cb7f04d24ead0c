"""Wall clock around device work."""

from __future__ import annotations

import time

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

    def __enter__(self) -> Timer:
        synchronize(self.device)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        synchronize(self.device)
        self.seconds = time.perf_counter() - self._start
