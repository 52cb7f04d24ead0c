"""How fast this process reads memory: the best of several streaming kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from tqdm import tqdm

from river_llm.engine.executor import EngineUnavailable
from river_llm.engine.native.compilation import load_library, streamed_sum
from river_llm.timing import Timer

BUFFER_BYTES = 1 << 30
REPEATS = 5
_WIDTH = 4096
_CALLS = {"cuda": 10}
"""Readings in a row that are timed as one, so that launching them is hidden; elsewhere 1."""

Kernel = Callable[[torch.Tensor], torch.Tensor | int]
"""Reads every byte of a bf16 buffer once; what it returns depends on all of them."""


@dataclass(frozen=True)
class Bandwidth:
    """Best rate of each kernel.

    Attributes:
        rates: GB/s (1e9 bytes) by kernel.
    """

    rates: dict[str, float]

    @property
    def kernel(self) -> str:
        """The fastest kernel."""
        return max(self.rates, key=lambda name: self.rates[name])

    @property
    def gb_per_s(self) -> float:
        """Its rate."""
        return self.rates[self.kernel]

    def best_with(self, other: Bandwidth) -> Bandwidth:
        """The better of two measurements, kernel by kernel."""
        return Bandwidth({n: max(rate, other.rates[n]) for n, rate in self.rates.items()})


def sum_fp32(buffer: torch.Tensor) -> torch.Tensor:
    """Sum over the buffer as 32-bit floats."""
    return buffer.view(torch.float32).sum()


def sum_int64(buffer: torch.Tensor) -> torch.Tensor:
    """Sum over the buffer as 64-bit integers."""
    return buffer.view(torch.int64).sum()


def dot_fp32(buffer: torch.Tensor) -> torch.Tensor:
    """Inner product of the buffer's two halves as 32-bit floats."""
    first, second = buffer.view(torch.float32).chunk(2)
    return torch.dot(first, second)


def matvec_fp32(buffer: torch.Tensor) -> torch.Tensor:
    """Product of the buffer as a matrix of 32-bit floats and a vector."""
    matrix = buffer.view(torch.float32).view(-1, _WIDTH)
    return (matrix @ matrix.new_ones(_WIDTH)).sum()


def matvec_bf16(buffer: torch.Tensor) -> torch.Tensor:
    """Product of the buffer as a matrix of 16-bit floats and a vector, as decoding makes it."""
    matrix = buffer.view(-1, _WIDTH)
    return (matrix @ matrix.new_ones(_WIDTH)).float().sum()


def streams_int64(buffer: torch.Tensor) -> int:
    """Sum over the buffer as 64-bit integers, in four streams as the compiled engine reads."""
    return streamed_sum(buffer)


KERNELS: dict[str, Kernel] = {
    kernel.__name__: kernel for kernel in (sum_fp32, sum_int64, dot_fp32, matvec_fp32, matvec_bf16)
}


def kernels(device: torch.device) -> dict[str, Kernel]:
    """The kernels that run here: the compiled engine's own too, where it can be compiled."""
    if device.type != "cpu":
        return KERNELS
    try:
        load_library()
    except EngineUnavailable as error:
        print(f"river_llm: bandwidth by torch alone: {error}", file=sys.stderr)
        return KERNELS
    return {**KERNELS, streams_int64.__name__: streams_int64}


@torch.no_grad()
def measure_bandwidth(
    device: torch.device, size: int = BUFFER_BYTES, repeats: int = REPEATS
) -> Bandwidth:
    """Reads a buffer with every kernel, on as many threads as everything else here.

    Args:
        device: where the buffer lies.
        size: bytes of the buffer, a multiple of 16 KiB.
        repeats: times that each kernel reads it, after a first time that does not count.
    """
    # Written, since pages that never were all read from one page of zeros; and of plain numbers,
    # since arithmetic on denormal ones is slow.
    buffer = torch.ones(size // 2, dtype=torch.bfloat16, device=device)
    found = tqdm(kernels(device).items(), desc="memory bandwidth", unit="kernel")
    return Bandwidth({name: _best_rate(kernel, buffer, repeats) for name, kernel in found})


@torch.no_grad()
def rates_at(
    device: torch.device, sizes: Iterable[float], repeats: int = 4 * REPEATS
) -> list[float]:
    """GB/s of reading as many bytes over and over, which a large cache may hold.

    Args:
        device: where the bytes lie.
        sizes: in bytes; rounded up to whole MiB, and no more than a GiB, which no cache holds.
        repeats: times that the fastest kernel reads them, after a first time that does not count.
    """
    usable = kernels(device)
    kernel = usable.get(streams_int64.__name__, sum_int64)
    found: dict[int, float] = {}
    order = [-(-min(int(size), BUFFER_BYTES) // 2**20) for size in sizes]
    for mebibytes in sorted(set(order)):
        buffer = torch.ones(mebibytes * 2**19, dtype=torch.bfloat16, device=device)
        found[mebibytes] = _best_rate(kernel, buffer, repeats)
    return [found[mebibytes] for mebibytes in order]


def _best_rate(kernel: Kernel, buffer: torch.Tensor, repeats: int) -> float:
    """GB/s of the fastest of several readings, behind one that does not count."""
    timer = Timer(buffer.device)
    calls = _CALLS.get(buffer.device.type, 1)
    kernel(buffer)
    seconds = []
    for _ in range(repeats):
        with timer:
            for _ in range(calls):
                kernel(buffer)
        seconds.append(timer.seconds)
    return calls * buffer.nbytes / min(seconds) / 1e9
