"""A task of a user's own from a file with named columns."""

import json
from pathlib import Path
from typing import Any

import pytest

from river_llm.composition import load_config
from river_llm.config import effective_settings
from river_llm.errors import UserError
from river_llm.evaluation.prompts import data_fingerprint
from river_llm.evaluation.summary import build_task
from river_llm.tasks import Task

ROWS = [
    {"key": "a", "ask": "How many legs have 3 cats?", "gold": "12", "worked": "So 12.\n#### 12"},
    {"key": "b", "ask": "How many are 7 and 8?", "gold": "15", "worked": "So 15.\n#### 15"},
]
NAMED = ["exp=jsonl", "exp.name=legs", "exp.columns.prompt=ask", "exp.columns.answer=gold"]


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "legs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return f"data.path={path}"


def make(*overrides: str) -> Task:
    return build_task(load_config([*NAMED, *overrides]))


def test_samples_are_the_rows_of_the_named_columns(data: str, tmp_path: Path) -> None:
    task = make(data)
    assert (task.name, task.label) == ("legs", "legs")
    assert [(s.id, s.gold) for s in task.samples()] == [("legs/0", "12"), ("legs/1", "15")]
    assert [s.id for s in make(data, "exp.columns.id=key").samples()] == ["a", "b"]
    # A folder holds a file with the task's name.
    assert make(f"data.path={tmp_path}").samples() == task.samples()


@pytest.mark.parametrize(
    ("grader", "asks", "right", "wrong"),
    [
        ("gsm8k", "#### <number>", "6 * 2\n#### 12.0", "#### 13"),
        ("math", r"\boxed{}", r"It is \boxed{\frac{24}{2}}.", r"\boxed{13}, or 12"),
        ("exact", "alone on the last line", "6 * 2 is\n 12 \n", "It is 12"),
    ],
)
def test_grader_brings_its_instruction_and_verdict(
    data: str, grader: str, asks: str, right: str, wrong: str
) -> None:
    task = make(data, f"exp.grader={grader}")
    sample = task.samples(1)[0]
    for prompt in (task.text(sample), task.messages(sample)[0]["content"]):
        assert ROWS[0]["ask"] in prompt
        assert asks in prompt
        assert "12" not in prompt
    assert task.grade(sample, right, "eos").correct is True
    assert task.grade(sample, wrong, "eos").correct is False


def test_gold_of_gsm8k_may_be_a_worked_solution(data: str) -> None:
    task = make(data, "exp.grader=gsm8k", "exp.columns.answer=worked", "exp.fewshot=8")
    assert [sample.gold for sample in task.samples()] == ["12", "15"]
    assert task.text(task.samples(1)[0]).count("\n\nQuestion:") == 8
    with pytest.raises(UserError, match=r"legs\.jsonl, line 1: .*#### <number>"):
        make(data, "exp.grader=gsm8k", "exp.columns.answer=ask").samples()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "give data.path="),
        (["exp.name=gsm8k", "data.path=x.jsonl"], "exp.name='gsm8k' is a task of its own"),
        (["exp.name=../up", "data.path=x.jsonl"], "exp.name='../up' names a folder"),
        (["exp.grader=bleu", "data.path=x.jsonl"], "choose one of gsm8k, math, exact"),
        (["exp.grader=null", "data.path=x.jsonl"], "belong together"),
        (["exp.columns.hint=x", "data.path=x.jsonl"], "exp.columns.hint"),
        (["exp.fewshot=1", "data.path=x.jsonl"], "no exemplars were written for this task"),
    ],
)
def test_wrong_settings_are_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as error:
        make(*overrides)
    assert words in str(error.value)


def test_missing_column_and_repeated_id_are_refused_by_line(data: str) -> None:
    with pytest.raises(UserError, match="line 1: column 'question' is missing"):
        make(data, "exp.columns.prompt=question").samples()
    path = Path(data.removeprefix("data.path="))
    path.write_text(path.read_text() + json.dumps(ROWS[0]) + "\n")
    with pytest.raises(UserError, match="line 3: key 'a' occurs already"):
        make(data, "exp.columns.id=key").samples()


def settings(*overrides: str) -> dict[str, Any]:
    exp = effective_settings(load_config(list(overrides)), layers=4)["exp"]
    assert isinstance(exp, dict)
    return exp


def test_what_the_task_does_not_use_is_in_no_identity(data: str, tmp_path: Path) -> None:
    # Written out: a key more here would give every finished run another identity.
    assert settings("exp=gsm8k") == {
        "name": "gsm8k", "max_new_tokens": 256, "fewshot": 8, "fewshot_source": "own",
    }  # fmt: skip
    assert settings(*NAMED, "exp.grader=math")["grader"] == "math"
    # Equal rows under other names of columns are the same data.
    renamed = tmp_path / "other.jsonl"
    renamed.write_text("".join(json.dumps({"q": r["ask"], "a": r["gold"]}) + "\n" for r in ROWS))
    one = make(data)
    other = make(f"data.path={renamed}", "exp.columns.prompt=q", "exp.columns.answer=a")
    assert settings(*NAMED) == settings(*NAMED, "exp.columns.prompt=q")
    assert data_fingerprint(one, one.samples()) == data_fingerprint(other, other.samples())
