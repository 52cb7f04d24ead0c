"""What a benchmark's machine is, with what its GPU's driver says of it: nothing is set or changed.

python -m river_llm.benchmark.device cuda
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch

from river_llm import environment
from river_llm.models.loading import resolve_device

_QUERY = (
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "compute_cap",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.limit",
    "temperature.gpu",
)


def device_report(device: torch.device) -> dict[str, Any]:
    """The environment of this process, and of each GPU what nvidia-smi tells (None: no such)."""
    return {
        **environment.snapshot(device),
        "cuda": torch.version.cuda,
        "gpus": gpus() if device.type == "cuda" else None,
    }


def gpus() -> list[dict[str, str]] | None:
    """A dict for each GPU; None: nvidia-smi is not there or knows not what it is asked."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(", ") for line in done.stdout.splitlines() if line]
    return [dict(zip(_QUERY, row, strict=True)) for row in rows]


if __name__ == "__main__":
    print(json.dumps(device_report(resolve_device(sys.argv[1]))))
