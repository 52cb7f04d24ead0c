"""Reading back what the wandb package wrote: its log of protobuf records.

The package's own reader is compiled into its service now; its record classes are still there.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK, FULL, LAST = 32768, 1, 4
HEADER = struct.Struct("<IHB")


@dataclass
class Written:
    """One run, from its file.

    Attributes:
        folder: of the file.
        record: the run's record: id, name, group, tags, config.
        config: as given when the run started.
        later_config: what was assigned after that.
        summary, history: figures by key; nested keys joined with a dot.
        exit_code: None: the run was not finished.
    """

    folder: Path
    record: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    later_config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None

    def media(self, key: str) -> Path:
        """The file of a table or picture in the history."""
        return self.folder / "files" / self.history[0][f"{key}.path"]


def written(output: Path) -> dict[str, Written]:
    """All runs below an output folder, by id."""
    runs = [_run(path) for path in sorted(output.glob("wandb/*/*.wandb"))]
    assert len({run.record.run_id for run in runs}) == len(runs), "an id stands twice"
    return {run.record.run_id: run for run in runs}


def _run(path: Path) -> Written:
    run = Written(path.parent)
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run" and run.record is None:
            run.record = record.run
            run.config = _items(record.run.config.update)
        elif kind == "config":
            run.later_config |= _items(record.config.update)
        elif kind == "summary":
            run.summary |= _items(record.summary.update)
        elif kind == "history":
            run.history.append(_items(record.history.item))
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _items(items: Any) -> dict[str, Any]:
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def records(path: Path) -> Iterator[Any]:
    """The records of a file: blocks of 32 KiB, in them pieces with checksum, length and kind."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    position, pieces = 7, b""
    while position + HEADER.size <= len(data):
        if BLOCK - position % BLOCK < HEADER.size:
            position += BLOCK - position % BLOCK
            continue
        checksum, length, kind = HEADER.unpack_from(data, position)
        position += HEADER.size
        piece = data[position : position + length]
        assert zlib.crc32(piece, zlib.crc32(bytes([kind]))) == checksum
        position += length
        pieces += piece
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pieces)
            yield record
            pieces = b""
