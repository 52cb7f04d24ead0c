"""What is logged of one run, as plain data, read from its folder on disk; no wandb here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from river_llm.config import WandbConfig
from river_llm.errors import UserError
from river_llm.records import RunFolder, SampleRecord
from river_llm.tracking.portable import portable

COMPLETION_CHARACTERS = 4000
"""Longer completions are cut in the table: one runaway text must not fill a page."""

SAMPLE_COLUMNS = (
    "id",
    "correct",
    "extracted",
    "finish_reason",
    "tokens_timed",
    "prefill_ms",
    "decode_ms_per_token",
    "mean_exit_depth",
    "completion",
)
IN_SETTINGS = ("method", "criterion", "quant", "engine")
"""Groups of config.json of which summary.json's settings hold what was really used."""

NOT_OF_THE_RUN = ("logger", "output", "resume")
"""Groups of config.json that say nothing about what was computed."""


@dataclass(frozen=True)
class TableData:
    """A table: names of its columns, and rows of numbers, text, truth values and None."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True)
class HistogramData:
    """Counts between edges, of which there is one more."""

    counts: list[int]
    edges: list[float]


@dataclass(frozen=True, kw_only=True)
class Payload:
    """One run of W&B, as data that JSON can hold.

    Attributes:
        id: follows from the run's identity, so that logging it again replaces it.
        name, job_type, group, tags: how W&B lists it.
        config: settings, nested; without absolute paths.
        summary: figures under flat keys such as `speedup/decode/matched`; what was not measured
            is left out.
        tables, histograms: by key.
        pictures: PNG files in base64, by key.
    """

    id: str
    name: str
    job_type: str
    group: str | None
    tags: list[str]
    config: dict[str, Any]
    summary: dict[str, Any]
    tables: dict[str, TableData]
    histograms: dict[str, HistogramData] = field(default_factory=dict)
    pictures: dict[str, str] = field(default_factory=dict)

    def digest(self) -> str:
        """Equal where there is nothing new to log.

        The group does not count: a run stays with the sweep that logged it first. Nor do the
        pictures, which are drawn from what the tables hold.
        """
        content = {k: v for k, v in asdict(self).items() if k not in ("group", "pictures")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def run_payload(folder: Path, settings: WandbConfig, sweep: str | None = None) -> Payload:
    """Reads a finished run.

    Args:
        folder: of the run.
        settings: tags, group and the number of rows in the table.
        sweep: name of the sweep it is a cell of; its group unless the settings name one.

    Raises:
        UserError: there is no finished run, or one of its files cannot be read.
    """
    run = RunFolder(folder)
    summary, recorded = run.read_json("summary.json"), run.read_json("config.json")
    if summary is None or recorded is None:
        raise UserError(f"{folder} is not the folder of a finished run: run it to its end first")
    samples = run.samples()[: summary["samples"]]
    starts = run.read_json("environment.json") or [{}]
    figures = flat({k: v for k, v in summary.items() if k not in ("settings", "commits")})
    shown = samples[: settings.table_rows]
    if samples:
        figures["samples/in_table"] = f"the first {len(shown)} of {len(samples)} samples"
    if len(shown) < len(samples):
        figures["samples/in_table"] += (
            f" (logger.table_rows={settings.table_rows}); all are in samples.jsonl of the run"
        )
    return Payload(
        id=f"{summary['method']}-{summary['identity']}",
        name=f"{summary['exp']} {summary['model']} {summary['arm']}",
        job_type="run",
        group=settings.group or sweep,
        tags=list(settings.tags),
        config=portable(
            {
                **{key: summary[key] for key in ("exp", "label", "model", "method", "arm")},
                "identity": summary["identity"],
                "layers": summary["exit_depth"]["layers"],
                "settings": summary["settings"],
                "recorded": {
                    key: value
                    for key, value in recorded.items()
                    if key not in (*IN_SETTINGS, *NOT_OF_THE_RUN)
                },
                "environment": starts[-1],
                "commits": summary["commits"],
            }
        ),
        summary=figures,
        tables={"samples": TableData(list(SAMPLE_COLUMNS), [_row(record) for record in shown])},
        histograms=_exit_depths(summary["exit_depth"]["histogram"]),
    )


def flat(figures: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested figures under keys joined with `/`; a `value` stands under the name of its block.

    None and numbers that are not finite are left out, lists of words are joined, and so is every
    list of numbers left out, which is no figure.
    """
    found: dict[str, Any] = {}
    for key, value in figures.items():
        path = prefix if key == "value" and prefix else f"{prefix}/{key}" if prefix else key
        if isinstance(value, Mapping):
            found |= flat(value, path)
        elif isinstance(value, list):
            if value and all(isinstance(item, str) for item in value):
                found[path] = "; ".join(value)
        elif value is not None and not (isinstance(value, float) and not isfinite(value)):
            found[path] = value
    return found


def _exit_depths(counts: list[int]) -> dict[str, HistogramData]:
    """Decode steps at depth 0..L, each depth in the middle of its bin."""
    if not sum(counts):
        return {}
    edges = [depth - 0.5 for depth in range(len(counts) + 1)]
    return {"exit_depth/histogram": HistogramData(counts, edges)}


def _row(record: SampleRecord) -> list[Any]:
    steps = len(record.exit_depths)
    text = record.completion
    if len(text) > COMPLETION_CHARACTERS:
        more = len(text) - COMPLETION_CHARACTERS
        text = f"{text[:COMPLETION_CHARACTERS]} [{more} more characters]"
    return [
        record.id,
        record.correct,
        record.extracted,
        record.finish_reason,
        record.tokens_timed,
        1000 * record.prefill_seconds,
        1000 * record.decode_seconds / steps if steps else None,
        sum(record.exit_depths) / steps if steps else None,
        text,
    ]
