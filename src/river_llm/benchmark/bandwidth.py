"""How fast this process reads memory: the best of several streaming kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from tqdm import tqdm

from river_llm.engine.native.compilation import EngineUnavailable, load_library, streamed_sum
from river_llm.timing import Timer

BUFFER_BYTES = 1 << 30
REPEATS = 5
_WIDTH = 4096

Kernel = Callable[[torch.Tensor], float]
"""Reads every byte of a bf16 buffer once; the number returned depends on all of them."""


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


def sum_fp32(buffer: torch.Tensor) -> float:
    """Sum over the buffer as 32-bit floats."""
    return float(buffer.view(torch.float32).sum())


def sum_int64(buffer: torch.Tensor) -> float:
    """Sum over the buffer as 64-bit integers."""
    return float(buffer.view(torch.int64).sum())


def dot_fp32(buffer: torch.Tensor) -> float:
    """Inner product of the buffer's two halves as 32-bit floats."""
    first, second = buffer.view(torch.float32).chunk(2)
    return float(torch.dot(first, second))


def matvec_fp32(buffer: torch.Tensor) -> float:
    """Product of the buffer as a matrix of 32-bit floats and a vector."""
    matrix = buffer.view(torch.float32).view(-1, _WIDTH)
    return float((matrix @ matrix.new_ones(_WIDTH)).sum())


def matvec_bf16(buffer: torch.Tensor) -> float:
    """Product of the buffer as a matrix of 16-bit floats and a vector, as decoding makes it."""
    matrix = buffer.view(-1, _WIDTH)
    return float((matrix @ matrix.new_ones(_WIDTH)).float().sum())


def streams_int64(buffer: torch.Tensor) -> float:
    """Sum over the buffer as 64-bit integers, in four streams as the compiled engine reads."""
    return float(streamed_sum(buffer))


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
    timer = Timer(device)
    rates = {}
    for name, kernel in tqdm(kernels(device).items(), desc="memory bandwidth", unit="kernel"):
        kernel(buffer)
        seconds = []
        for _ in range(repeats):
            with timer:
                kernel(buffer)
            seconds.append(timer.seconds)
        rates[name] = buffer.nbytes / min(seconds) / 1e9
    return Bandwidth(rates)


@torch.no_grad()
def rates_at(
    device: torch.device, sizes: Iterable[float], repeats: int = 4 * REPEATS
) -> list[float]:
    """GB/s of reading as many bytes over and over, which a large cache may hold.

    Args:
        device: where the bytes lie.
        sizes: in bytes; rounded up to whole MiB.
        repeats: times that the fastest kernel reads them, after a first time that does not count.
    """
    usable = kernels(device)
    kernel = usable.get(streams_int64.__name__, sum_int64)
    timer = Timer(device)
    found: dict[int, float] = {}
    order = [-(-int(size) // 2**20) for size in sizes]
    for mebibytes in sorted(set(order)):
        buffer = torch.ones(mebibytes * 2**19, dtype=torch.bfloat16, device=device)
        kernel(buffer)
        seconds = []
        for _ in range(repeats):
            with timer:
                kernel(buffer)
            seconds.append(timer.seconds)
        found[mebibytes] = buffer.nbytes / min(seconds) / 1e9
    return [found[mebibytes] for mebibytes in order]
