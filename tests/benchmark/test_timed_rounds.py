"""Order of the passes, and what of a decoder's work is on the clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from river_llm import timing
from river_llm.benchmark.decoders import DecoderArm
from river_llm.benchmark.rounds import time_rounds
from river_llm.decoding import StepOutput
from river_llm.engine.executor import Exit


class Counting:
    """An arm whose n-th pass takes n seconds."""

    def __init__(self, name, log):
        self.name, self.log, self.passes = name, log, 0

    def timed_pass(self):
        self.log.append(self.name)
        self.passes += 1
        return float(self.passes)


def test_every_arm_comes_once_in_each_round_and_the_order_changes():
    """Rotated by 0, 1, 2, 3 = 0 places; the second and fourth round run backwards."""
    log: list[str] = []
    arms = [Counting(name, log) for name in "ABC"]
    *_, seconds = time_rounds(arms, 4, "test")
    assert "".join(log) == "ABC" + "ACB" + "CAB" + "CBA"
    assert seconds == {name: [1.0, 2.0, 3.0, 4.0] for name in "ABC"}


def test_after_each_round_its_seconds_are_there_and_the_next_has_not_begun():
    log: list[str] = []
    rounds = time_rounds([Counting(name, log) for name in "AB"], 3, "test")
    assert next(rounds) == {"A": [1.0], "B": [1.0]}
    second = next(rounds)
    assert len(log) == 4
    next(rounds)
    assert second == {"A": [1.0, 2.0], "B": [1.0, 2.0]}, "kept as it was"


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    return clock


class FakeDecoder:
    """Costs 100 s for a prompt, 10 s for the first step at a slot, else 2 s, 1000 s to go back."""

    def __init__(self, clock):
        self.clock, self.fed, self.seen, self.calls = clock, [], set(), []
        self.executor = SimpleNamespace(device=torch.device("cpu"))

    def prefill(self, prompts):
        self.calls.append(("prefill", prompts))
        self.clock.now += 100.0

    def step(self, forced):
        self.clock.now += 2.0 if self.seen else 10.0
        self.seen.add(len(self.fed))
        self.fed += forced
        self.calls.append(("step", forced[0]))
        return StepOutput([[0]], [[0.0]], torch.zeros(1), Exit(2 + len(self.fed), tests=6), block=5)

    def rollback(self, steps):
        self.calls.append(("rollback", steps))
        self.fed = self.fed[: len(self.fed) - steps]
        self.clock.now += 1000.0


class FakeTraffic:
    def step_breakdown(self, depth, extent, tests, block):
        return {"backbone": depth, "kv": extent, "other": block}


def test_steps_alone_are_timed_behind_one_that_is_not(clock):
    decoder = FakeDecoder(clock)
    arm = DecoderArm("no_exit", decoder, FakeTraffic(), [7, 8, 9])
    arm.prefill([1, 2, 3, 4])
    assert arm.prefill_seconds == 100.0
    assert arm.timed_pass() == 3 * 2.0
    assert decoder.fed == [], "left as after the prefill"
    lead = [("step", 7), ("rollback", 1)]
    timed = [("step", 7), ("step", 8), ("step", 9), ("rollback", 3)]
    assert decoder.calls == [("prefill", [[1, 2, 3, 4]]), *lead, *timed]


def test_bytes_are_a_mean_over_the_steps_of_the_last_pass(clock):
    """Depths 3, 4, 5 in slots 4, 5, 6: the extents are 5, 6, 7."""
    arm = DecoderArm("river@3", FakeDecoder(clock), FakeTraffic(), [7, 8, 9])
    arm.prefill([1, 2, 3, 4])
    arm.timed_pass()
    assert arm.bytes_per_token() == {"backbone": 4.0, "kv": 6.0, "other": 5.0}
    assert arm.details() == {
        "mean_depth": 4.0,
        "mean_block": 5.0,
        "mean_tests": 6.0,
        "device_share": None,
        "backends": {},
    }


def test_on_cuda_events_check_the_wall_clock(clock, monkeypatch):
    """The device is idle before the first event and done with all before the clock is read."""
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.at = None

        def record(self):
            log.append("record")
            self.at = clock.now

        def elapsed_time(self, last):
            return 1000 * (last.at - self.at)

    def synchronize(device):
        log.append("wait")
        clock.now += 100.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    timer = timing.CheckedTimer(torch.device("cuda"))
    for work in (3.0, 5.0):
        log.clear()
        with timer:
            clock.now += work
        assert log == ["wait", "record", "record", "wait"]
        assert timer.seconds == work + 100.0
        assert timer.device_seconds == work
