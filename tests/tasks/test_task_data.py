"""Reading rows: what is accepted, and what is refused with file and line."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from river_llm.errors import UserError
from river_llm.evaluation.prompts import data_fingerprint
from river_llm.tasks import TASKS, Task, TaskSettings
from river_llm.tasks.data import check_records, check_unique, in_folder, read_file

GOOD = b'{"question": "2 + 2?", "answer": "#### 4"}'
COLUMNS = ("question", "answer")


def write(folder: Path, content: bytes, name: str = "rows.jsonl") -> str:
    path = folder / name
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(GOOD + b"\n" + GOOD + b"\n", id="plain"),
        pytest.param(GOOD + b"\n" + GOOD, id="no newline at the end"),
        pytest.param(b"\xef\xbb\xbf" + GOOD + b"\n" + GOOD + b"\n", id="byte order mark"),
        pytest.param(b"\n" + GOOD + b"\n\n  \n" + GOOD + b"\n\n", id="blank lines"),
        pytest.param(GOOD + b"\r\n" + GOOD + b"\r\n", id="windows line ends"),
        pytest.param(gzip.compress(GOOD + b"\n" + GOOD + b"\n"), id="gzip"),
    ],
)
def test_accepted_forms_give_the_same_rows(tmp_path: Path, content: bytes) -> None:
    rows = read_file(write(tmp_path, content), COLUMNS)
    assert [dict(row.fields) for row in rows] == [{"question": "2 + 2?", "answer": "#### 4"}] * 2


def test_unicode_line_separator_inside_a_string_does_not_split_the_row(tmp_path: Path) -> None:
    record = {"question": "two\u2028lines", "answer": "x\u0085y"}
    line = json.dumps(record, ensure_ascii=False).encode()
    rows = read_file(write(tmp_path, line + b"\n"), COLUMNS)
    assert [dict(row.fields) for row in rows] == [record]


def test_only_the_wanted_columns_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"question": "q", "answer": "a", "level": 3}\n')
    assert dict(read_file(path, COLUMNS)[0].fields) == {"question": "q", "answer": "a"}


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        pytest.param(GOOD + b"\nnot json\n" + GOOD + b"\n", 2, "not JSON", id="not json"),
        pytest.param(GOOD + b"\n\n\n{'question': 1}\n", 4, "not JSON", id="blank lines counted"),
        pytest.param(b"\xef\xbb\xbfx\n", 1, "not JSON", id="after byte order mark"),
        pytest.param(GOOD + b'\n{"question": "3 + ', 2, "ends in the middle", id="half last line"),
        pytest.param(b"[1, 2]\n", 1, "list", id="a list"),
        pytest.param(GOOD + b"\n" + GOOD + b"\n7\n", 3, "int", id="a number"),
        pytest.param(b"null\n", 1, "NoneType", id="null"),
        pytest.param(b"[" * 200_000 + b"\n", 1, "not JSON", id="nested without end"),
        pytest.param(b'{"question": "q"}\n', 1, "'answer' is missing", id="column missing"),
        pytest.param(b"{}\n", 1, "columns found: none", id="no columns"),
        pytest.param(b'{"question": "q", "answer": 4}\n', 1, "'answer' is 4", id="not text"),
        pytest.param(b'{"question": " ", "answer": "a"}\n', 1, "'question' is ' '", id="blank"),
        pytest.param(b'{"question": null, "answer": "a"}\n', 1, "is None", id="null field"),
        pytest.param(GOOD + b'\n{"question": "\xe4"}\n', 2, "not UTF-8", id="latin-1"),
        pytest.param(gzip.compress(GOOD + b"\nx\n"), 2, "not JSON", id="inside gzip"),
    ],
)
def test_bad_row_is_refused_with_file_and_line(
    tmp_path: Path, content: bytes, line: int, words: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(UserError) as error:
        read_file(path, COLUMNS)
    message = str(error.value)
    assert message.startswith(f"{path}, line {line}: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"\xef\xbb\xbf\n \n", "is empty", id="only blank lines"),
        pytest.param(gzip.compress(b""), "is empty", id="empty gzip"),
        pytest.param(gzip.compress(GOOD * 99)[:-20], "damaged or cut off", id="cut gzip"),
        pytest.param(b"\x1f\x8b" + b"z" * 60, "damaged or cut off", id="not really gzip"),
    ],
)
def test_bad_file_is_refused_by_name(tmp_path: Path, content: bytes, words: str) -> None:
    path = write(tmp_path, content, "rows.jsonl.gz")
    with pytest.raises(UserError, match=words) as error:
        read_file(path, COLUMNS)
    assert path in str(error.value)


def test_missing_file_and_folder_are_refused_by_name(tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match="does not exist") as error:
        read_file(missing, COLUMNS)
    assert missing in str(error.value)
    with pytest.raises(UserError, match="is a folder"):
        read_file(str(tmp_path), COLUMNS)


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, GOOD + b"\n")
    assert len(read_file("~/rows.jsonl", COLUMNS)) == 1


def test_repeated_id_is_refused_with_both_places(tmp_path: Path) -> None:
    lines = [json.dumps({"id": key}).encode() for key in ("a", "b", "a")]
    path = write(tmp_path, b"\n".join(lines) + b"\n")
    rows = read_file(path, ("id",))
    check_unique(rows[:2], "id")
    with pytest.raises(UserError) as error:
        check_unique(rows, "id")
    assert f"{path}, line 3" in str(error.value)
    assert f"{path}, line 1" in str(error.value)


def test_source_without_rows_is_refused() -> None:
    with pytest.raises(UserError, match="toy has no rows"):
        check_records([], "toy", COLUMNS)


def parquet_bytes(columns: dict[str, Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer, **options)
    return buffer.getvalue()


TABLE = {"question": ["q1", "q2", "q3"], "answer": ["#### 1", "#### 2", "#### 3"], "n": [1, 2, 3]}


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(TABLE, id="strings"),
        pytest.param(
            TABLE | {"question": pyarrow.array(TABLE["question"], pyarrow.large_string())},
            id="large strings",
        ),
        pytest.param(
            TABLE | {"question": pyarrow.array(TABLE["question"]).dictionary_encode()},
            id="dictionary",
        ),
    ],
)
def test_parquet_gives_its_rows_in_their_order(tmp_path: Path, table: dict[str, Any]) -> None:
    content = parquet_bytes(table, row_group_size=2)
    rows = read_file(write(tmp_path, content, "rows.parquet"), COLUMNS)
    assert [dict(row.fields) for row in rows] == [
        {"question": f"q{i}", "answer": f"#### {i}"} for i in (1, 2, 3)
    ]
    # What the file holds decides where the name says nothing.
    assert [row.fields for row in read_file(write(tmp_path, content, "rows"), COLUMNS)] == [
        row.fields for row in rows
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "damaged, cut off or no parquet", id="no bytes"),
        pytest.param(GOOD + b"\n", "damaged, cut off or no parquet", id="jsonl under this name"),
        pytest.param(parquet_bytes(TABLE)[:-9], "damaged, cut off or no parquet", id="cut"),
        pytest.param(
            b"PAR1" + b"\xff" * 40 + parquet_bytes(TABLE)[44:],
            "damaged, cut off or no parquet",
            id="a damaged page",
        ),
        pytest.param(
            parquet_bytes({key: pyarrow.array([], pyarrow.string()) for key in COLUMNS}),
            "is empty",
            id="no rows",
        ),
        pytest.param(
            parquet_bytes({"question": ["q"], "n": [1]}),
            "column 'answer' is missing (columns found: n, question)",
            id="column missing",
        ),
        pytest.param(
            parquet_bytes(TABLE | {"answer": [1, 2, 3]}),
            "row 0: column 'answer' is 1, where text is expected",
            id="numbers",
        ),
        pytest.param(
            parquet_bytes(TABLE | {"answer": ["a", None, "c"]}),
            "row 1: column 'answer' is None",
            id="null",
        ),
        pytest.param(
            parquet_bytes(TABLE | {"answer": ["a", "b", " "]}),
            "row 2: column 'answer' is ' '",
            id="blank",
        ),
        pytest.param(
            parquet_bytes(TABLE | {"answer": [["a"], ["b"], ["c"]]}), "row 0: column", id="lists"
        ),
    ],
)
def test_bad_parquet_is_refused_in_one_line_by_name(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = write(tmp_path, content, "rows.parquet")
    with pytest.raises(UserError) as error:
        read_file(path, COLUMNS)
    message = str(error.value)
    assert path in message
    assert words in message
    assert "\n" not in message


def of_task(name: str, path: Path, **changes: Any) -> Task:
    return TASKS[name](TaskSettings(data_path=str(path), **changes))


def test_equal_rows_are_equal_data_in_every_format(tmp_path: Path) -> None:
    rows = [
        {"question": q, "answer": a}
        for q, a in zip(TABLE["question"], TABLE["answer"], strict=True)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    files = {
        "a.jsonl": lines,
        "b.jsonl.gz": gzip.compress(lines),
        "c.parquet": parquet_bytes(TABLE, row_group_size=1),
    }
    for name, content in files.items():
        write(tmp_path, content, name)
    tasks = [of_task("gsm8k", tmp_path / name) for name in files]
    marks = [data_fingerprint(task, task.samples()) for task in tasks]
    assert len(set(marks)) == 1
    swapped = TABLE | {"question": ["q2", "q1", "q3"]}
    other = of_task("gsm8k", Path(write(tmp_path, parquet_bytes(swapped), "d.parquet")))
    assert data_fingerprint(other, other.samples()) != marks[0]


def test_one_folder_serves_several_tasks(tmp_path: Path) -> None:
    write(tmp_path, parquet_bytes(TABLE), "gsm8k.parquet")
    write(tmp_path, b'{"problem": "p", "answer": "1", "unique_id": "u"}\n', "math.jsonl")
    write(tmp_path, b"notes", "README.md")
    assert [s.gold for s in of_task("gsm8k", tmp_path).samples()] == ["1", "2", "3"]
    assert [s.id for s in of_task("math", tmp_path).samples()] == ["u"]


def test_a_folder_without_the_tasks_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        of_task("math", tmp_path)
    message = str(error.value)
    assert str(tmp_path) in message
    assert "math.jsonl, math.jsonl.gz or math.parquet" in message


def test_folder_with_two_files_of_a_task_is_refused(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "gsm8k.jsonl")
    write(tmp_path, gzip.compress(GOOD), "gsm8k.jsonl.gz")
    with pytest.raises(UserError, match=r"holds gsm8k\.jsonl and gsm8k\.jsonl\.gz"):
        of_task("gsm8k", tmp_path)


def test_folder_of_exemplars_is_taken_like_one_of_problems(tmp_path: Path) -> None:
    write(tmp_path, parquet_bytes(TABLE), "gsm8k.parquet")
    data = write(tmp_path, GOOD, "problems.jsonl")
    task = of_task(
        "gsm8k", Path(data), fewshot=2, fewshot_source="train", fewshot_path=str(tmp_path)
    )
    assert task.text(task.samples()[0]).startswith("Question: q1\nAnswer: #### 1\n\nQuestion: q2")


def test_file_stays_the_file_and_home_is_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_folder("nowhere/x.jsonl", "gsm8k") == "nowhere/x.jsonl"
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "sets").mkdir()
    write(tmp_path / "sets", GOOD, "gsm8k.jsonl")
    assert len(read_file(in_folder("~/sets", "gsm8k"), COLUMNS)) == 1


def test_a_folder_need_not_hold_what_comes_with_a_package(tmp_path: Path) -> None:
    own = TASKS["gsm_mini"](TaskSettings()).samples()
    assert of_task("gsm_mini", tmp_path).samples() == own
    assert len(of_task("humaneval", tmp_path).samples()) == 164
    write(tmp_path, b"x", "gsm_mini.jsonl")
    with pytest.raises(UserError, match="is embedded and reads no file"):
        of_task("gsm_mini", tmp_path)
