"""Peak memory of a run's method, which a process of its own measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from river_llm.config import RunConfig
from river_llm.decoding import Decoder
from river_llm.errors import UserError
from river_llm.evaluation.peak_worker import PeakRequest
from river_llm.evaluation.prompts import Prompt

STEPS = 32
"""Decode steps behind the longest prompt; the cache has its full size from the start."""

MAPPED_FROM = "65536"
"""Bytes from which a block has a mapping of its own, and leaves memory when it is freed."""


def peak_request(
    config: RunConfig, decoder: Decoder, prompts: Sequence[Prompt]
) -> PeakRequest | None:
    """What to measure for a run; None: no prompt has recorded depths.

    Args:
        config: the run, its engine resolved.
        decoder: of its method.
        prompts: of the run; the longest one counts.
    """
    criterion, slots = decoder.executor.criterion, decoder.cache.slots
    recorded = {p.sample.id: criterion.recorded_steps(p.sample.id) for p in prompts}
    able = [p for p in prompts if recorded[p.sample.id] != 0]
    if not able:
        return None
    longest = max(able, key=lambda prompt: len(prompt.ids))
    steps = recorded[longest.sample.id]
    return PeakRequest(
        config=asdict(config),
        sample=longest.sample.id,
        prompt=longest.ids,
        steps=min(STEPS if steps is None else min(STEPS, steps), slots - len(longest.ids) - 1),
        slots=slots,
    )


def measure_peak(request: PeakRequest) -> dict[str, Any] | None:
    """`peak_bytes`, `peak_source` and `tensor_bytes`; None: the process failed.

    That is told in one line. The model lies in memory twice meanwhile, here and there.
    """
    try:
        found: dict[str, Any] = ask_process("river_llm.evaluation.peak_worker", asdict(request))
    except UserError as error:
        print(f"river_llm: peak memory is not measured: {error}", file=sys.stderr)
        return None
    return found


def ask_process(module: str, request: dict[str, Any]) -> Any:
    """What a module of this package answers, run in a process of its own.

    Args:
        module: reads the request as JSON and prints the answer as the last line.
        request: plain data.

    Raises:
        UserError: it failed; the last line that it wrote.
    """
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        # What this process has loaded is on disk. And glibc raises its threshold when large blocks
        # are freed; later ones then come from the heap, whose holes count as memory.
        env={**os.environ, "HF_HUB_OFFLINE": "1", "MALLOC_MMAP_THRESHOLD_": MAPPED_FROM},
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise UserError(reason[0])
    return json.loads(done.stdout.splitlines()[-1])
