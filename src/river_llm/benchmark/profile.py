"""Where the time of a decode step goes; a run of its own, since looking costs time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from river_llm.benchmark.decoders import DecoderArm
from river_llm.engine.compiled import CompiledExecutor

_SHOWN = 12


@dataclass(frozen=True)
class Profile:
    """A cost stack.

    Attributes:
        arm: its name.
        engine: that it ran on.
        ms_per_token: wall clock, with the profiler at work.
        parts: milliseconds per token by part, most expensive first; the rest comes last.
    """

    arm: str
    engine: str
    ms_per_token: float
    parts: dict[str, float]


def profile_arm(arm: DecoderArm, prompt: Sequence[int], steps: int) -> Profile:
    """Profiles one pass of decode steps, after one that does not count.

    On the compiled engine parts are the phases of a layer; on the eager one, torch's operators by
    the time spent in themselves (threads other than the caller's not counted).

    Args:
        arm: one of this project's methods.
        prompt: token ids.
        steps: decode steps in a pass.
    """
    executor = arm.decoder.executor
    arm.prefill(prompt)
    arm.timed_pass()
    if isinstance(executor, CompiledExecutor):
        with executor.narrow.profiled() as seconds:
            total = arm.timed_pass()
        # A pass makes one step more than it times.
        parts = {name: value / (steps + 1) for name, value in seconds.items()}
        left = "between phases, and Python"
    else:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            total = arm.timed_pass()
        parts = {
            event.key: event.self_cpu_time_total / 1e6 / (steps + 1)
            for event in profiler.key_averages()
        }
        left = "Python, and torch between operators"
    dearest = sorted(parts, key=lambda name: parts[name], reverse=True)[:_SHOWN]
    shown = {name: parts[name] * 1e3 for name in dearest}
    ms = total / steps * 1e3
    shown[left] = ms - sum(shown.values())
    return Profile(arm.name, executor.name, ms, shown)


def profile_table(profiles: Sequence[Profile]) -> str:
    """Markdown: one table an arm."""
    blocks = []
    for one in profiles:
        lines = [
            f"{one.arm}, engine {one.engine}, {torch.get_num_threads()} threads: "
            f"{one.ms_per_token:.2f} ms/token while profiled",
            "",
            "| part | ms/token | share |",
            "| --- | ---: | ---: |",
        ]
        lines += [
            f"| {name} | {ms:.2f} | {ms / one.ms_per_token:.0%} |" for name, ms in one.parts.items()
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
