"""GSM8K and gsm_mini: prompts, exemplars, gold answers and verdicts."""

import json
from pathlib import Path
from typing import Any

import pytest

from river_llm.errors import UserError
from river_llm.tasks import TASKS, Sample, Task, TaskSettings

ROWS = [
    {"question": "Ed has 3 nuts and finds 4. How many?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"},
    {"question": "A town of 990 gains 10 people. How many?", "answer": "So 1,000.\n#### 1,000"},
    {"question": "It is 2 degrees and falls by 5. Degrees?", "answer": "2 - 5 = -3\n#### -3"},
]
TRAIN = [
    {"question": "Two cups of 3?", "answer": "It is 2*3=<<2*3=6>>6\nyes\n#### 6"},
    {"question": "Half of 8?", "answer": "It is 8/2=$<<8/2=4>>4.\n#### 4"},
]


def jsonl(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def make(name: str = "gsm8k", **changes: Any) -> Task:
    return TASKS[name](TaskSettings(**changes))


@pytest.fixture
def data(tmp_path: Path) -> str:
    return jsonl(tmp_path / "rows.jsonl", ROWS)


@pytest.fixture
def train(tmp_path: Path) -> str:
    return jsonl(tmp_path / "train.jsonl", TRAIN)


def test_samples_have_stable_ids_and_gold_answers_without_commas(data: str) -> None:
    samples = make(data_path=data).samples()
    assert [(sample.id, sample.gold) for sample in samples] == [
        ("gsm8k/test/0", "7"),
        ("gsm8k/test/1", "1000"),
        ("gsm8k/test/2", "-3"),
    ]
    assert samples[0].question == {"question": ROWS[0]["question"]}


@pytest.mark.parametrize(
    ("written", "gold", "right", "wrong"),
    [
        ("-3", "-3", "#### -3.0", "#### 3"),
        ("7", "7", "#### +7", "#### -7"),
        ("-1,250", "-1250", "#### -$1,250.00", "#### 1250"),
        ("1,234,567", "1234567", "#### 1,234,567", "#### 567"),
        ("0.50", "0.50", "#### .5", "#### 50"),
    ],
)
def test_sign_commas_and_zeros_of_the_gold_answer_change_no_verdict(
    tmp_path: Path, written: str, gold: str, right: str, wrong: str
) -> None:
    row = {"question": "How many?", "answer": f"So it is {written}.\n#### {written}"}
    task = make(data_path=jsonl(tmp_path / "rows.jsonl", [row]))
    [sample] = task.samples()
    assert sample.gold == gold
    assert task.grade(sample, right, "eos").correct is True
    assert task.grade(sample, wrong, "eos").correct is False


def test_blank_lines_do_not_move_ids(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in ROWS) + "\n", encoding="utf-8")
    assert [s.id for s in make(data_path=str(path)).samples()] == [
        f"gsm8k/test/{i}" for i in range(3)
    ]


@pytest.mark.parametrize(("limit", "count"), [(None, 3), (1, 1), (3, 3), (99, 3)])
def test_limit_takes_the_first_samples(data: str, limit: int | None, count: int) -> None:
    samples = make(data_path=data).samples(limit)
    assert [sample.id for sample in samples] == [f"gsm8k/test/{i}" for i in range(count)]


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one_is_refused(data: str, limit: int) -> None:
    with pytest.raises(UserError, match=f"limit={limit}"):
        make(data_path=data).samples(limit)


@pytest.mark.parametrize(
    "answer",
    ["7", "It is 7.\n#### seven", "####", "#### 7 nuts", "#### 1,00", "#### 7\nBye.", "#### 7."],
)
def test_answer_without_a_final_number_is_refused_by_line(tmp_path: Path, answer: str) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [ROWS[0], {"question": "q", "answer": answer}])
    with pytest.raises(UserError, match=r"rows\.jsonl, line 2: .*#### <number>"):
        make(data_path=path).samples()


def test_bad_row_behind_the_limit_is_refused_too(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [*ROWS, {"question": "q"}])
    with pytest.raises(UserError, match="line 4: column 'answer' is missing"):
        make(data_path=path).samples(1)


def test_chat_exemplars_are_turns_and_every_question_asks_for_the_marker(
    data: str, train: str
) -> None:
    task = make(data_path=data, fewshot=2, fewshot_source="train", fewshot_path=train)
    messages = task.messages(task.samples(1)[0])
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2 + ["user"]
    questions = [m["content"] for m in messages[::2]]
    for content, row in zip(questions, [*TRAIN, ROWS[0]], strict=True):
        assert content.startswith(row["question"] + "\n")
        assert content.endswith("#### <number>")
    assert [m["content"] for m in messages[1::2]] == [
        "It is 2*3=6\nyes\n#### 6",
        "It is 8/2=$4.\n#### 4",
    ]


def test_base_exemplars_are_plain_blocks(data: str, train: str) -> None:
    task = make(data_path=data, fewshot=2, fewshot_source="train", fewshot_path=train)
    assert task.text(task.samples(1)[0]) == (
        "Question: Two cups of 3?\nAnswer: It is 2*3=6\nyes\n#### 6\n\n"
        "Question: Half of 8?\nAnswer: It is 8/2=$4.\n#### 4\n\n"
        "Question: Ed has 3 nuts and finds 4. How many?\nAnswer:"
    )


def test_zero_shot_prompts_hold_the_question_and_the_form_of_the_answer(data: str) -> None:
    task = make(data_path=data)
    sample = task.samples(1)[0]
    messages = task.messages(sample)
    assert [m["role"] for m in messages] == ["user"]
    for prompt in (messages[0]["content"], task.text(sample)):
        assert prompt.count(ROWS[0]["question"]) == 1
        assert "#### <number>" in prompt
    assert task.text(sample).endswith(f"\n\nQuestion: {ROWS[0]['question']}\nAnswer:")


def test_gold_answer_never_stands_in_the_prompt(data: str) -> None:
    task = make(data_path=data, fewshot=8)
    for sample in task.samples():
        prompt = task.messages(sample)[-1]["content"] + task.text(sample).rpartition("\n\n")[2]
        assert f"#### {sample.gold}" not in prompt


@pytest.mark.parametrize("name", ["gsm8k", "gsm_mini"])
def test_own_exemplars_are_worked_solutions_with_the_marker(name: str) -> None:
    task = make(name, fewshot=8)
    messages = task.messages(Sample("x", {"question": "q"}, "1"))
    assert len(messages) == 17
    for solution in (m["content"] for m in messages[1::2]):
        assert len(solution.splitlines()) >= 2
        assert solution.splitlines()[-1].startswith("#### ")
    assert task.text(Sample("x", {"question": "q"}, "1")).count("\n\nQuestion:") == 8


def test_first_exemplars_are_taken_in_order(train: str) -> None:
    task = make(fewshot=1, fewshot_source="train", fewshot_path=train)
    messages = task.messages(Sample("x", {"question": "q"}, "1"))
    assert len(messages) == 3
    assert messages[0]["content"].startswith("Two cups of 3?")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fewshot": -1}, "exp.fewshot=-1"),
        ({"fewshot": 9}, "only 8 exemplars"),
        ({"fewshot_source": "tain"}, "'tain': must be one of own, train"),
        ({"fewshot": 1, "fewshot_source": "train", "fewshot_path": "/no/such"}, "does not exist"),
        ({"fewshot_path": "x.jsonl"}, "only with exp.fewshot_source=train"),
    ],
)
def test_wrong_fewshot_settings_are_refused_when_the_task_is_built(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as error:
        make(**changes)
    assert words in str(error.value)


def test_more_shots_than_rows_in_the_train_file_are_refused(train: str) -> None:
    with pytest.raises(UserError, match="only 2 exemplars"):
        make(fewshot=3, fewshot_source="train", fewshot_path=train)


def test_exemplar_that_is_a_question_of_the_benchmark_is_refused(data: str) -> None:
    task = make(data_path=data, fewshot=1, fewshot_source="train", fewshot_path=data)
    with pytest.raises(UserError, match="Ed has 3 nuts"):
        task.samples()


def test_gsm_mini_has_no_train_split_and_reads_no_other_data(train: str) -> None:
    with pytest.raises(UserError, match="no train split"):
        make("gsm_mini", fewshot=1, fewshot_source="train")
    with pytest.raises(UserError, match="exp=gsm8k"):
        make("gsm_mini", data_path=train)
    assert make("gsm_mini", fewshot=2, fewshot_source="train", fewshot_path=train).samples(1)


@pytest.mark.parametrize("name", ["gsm8k", "gsm_mini"])
def test_stop_strings_do_not_cut_reasoning_that_restates_the_question(name: str) -> None:
    task = make(name)
    reasoning = " First restate the Question: how many?\nQuestion: how many? 5 + 6 = 11\n#### 11"
    assert task.stop_strings(chat=True) == ()
    stops = task.stop_strings(chat=False)
    assert not any(stop in reasoning for stop in stops)
    # The next example that a base model invents is cut off whole.
    assert any((reasoning + "\n\nQuestion: 7 cats").find(stop) == len(reasoning) for stop in stops)


@pytest.mark.parametrize(
    ("completion", "finish_reason", "extracted", "strict", "flexible"),
    [
        ("3 + 4 = 7\n#### 7", "eos", "7", True, True),
        ("3 + 4 = 7, so he has 7 nuts.", "eos", "7", False, True),
        ("3 + 4 = 8\n#### 8", "eos", "8", False, False),
        ("I do not know.", "eos", None, False, False),
        ("", "stop", None, False, False),
        # The budget cut the reasoning: a number in it is no answer, even if it is the right one.
        ("There are 3 and 4, which makes 7 nuts. But then", "length", None, False, False),
        ("3 + 4 = 7\n#### 7\nThis is because", "length", "7", True, True),
    ],
)
def test_verdict_is_flexible_with_strict_beside_it(
    data: str,
    completion: str,
    finish_reason: Any,
    extracted: str | None,
    strict: bool,
    flexible: bool,
) -> None:
    task = make(data_path=data)
    verdict = task.grade(task.samples(1)[0], completion, finish_reason)
    assert verdict.correct is flexible
    assert verdict.extracted == extracted
    assert verdict.detail == {"strict": strict, "flexible": flexible}


@pytest.mark.parametrize("index", [0, 1, 2])
def test_written_solution_is_graded_right(data: str, index: int) -> None:
    task = make(data_path=data)
    verdict = task.grade(task.samples()[index], ROWS[index]["answer"], "eos")
    assert verdict.correct is True


def test_all_solutions_of_gsm_mini_are_graded_right() -> None:
    from river_llm.tasks.data import read_packaged

    task = make("gsm_mini")
    rows = read_packaged("gsm_mini.jsonl", ("id", "answer"))
    for sample, row in zip(task.samples(), rows, strict=True):
        verdict = task.grade(sample, row.fields["answer"], "eos")
        assert verdict.detail == {"strict": True, "flexible": True}, sample.id
