"""The kernels read all of their buffer, and the rate is bytes over the best time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from river_llm import timing
from river_llm.benchmark import bandwidth
from river_llm.benchmark.bandwidth import KERNELS, Bandwidth, measure_bandwidth

ROWS = 4


@pytest.mark.parametrize("name", KERNELS)
def test_every_byte_of_the_buffer_changes_the_result(name):
    """In each 64 bytes one element is made large; the result must notice every one of them."""
    buffer = torch.ones(ROWS * 4096 * 2, dtype=torch.bfloat16)
    plain = KERNELS[name](buffer)
    # Odd elements are the upper halves of 32-bit floats.
    for place in range(1, len(buffer), 32):
        buffer[place] = 2.0**20
        assert KERNELS[name](buffer) != plain, f"element {place} is not read"
        buffer[place] = 1.0
    assert KERNELS[name](buffer) == plain


def test_the_rate_is_of_the_fastest_reading(monkeypatch):
    """64 KiB in 4, 2 and 3 seconds, behind a reading that does not count."""
    clock = SimpleNamespace(now=0.0)
    costs = iter([0.5, 4.0, 2.0, 3.0])
    sizes = []

    def kernel(buffer):
        sizes.append(buffer.nbytes)
        assert bool((buffer == 1).all())
        clock.now += next(costs)
        return 0.0

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(bandwidth, "kernels", lambda device: {"only": kernel})
    measured = measure_bandwidth(torch.device("cpu"), size=65536, repeats=3)
    assert measured.rates == {"only": 65536 / 2.0 / 1e9}
    assert sizes == [65536] * 4


def test_the_best_of_all_kernels_and_times_counts():
    before, after = Bandwidth({"a": 3.0, "b": 1.0}), Bandwidth({"a": 2.0, "b": 9.0})
    assert (before.kernel, before.gb_per_s) == ("a", 3.0)
    best = before.best_with(after)
    assert best.rates == {"a": 3.0, "b": 9.0}
    assert (best.kernel, best.gb_per_s) == ("b", 9.0)


def test_at_least_a_gibibyte_is_read():
    assert bandwidth.BUFFER_BYTES >= 2**30
