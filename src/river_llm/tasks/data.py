"""Reading benchmark rows from the hub, a local file or the package, with every row checked."""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from river_llm.errors import UserError

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True)
class Row:
    """The wanted columns of one row, and where it stands (for messages)."""

    place: str
    fields: Mapping[str, str]


@dataclass(frozen=True)
class HubSplit:
    """One split of a data set on the Hugging Face hub."""

    dataset: str
    config: str | None
    split: str

    def __str__(self) -> str:
        config = f"config {self.config}, " if self.config else ""
        return f"{self.dataset} ({config}split {self.split})"


def lacks(path: str, task: str) -> bool:
    """Whether the path is a folder without a file of the task."""
    return Path(path).expanduser().is_dir() and not _files(path, task)


def _files(folder: str, task: str) -> list[str]:
    names = [task + ending for ending in _ENDINGS]
    return [name for name in names if (Path(folder).expanduser() / name).is_file()]


def in_folder(path: str, task: str) -> str:
    """The file of a task where the path is a folder, so that one path serves several tasks.

    Args:
        path: a file, which is returned as it is, or a folder that holds the task's file.
        task: name of the task; its file is ``<task>.jsonl``, ``.jsonl.gz`` or ``.parquet``.

    Raises:
        UserError: a folder that holds none of these files, or several of them.
    """
    if not Path(path).expanduser().is_dir():
        return path
    found = _files(path, task)
    if not found:
        names = [task + ending for ending in _ENDINGS]
        raise UserError(
            f"folder {path!r} holds no data for {task}: put {', '.join(names[:-1])} or "
            f"{names[-1]} there, or give the path of a file"
        )
    if len(found) > 1:
        raise UserError(
            f"folder {path!r} holds {' and '.join(found)}: keep one of them, or give the path of "
            "the file"
        )
    return str(Path(path) / found[0])


def read_file(path: str, columns: Sequence[str]) -> list[Row]:
    """Reads a local file: one JSON object per line, gzipped or not, or parquet.

    Raises:
        UserError: no such file, damaged or empty; a row without these columns as non-empty text
            (names the file and the 1-based line, or for parquet the 0-based row).
    """
    file = Path(path).expanduser()
    if file.is_dir():
        raise UserError(
            f"data file {path!r} is a folder; give the path of a .jsonl, .jsonl.gz or .parquet"
        )
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"data file {path!r} does not exist; check the path") from None
    except OSError as error:
        raise UserError(f"data file {path!r} cannot be read: {error.strerror}") from error
    if file.suffix == ".parquet" or content.startswith(_PARQUET_MAGIC):
        return _parse_parquet(content, path, columns)
    return _parse(content, path, columns)


def read_packaged(filename: str, columns: Sequence[str]) -> list[Row]:
    """Reads one of the files that this project ships in ``tasks/data``."""
    content = (resources.files("river_llm.tasks") / "data" / filename).read_bytes()
    return _parse(content, filename, columns)


def read_hub(source: HubSplit, columns: Sequence[str]) -> list[Row]:
    """Reads a split from the hub, or from the local cache of the `datasets` library.

    Raises:
        UserError: the hub is out of reach and the data set is not cached, or its rows lack a
            column.
    """
    # Imported here: slow, and needed neither for local files nor for the embedded sets.
    from datasets import load_dataset

    try:
        records = load_dataset(source.dataset, source.config, split=source.split)
    # The hub stack raises from datasets, huggingface_hub, its HTTP client and fsspec, which share
    # no base class, and every one of them means that the rows cannot be had.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"data set {source} can be loaded neither from the hub nor from the local cache "
            f"({reason[:200]}); give a local copy with data.path= (data.fewshot_path= for a train "
            f"split), or use exp=gsm_mini or exp=humaneval, which need no hub"
        ) from error
    return check_records(records, str(source), columns)


def check_records(records: Iterable[object], source: str, columns: Sequence[str]) -> list[Row]:
    """Checks rows that are already parsed; places are 0-based row numbers of the source."""
    rows = [_row(record, f"{source}, row {i}", columns) for i, record in enumerate(records)]
    if not rows:
        raise UserError(f"data set {source} has no rows")
    return rows


def check_unique(rows: Iterable[Row], column: str) -> None:
    """Refuses rows that share an id, since records are matched by it."""
    seen: dict[str, str] = {}
    for row in rows:
        key = row.fields[column]
        if key in seen:
            raise UserError(f"{row.place}: {column} {key!r} occurs already in {seen[key]}")
        seen[key] = row.place


def _parse(content: bytes, name: str, columns: Sequence[str]) -> list[Row]:
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"data file {name!r} is damaged or cut off: {error}") from error
    # Split as bytes: text lines would also break at U+2028 inside a JSON string.
    lines = content.removeprefix(_BOM).split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{name}, line {number}"
        try:
            record = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(f"{place}: not UTF-8 text ({error.reason})") from error
        except (ValueError, RecursionError) as error:
            hint = (
                "the file ends in the middle of this row; get a complete copy"
                if number == len(lines)
                else "one JSON object per line is expected"
            )
            raise UserError(f"{place}: not JSON ({error}); {hint}") from error
        rows.append(_row(record, place, columns))
    if not rows:
        raise UserError(f"data file {name!r} is empty; one JSON object per line is expected")
    return rows


def _parse_parquet(content: bytes, name: str, columns: Sequence[str]) -> list[Row]:
    # Imported here: slow, and needed for this format alone.
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(content))
        found = file.schema_arrow.names
        records = file.read(columns=[each for each in columns if each in found]).to_pylist()
    # Damage shows as pyarrow's own errors, as OSError from its decompression, or as text that is
    # not UTF-8.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"data file {name!r} is damaged, cut off or no parquet file ({reason[:200]})"
        ) from error
    for column in columns:
        if column not in found:
            raise UserError(_missing(name, column, found))
    if not records:
        raise UserError(f"data file {name!r} is empty; one row for each problem is expected")
    return check_records(records, name, columns)


def _missing(place: str, column: str, found: Iterable[str]) -> str:
    return (
        f"{place}: column {column!r} is missing (columns found: "
        f"{', '.join(sorted(map(str, found))) or 'none'})"
    )


def _row(record: object, place: str, columns: Sequence[str]) -> Row:
    if not isinstance(record, Mapping):
        raise UserError(f"{place}: a {type(record).__name__}, where a JSON object is expected")
    fields = {}
    for column in columns:
        if column not in record:
            raise UserError(_missing(place, column, record))
        value = record[column]
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"{place}: column {column!r} is {value!r}, where text is expected")
        # JSON can spell half a character, which no tokenizer and no file takes.
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UserError(f"{place}: column {column!r} holds half a character (a surrogate)")
        fields[column] = value
    return Row(place, fields)
