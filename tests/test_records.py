"""The folder of a run: what is written is read again, whatever kills or disturbs the writer."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pandas as pd
import pytest

from river_llm.errors import UserError
from river_llm.records import RunFolder, SampleRecord

FIRST = SampleRecord(
    id="set/0",
    index=0,
    prompt_hash="0123456789abcdef",
    prompt_tokens=11,
    completion="2 + 2 = 4\n#### 4",
    token_ids=[7, 8, 9],
    margins=[0.5, 2.0, 0.0],
    extracted="4",
    correct=True,
    detail={"strict": True, "flexible": True},
    finish_reason="eos",
    tokens_timed=3,
    tokens_kept=2,
    prefill_seconds=0.1,
    decode_seconds=1 / 3,
    prefill_depth=2,
    exit_depths=[1, 3],
    exit_scores=[0.75, None],
    block_lengths={"1": 1},
    commit="abc",
)
SECOND = replace(
    FIRST,
    id="set/1",
    index=1,
    extracted=None,
    correct=None,
    detail={"status": "not_executed"},
    finish_reason="length",
    exit_depths=[],
    exit_scores=[],
    block_lengths={"1": 1},
    commit=None,
)

# Characters that end a line for some readers, and others that need care in files.
TEXTS = {
    "newline": "a\nb\n\n",
    "carriage return": "a\rb\r\n",
    "line separator": "a\u2028b\u2029c",
    "next line": "a\x85b\x0bc\x0cd\x1ce",
    "emoji": "done 🎉👩‍🚀 ok",
    "accents": "naïve café Ωμέγα 数学",
    "quotes": '{"a": "b\\\\"}',
    "null byte": "a\x00b",
    "replacement character": "half a character: \ufffd",
    "empty": "",
    "blanks": "    return x  \t",
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A new run folder."""
    run = RunFolder(tmp_path / "runs" / "gsm_mini" / "tiny" / "river-0123456789ab")
    with run.locked():
        pass
    return run


def refusal(call: Callable[[], object]) -> str:
    """The one line with which a call is refused."""
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- round trip ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_a_text_is_read_as_it_was_written(folder: RunFolder, text: str):
    records = [
        replace(FIRST, completion=text, extracted=text),
        replace(SECOND, id=f"set/{text}", detail={"status": text}),
    ]
    for record in records:
        folder.append(record)
    assert folder.samples() == records


def test_a_record_takes_one_line_whatever_it_holds(folder: RunFolder):
    for number, text in enumerate(TEXTS.values(), start=1):
        folder.append(replace(FIRST, completion=text))
        assert folder.samples_path.read_bytes().count(b"\n") == number
    for line in folder.samples_path.read_bytes().split(b"\n")[:-1]:
        assert set(json.loads(line)) == {item.name for item in fields(SampleRecord)}


def test_times_are_read_to_the_last_bit(folder: RunFolder):
    seconds = [0.1 + 0.2, 1e-9, 1234567.891, math.pi, 5e-324]
    for value in seconds:
        folder.append(replace(FIRST, prefill_seconds=value, decode_seconds=-value))
    assert [r.prefill_seconds for r in folder.samples()] == seconds


def test_a_folder_that_is_not_there_yet_has_no_samples(tmp_path: Path):
    run = RunFolder(tmp_path / "nosuch")
    assert run.samples() == []
    assert run.read_json("summary.json") is None
    run.drop_half_line()
    assert not run.path.exists()


def test_each_sample_is_in_the_file_when_append_returns(folder: RunFolder):
    sizes = []
    for record in (FIRST, SECOND):
        folder.append(record)
        sizes.append(folder.samples_path.stat().st_size)
    assert 0 < sizes[0] < sizes[1]


# --- a killed writer ----------------------------------------------------------------------


def test_each_sample_has_left_for_the_disk_when_append_returns(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    """A system that fails right after must not lose it; what a flush left is there at the sync."""
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(folder.samples_path.read_bytes()))
    for number, record in enumerate((FIRST, SECOND), start=1):
        folder.append(record)
        assert len(synced) == number
        assert synced[-1] == folder.samples_path.read_bytes()
        assert synced[-1].count(b"\n") == number


def write(folder: RunFolder, *records: SampleRecord) -> bytes:
    for record in records:
        folder.append(record)
    return folder.samples_path.read_bytes()


LINE = (json.dumps({"id": "set/1", "completion": "ünfinished 🎉"}, ensure_ascii=False)).encode()
CUT = {
    "one byte": LINE[:1],
    "inside a key": LINE[:9],
    "inside a character": LINE[:-4],
    "without its newline": LINE,
    "zeros of a crashed disk": b"\x00" * 100,
}


@pytest.mark.parametrize("half", CUT.values(), ids=CUT.keys())
def test_half_a_last_line_is_no_sample(folder: RunFolder, half: bytes):
    whole = write(folder, FIRST)
    folder.samples_path.write_bytes(whole + half)
    assert folder.samples() == [FIRST]


@pytest.mark.parametrize("half", CUT.values(), ids=CUT.keys())
def test_a_sample_behind_half_a_line_has_a_line_of_its_own(folder: RunFolder, half: bytes):
    whole = write(folder, FIRST)
    folder.samples_path.write_bytes(whole + half)
    folder.drop_half_line()
    assert folder.samples_path.read_bytes() == whole
    assert write(folder, SECOND).startswith(whole)
    assert folder.samples() == [FIRST, SECOND]


@pytest.mark.parametrize("half", CUT.values(), ids=CUT.keys())
def test_a_file_of_half_a_line_starts_anew(folder: RunFolder, half: bytes):
    folder.samples_path.write_bytes(half)
    assert folder.samples() == []
    folder.drop_half_line()
    write(folder, FIRST)
    assert folder.samples() == [FIRST]


def test_whole_lines_are_not_cut(folder: RunFolder):
    whole = write(folder, FIRST, SECOND)
    folder.drop_half_line()
    assert folder.samples_path.read_bytes() == whole


def test_dropping_the_cut_is_what_saves_the_next_sample(folder: RunFolder):
    # Without it both rows are glued into one that is neither: the check above can fail.
    folder.samples_path.write_bytes(write(folder, FIRST) + LINE)
    folder.append(SECOND)
    assert "line 2" in refusal(folder.samples)


# --- a damaged file -----------------------------------------------------------------------

GOOD = json.dumps({item.name: getattr(FIRST, item.name) for item in fields(SampleRecord)})
FEWER = json.dumps({k: v for k, v in json.loads(GOOD).items() if k != "exit_scores"})
MORE = json.dumps({**json.loads(GOOD), "extra": 1})
DAMAGE = {
    "half a line": GOOD[:40],
    "no JSON": "Traceback (most recent call last):",
    "two rows in one": GOOD + GOOD,
    "empty line": "",
    "a list": f"[{GOOD}]",
    "a number": "7",
    "null": "null",
    "a key too few": FEWER,
    "a key too many": MORE,
    "another file's row": '{"question": "q", "answer": "a"}',
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_broken_line_is_named_with_file_and_number(folder: RunFolder, damage: str, number: int):
    lines = [GOOD, GOOD]
    lines.insert(number - 1, damage)
    folder.samples_path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    before = folder.samples_path.read_bytes()
    message = refusal(folder.samples)
    assert f"{folder.samples_path}, line {number}:" in message
    assert "move the folder away" in message
    assert folder.samples_path.read_bytes() == before


def test_bytes_that_are_no_text_are_a_broken_line(folder: RunFolder):
    folder.samples_path.write_bytes(GOOD.encode() + b"\n\xff\xfe{}\n")
    assert "line 2" in refusal(folder.samples)


@pytest.mark.parametrize("line", ["7", "{", "[]", '{"fetches": 1}'])
def test_a_row_of_fetches_that_is_none_is_told(folder: RunFolder, line: str):
    (folder.path / "offload.jsonl").write_text(line + "\n", encoding="utf-8")
    message = refusal(folder.fetches)
    assert message.startswith(f"{folder.path / 'offload.jsonl'} is not readable")


def test_files_that_cannot_be_read_are_told(folder: RunFolder):
    readers = {
        "samples.jsonl": folder.samples,
        "offload.jsonl": folder.fetches,
        "config.json": lambda: folder.read_json("config.json"),
    }
    for name, reader in readers.items():
        (folder.path / name).mkdir()
        message = refusal(reader)
        assert message.startswith(f"cannot read {folder.path / name}: Is a directory; ")
    assert refusal(folder.drop_half_line).startswith("cannot read ")


@pytest.mark.parametrize("content", ["", "{", "{'a': 1}", "[1, 2"])
def test_a_broken_json_file_is_named(folder: RunFolder, content: str):
    (folder.path / "measurements.json").write_text(content, encoding="utf-8")
    message = refusal(lambda: folder.read_json("measurements.json"))
    assert str(folder.path / "measurements.json") in message
    assert "move it away" in message


# --- two processes ------------------------------------------------------------------------

SECOND_PROCESS = """
import sys
from pathlib import Path
from river_llm.errors import UserError
from river_llm.records import RunFolder
try:
    with RunFolder(Path(sys.argv[1])).locked():
        print("in")
except UserError as error:
    print(error)
"""


def second_process(folder: RunFolder) -> str:
    """What another process comes to that wants to work in the folder."""
    done = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, str(folder.path)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_second_process_is_refused_in_one_line(folder: RunFolder):
    with folder.locked():
        refused = second_process(folder)
    assert refused.count("\n") == 1
    assert "another process works in" in refused
    assert str(folder.path) in refused
    assert second_process(folder) == "in\n"


def test_the_lock_ends_with_an_error_inside_it(folder: RunFolder):
    with pytest.raises(ZeroDivisionError), folder.locked():
        raise ZeroDivisionError
    with folder.locked():
        pass


def test_a_lock_is_for_one_folder(folder: RunFolder, tmp_path: Path):
    with folder.locked(), RunFolder(tmp_path / "other").locked():
        pass


def test_the_lock_of_a_killed_process_is_gone(folder: RunFolder):
    script = SECOND_PROCESS.replace('print("in")', "import os; os.kill(os.getpid(), 9)")
    done = subprocess.run([sys.executable, "-c", script, str(folder.path)], capture_output=True)
    assert done.returncode == -9
    with folder.locked():
        pass


# --- whole files --------------------------------------------------------------------------


def test_a_rewrite_replaces_every_verdict_and_nothing_else(folder: RunFolder):
    write(folder, FIRST, SECOND)
    changed = [replace(FIRST, correct=False), replace(SECOND, correct=True, extracted="ja 🎉")]
    folder.rewrite(changed)
    assert folder.samples() == changed
    assert {path.name for path in folder.path.iterdir()} == {".lock", "samples.jsonl"}


def test_a_rewrite_of_the_same_records_gives_the_same_bytes(folder: RunFolder):
    records = [replace(FIRST, completion=text) for text in TEXTS.values()]
    before = write(folder, *records)
    folder.rewrite(folder.samples())
    assert folder.samples_path.read_bytes() == before


@pytest.mark.parametrize("what", ["rewrite", "write_json", "write_steps"])
def test_a_file_is_replaced_as_a_whole_or_not_at_all(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, what: str
):
    write(folder, FIRST)
    folder.write_json("summary.json", {"old": 1})
    folder.write_steps([FIRST])
    names = ["samples.jsonl", "summary.json", "steps.parquet"]
    before = {name: (folder.path / name).read_bytes() for name in names}

    def killed(self: Path, target: Path) -> None:
        # The new content is complete on disk, under another name, when the old one goes.
        assert self.stat().st_size > 0
        assert {name: (folder.path / name).read_bytes() for name in names} == before
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    call = {
        "rewrite": lambda: folder.rewrite([SECOND]),
        "write_json": lambda: folder.write_json("summary.json", {"new": 2}),
        "write_steps": lambda: folder.write_steps([SECOND, FIRST]),
    }[what]
    with pytest.raises(KeyboardInterrupt):
        call()
    assert {name: (folder.path / name).read_bytes() for name in names} == before
    assert folder.samples() == [FIRST]


def test_json_files_are_read_as_they_were_written(folder: RunFolder):
    content = {"a": [1, None, True, 0.1], "text": TEXTS["line separator"], "nested": {"b": {}}}
    folder.write_json("x.json", content)
    assert folder.read_json("x.json") == content
    folder.write_json("x.json", [])
    assert folder.read_json("x.json") == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_is_refused_and_leaves_no_trace(folder: RunFolder, value: float):
    before = write(folder, FIRST)
    folder.write_json("summary.json", {"old": 1})
    for call in (
        lambda: folder.append(replace(SECOND, decode_seconds=value)),
        lambda: folder.append(replace(SECOND, exit_depths=[1], exit_scores=[value])),
        lambda: folder.append(replace(SECOND, detail={"x": value})),
        lambda: folder.rewrite([replace(FIRST, prefill_seconds=value)]),
        lambda: folder.write_json("summary.json", {"a": {"b": [value]}}),
    ):
        with pytest.raises(ValueError, match="JSON compliant"):
            call()
    assert folder.samples_path.read_bytes() == before
    assert folder.read_json("summary.json") == {"old": 1}


# --- steps.parquet ------------------------------------------------------------------------


def steps(folder: RunFolder, *records: SampleRecord) -> pd.DataFrame:
    folder.write_steps(list(records))
    return pd.read_parquet(folder.path / "steps.parquet")


def test_steps_hold_one_row_for_each_decode_step(folder: RunFolder):
    third = replace(FIRST, id="set/2", exit_depths=[0, 30, 5], exit_scores=[None, 0.1, -0.25])
    frame = steps(folder, FIRST, SECOND, third)
    assert list(frame.columns) == ["id", "step", "depth", "score"]
    assert list(frame.id) == ["set/0", "set/0", "set/2", "set/2", "set/2"]
    assert list(frame.step) == [0, 1, 0, 1, 2]
    assert list(frame.depth) == [1, 3, 0, 30, 5]
    assert [None if pd.isna(score) else score for score in frame.score] == [
        0.75,
        None,
        None,
        0.1,
        -0.25,
    ]


PLANNED = replace(FIRST, exit_scores=[None, None])


@pytest.mark.parametrize(
    "records",
    [[FIRST], [PLANNED], [SECOND], [], [FIRST, PLANNED]],
    ids=["scores", "planned depths", "no steps", "no samples", "mixed"],
)
def test_steps_have_the_same_types_whatever_they_hold(
    folder: RunFolder, records: list[SampleRecord]
):
    frame = steps(folder, *records)
    types = frame.dtypes.astype(str).to_dict()
    assert (types["step"], types["depth"], types["score"]) == ("int32", "int16", "float64")
    assert len(frame) == sum(len(record.exit_depths) for record in records)
    assert all(isinstance(key, str) for key in frame.id)


def test_steps_are_made_again_from_the_samples(folder: RunFolder):
    write(folder, FIRST, SECOND)
    folder.write_steps(folder.samples())
    before = pd.read_parquet(folder.path / "steps.parquet")
    (folder.path / "steps.parquet").unlink()
    folder.write_steps(folder.samples())
    pd.testing.assert_frame_equal(pd.read_parquet(folder.path / "steps.parquet"), before)


def test_a_depth_without_its_score_is_not_written(folder: RunFolder):
    with pytest.raises(ValueError):
        folder.write_steps([replace(FIRST, exit_scores=[0.5])])
    assert not (folder.path / "steps.parquet").exists()


# --- where nothing can be written ---------------------------------------------------------


def as_nobody(call: Callable[[], object]) -> str:
    """What a call raises in a process without special rights; empty: nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            call()
            answer = ""
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    return answer


def enter(path: Path) -> Callable[[], object]:
    def call() -> None:
        with RunFolder(path).locked():
            pass

    return call


@pytest.mark.parametrize("there", [True, False], ids=["the folder", "the folder above"])
def test_a_read_only_folder_is_refused_in_one_line(tmp_path: Path, there: bool):
    for parent in [tmp_path, *tmp_path.parents[:2]]:
        parent.chmod(parent.stat().st_mode | 0o011)
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o555)
    path = shut if there else shut / "runs" / "x"
    answer = as_nobody(enter(path))
    assert answer.startswith(f"UserError: cannot write the run folder {path}:")
    assert "Permission denied" in answer
    assert "output.dir=" in answer
    assert "\n" not in answer
    assert list(shut.iterdir()) == []


def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path):
    file = tmp_path / "results"
    file.write_text("mine", encoding="utf-8")
    message = refusal(enter(file / "runs" / "x"))
    assert str(file / "runs" / "x") in message
    assert "output.dir=" in message
    assert file.read_text(encoding="utf-8") == "mine"
