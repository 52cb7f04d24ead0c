"""How many threads compute: one for each physical core, unless the user says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def use_threads(count: int | None) -> None:
    """Lets torch and the compiled engine use `count` threads.

    Args:
        count: None: `OMP_NUM_THREADS` where it is set, else the physical cores that this process
            may run on. Two threads of one core share its way to memory and only get in each
            other's way.
    """
    if count is None:
        # Not what torch made of it: an earlier run of this process may have set its own, and
        # asking torch when this is imported starts threads that a forked child would lack.
        first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
        count = int(first) if first.isdigit() and int(first) > 0 else physical_cores()
    if count != torch.get_num_threads():
        torch.set_num_threads(count)


def physical_cores() -> int:
    """Physical cores among the processors that this process may run on."""
    if not hasattr(os, "sched_getaffinity"):
        return torch.get_num_threads()
    return len({_siblings(processor) for processor in os.sched_getaffinity(0)})


def _siblings(processor: int) -> str:
    """The threads of a processor's core, by name; where that is not told, its own."""
    try:
        return Path(_TOPOLOGY.format(processor)).read_text(encoding="ascii").strip()
    except OSError:
        return str(processor)
