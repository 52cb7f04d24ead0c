"""What a run leaves on disk: one folder, appended sample by sample. Keys: docs/records.md."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from river_llm.errors import UserError

FORCED_SCORES = "forced_scores.json"
"""Predictions and depths on no_exit's text, sample by sample."""

OFFLOAD = "offload.jsonl"
"""What a run with offloaded layers fetched, one line per sample."""

FinishReason = Literal["eos", "stop", "length"]
"""Why a text ended: an end-of-text token, a stop string, or the budget used up."""


@dataclass(frozen=True, kw_only=True)
class SampleRecord:
    """One line of samples.jsonl.

    Attributes:
        id, index: of the sample in its task.
        prompt_hash: of the prompt's token ids.
        prompt_tokens: length of the prompt.
        completion: returned text.
        token_ids: every generated id, the one that ended the text included.
        margins: for each generated token, its logit minus the second largest.
        extracted: the answer or program that was graded.
        correct: verdict; None: not graded.
        detail: what else the grader says.
        finish_reason: see :data:`FinishReason`.
        tokens_timed: generated tokens; tokens_kept: those of the returned text.
        prefill_seconds, decode_seconds: wall clock; decode_seconds holds tokens_timed - 1 steps.
        prefill_depth: backbone layers of the prefill.
        exit_depths: one per decode step.
        exit_scores: score at the last test of each step; None when the depth was planned.
        block_lengths: histogram of the tokens fed per decode step, length as text to count.
        commit: of the code that generated the sample.
    """

    id: str
    index: int
    prompt_hash: str
    prompt_tokens: int
    completion: str
    token_ids: list[int]
    margins: list[float]
    extracted: str | None
    correct: bool | None
    detail: dict[str, Any]
    finish_reason: FinishReason
    tokens_timed: int
    tokens_kept: int
    prefill_seconds: float
    decode_seconds: float
    prefill_depth: int
    exit_depths: list[int]
    exit_scores: list[float | None]
    block_lengths: dict[str, int]
    commit: str | None


class RunFolder:
    """The folder of one run.

    Args:
        path: `<output>/runs/<exp>/<model>/<method>-<identity>`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.samples_path = path / "samples.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second process out for as long as the block runs.

        Raises:
            UserError: another process works in this folder, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("a")
        except OSError as error:
            raise UserError(
                f"cannot write the run folder {self.path}: {error.strerror}; "
                "give another one with output.dir="
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"another process works in {self.path}: wait for it, or stop it"
                ) from error
            # What a killed process had not put into place yet.
            for leftover in self.path.glob(".*.new"):
                leftover.unlink()
            yield

    def samples(self) -> list[SampleRecord]:
        """The finished samples in the order of the file; half a last line is left out.

        Raises:
            UserError: a line that is no sample record (file and line number).
        """
        names = {item.name for item in fields(SampleRecord)}
        records = []
        complete = _read_bytes(self.samples_path).rpartition(b"\n")[0]
        for number, line in enumerate(complete.split(b"\n"), start=1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or set(row) != names:
                if not complete:
                    break
                raise UserError(
                    f"{self.samples_path}, line {number}: not a sample record of this version; "
                    "move the folder away to start anew"
                )
            records.append(SampleRecord(**row))
        return records

    def drop_half_line(self) -> None:
        """Cuts off what a killed process left behind the last complete line of a file."""
        for path in (self.samples_path, self.path / OFFLOAD):
            content = _read_bytes(path)
            keep = content.rfind(b"\n") + 1
            if keep != len(content):
                with _told(path):
                    os.truncate(path, keep)

    def append(self, record: SampleRecord) -> None:
        """Adds a finished sample; it is on disk when this returns.

        Raises:
            UserError: it cannot be written; what was finished before stays readable.
        """
        _append_line(self.samples_path, asdict(record))

    def append_fetches(self, row: Mapping[str, Any]) -> None:
        """Adds what a sample fetched; call it before the sample itself is appended."""
        _append_line(self.path / OFFLOAD, row)

    def fetches(self) -> dict[str, dict[str, Any]]:
        """What each sample fetched, by its id; half a last line is left out.

        Raises:
            UserError: a line that cannot be read.
        """
        path = self.path / OFFLOAD
        content = _read_bytes(path).rpartition(b"\n")[0]
        try:
            rows = [json.loads(line) for line in content.splitlines()]
            # A process that was killed between two files left a sample to be generated again.
            return {row["id"]: row for row in rows}
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path} is not readable ({error}): move the folder away") from error

    def rewrite(self, records: list[SampleRecord]) -> None:
        """Replaces samples.jsonl as a whole (new verdicts on stored completions)."""
        lines = [json.dumps(asdict(r), ensure_ascii=False, allow_nan=False) for r in records]
        write_text(self.samples_path, "".join(line + "\n" for line in lines))

    def read_json(self, name: str) -> Any:
        """Content of a JSON file of the run; None where it is not there."""
        return read_json(self.path / name)

    def write_json(self, name: str, content: Mapping[str, Any] | list[Any]) -> None:
        """Writes a JSON file as a whole; NaN is refused."""
        write_json(self.path / name, content)

    def write_steps(self, records: list[SampleRecord]) -> None:
        """Makes steps.parquet, one row per decode step, from samples.jsonl's records.

        Raises:
            UserError: it cannot be written.
        """
        rows = [
            {"id": r.id, "step": step, "depth": depth, "score": score}
            for r in records
            for step, (depth, score) in enumerate(zip(r.exit_depths, r.exit_scores, strict=True))
        ]
        # Imported late: who only times decoders needs no pandas.
        import pandas as pd

        frame = pd.DataFrame(rows, columns=["id", "step", "depth", "score"])
        frame = frame.astype({"step": "int32", "depth": "int16", "score": "float64"})
        with replacing(self.path / "steps.parquet") as temporary:
            frame.to_parquet(temporary, index=False)


def _read_bytes(path: Path) -> bytes:
    """Content of a file; nothing where it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; mend its rights, or move the folder away"
        ) from error


def read_json(path: Path) -> Any:
    """Content of a JSON file; None where it is not there.

    Raises:
        UserError: it cannot be read.
    """
    content = _read_bytes(path)
    try:
        return json.loads(content) if content or path.exists() else None
    except ValueError as error:
        raise UserError(
            f"{path} is not readable ({error}): move it away; the next start of the same command "
            "makes what it needs anew"
        ) from error


def write_json(path: Path, content: Mapping[str, Any] | list[Any]) -> None:
    """Writes a JSON file as a whole or not at all; NaN is refused.

    Raises:
        UserError: it cannot be written.
    """
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def _append_line(path: Path, content: Mapping[str, Any]) -> None:
    line = json.dumps(content, ensure_ascii=False, allow_nan=False)
    with _told(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Writes a text file as a whole or not at all.

    Raises:
        UserError: it cannot be written; what stood there before still does.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write to, which takes the place of `path` at the end or leaves nothing.

    Raises:
        UserError: it cannot be written; what stood there before still does.
    """
    # Named by process, since several may write one sweep's files.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    with _told(path):
        try:
            yield temporary
            with temporary.open("rb") as file:
                # Else a machine that loses power could keep the new name and not the content.
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Tells in one line that a file cannot be written."""
    try:
        yield
    except OSError as error:
        # Not every library fills in the parts of the error.
        reason = error.strerror or " ".join(str(error).split())
        raise UserError(
            f"cannot write {path}: {reason}; what is finished is kept: make room there, or make "
            "it writable, and start the same command again"
        ) from error
