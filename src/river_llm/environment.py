"""What a run ran on: versions, commit, device, threads, load. No host, user or path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

CODE = ("src", "conf", "scripts", "run.py", "pyproject.toml", "constraints.txt")
PACKAGES = ("river-llm", "torch", "transformers", "datasets", "hydra-core", "math-verify", "numpy")


def snapshot(device: torch.device) -> dict[str, Any]:
    """The environment of this process, as plain data."""
    commit, clean = git_state()
    return {
        "commit": commit,
        "clean": clean,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def git_state() -> tuple[str | None, bool | None]:
    """Commit of the source tree this package lies in, and whether its code is unchanged.

    Only what a run is made of counts: records and notes beside it do not change the code.
    (None, None) outside a git checkout.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain", "--", *CODE)
    return (commit, not status) if commit and status is not None else (None, None)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else None
