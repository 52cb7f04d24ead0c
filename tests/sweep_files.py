"""Reading what sweeps leave on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

UNSHARED = ("prefill_seconds", "decode_seconds", "commit")
"""What no two samples share, and what changes while somebody works on the checkout."""


def sweep_path(results: Path) -> Path:
    """The folder of the only sweep."""
    (path,) = (results / "sweeps").iterdir()
    return path


def cells(results: Path) -> list[dict[str, Any]]:
    """The cells of the only sweep, from sweep.json."""
    content = json.loads((sweep_path(results) / "sweep.json").read_text("utf-8"))
    listed: list[dict[str, Any]] = content["cells"]
    return listed


def statuses(results: Path) -> list[str]:
    """What became of each cell."""
    return [cell["status"] for cell in cells(results)]


def runs(results: Path) -> dict[str, Path]:
    """Run folders by their names."""
    return {path.parent.name: path.parent for path in results.rglob("samples.jsonl")}


def finished_rows(results: Path) -> dict[str, list[bytes]]:
    """The finished samples of every run, as they stand in the file."""
    return {
        name: (path / "samples.jsonl").read_bytes().split(b"\n")[:-1]
        for name, path in runs(results).items()
    }


def timeless(rows: Mapping[str, list[bytes]]) -> dict[str, list[dict[str, Any]]]:
    """The same samples without what no two starts share."""
    return {
        name: [
            {key: value for key, value in json.loads(line).items() if key not in UNSHARED}
            for line in lines
        ]
        for name, lines in rows.items()
    }


def starts(run: Path) -> int:
    """How many processes generated samples of a run."""
    content: list[Any] = json.loads((run / "environment.json").read_text("utf-8"))
    return len(content)


def stamps(results: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of the sample files."""
    return {
        name: ((path / "samples.jsonl").read_bytes(), (path / "samples.jsonl").stat().st_mtime_ns)
        for name, path in runs(results).items()
    }
