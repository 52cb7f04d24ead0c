"""MATH-500: label, prompts, exemplars and verdicts."""

import json
from pathlib import Path
from typing import Any

import pytest

from river_llm.errors import UserError
from river_llm.tasks import TASKS, Sample, Task, TaskSettings

ROWS = [
    {"problem": "What is $3/4 + 1/8$?", "answer": "\\frac{7}{8}", "unique_id": "toy/fractions/1"},
    {"problem": "Solve $x + 1 = 4$.", "answer": "3", "unique_id": "toy/algebra/2"},
]


def make(path: Path, rows: list[dict[str, str]] = ROWS, **changes: Any) -> Task:
    file = path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return TASKS["math"](TaskSettings(data_path=str(file), **changes))


def test_tables_say_math_500(tmp_path: Path) -> None:
    task = make(tmp_path)
    assert (task.name, task.label) == ("math", "MATH-500")


def test_samples_take_their_id_from_the_row(tmp_path: Path) -> None:
    assert make(tmp_path).samples() == [
        Sample("toy/fractions/1", {"problem": "What is $3/4 + 1/8$?"}, "\\frac{7}{8}"),
        Sample("toy/algebra/2", {"problem": "Solve $x + 1 = 4$."}, "3"),
    ]


def test_repeated_id_and_missing_column_are_refused_by_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 3: unique_id 'toy/fractions/1' occurs already"):
        make(tmp_path, [*ROWS, ROWS[0]]).samples()
    with pytest.raises(UserError, match="line 1: column 'unique_id' is missing"):
        make(tmp_path, [{"problem": "p", "answer": "a"}]).samples()


def test_prompts_ask_for_the_box(tmp_path: Path) -> None:
    task = make(tmp_path)
    sample = task.samples(1)[0]
    messages = task.messages(sample)
    assert [m["role"] for m in messages] == ["user"]
    assert messages[0]["content"].startswith("What is $3/4 + 1/8$?\n")
    assert "\\boxed{}" in messages[0]["content"]
    assert "\\boxed{}" in task.text(sample)
    assert task.text(sample).endswith("Problem: What is $3/4 + 1/8$?\nSolution:")


def test_own_exemplars_end_in_one_box_each(tmp_path: Path) -> None:
    task = make(tmp_path, fewshot=4)
    sample = task.samples(1)[0]
    solutions = [m["content"] for m in task.messages(sample)[1::2]]
    boxes = [solution.rpartition("\\boxed{")[2] for solution in solutions]
    # 2 and 5; 4 of 36 rolls; radius 5; from (-5+3)/2 to (5+3)/2.
    assert boxes == ["7}$.", "\\frac{1}{9}}$.", "25\\pi}$.", "(-1,4)}$."]
    assert [solution.count("\\boxed") for solution in solutions] == [1] * 4
    assert task.text(sample).count("\n\nProblem:") == 4
    with pytest.raises(UserError, match="only 4 exemplars"):
        make(tmp_path, fewshot=5)


def test_train_exemplars_need_a_file_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no train split"):
        make(tmp_path, fewshot=1, fewshot_source="train")
    shots = tmp_path / "shots.jsonl"
    shots.write_text('{"problem": "$2+2$?", "solution": "$\\\\boxed{4}$"}\n', encoding="utf-8")
    task = make(tmp_path, fewshot=1, fewshot_source="train", fewshot_path=str(shots))
    assert task.text(task.samples(1)[0]).startswith("Problem: $2+2$?\nSolution: $\\boxed{4}$\n\n")


def test_exemplar_that_is_a_problem_of_the_benchmark_is_refused(tmp_path: Path) -> None:
    shots = tmp_path / "shots.jsonl"
    shots.write_text(json.dumps(ROWS[1] | {"solution": "3"}) + "\n", encoding="utf-8")
    task = make(tmp_path, fewshot=1, fewshot_source="train", fewshot_path=str(shots))
    with pytest.raises(UserError, match="itself a question"):
        task.samples()


def test_stop_strings_cut_only_a_new_problem(tmp_path: Path) -> None:
    task = make(tmp_path)
    solution = " The Problem: add.\nProblem: as above. Solution: \\boxed{\\frac{7}{8}}"
    assert task.stop_strings(chat=True) == ()
    stops = task.stop_strings(chat=False)
    assert not any(stop in solution for stop in stops)
    assert any((solution + "\n\nProblem: next").find(stop) == len(solution) for stop in stops)


@pytest.mark.parametrize(
    ("completion", "finish_reason", "correct"),
    [
        ("So it is $\\boxed{\\frac{7}{8}}$.", "eos", True),
        ("So it is $\\boxed{\\frac{14}{16}}$.", "eos", True),
        ("So it is $\\boxed{\\frac{8}{7}}$.", "eos", False),
        ("First \\boxed{1}, no: \\boxed{\\frac{7}{8}}", "eos", True),
        ("First \\boxed{\\frac{7}{8}}, no: \\boxed{1}", "eos", False),
        # Cut by the budget: right with a complete box, wrong without one.
        ("It is \\boxed{\\frac{7}{8}}. Let us check this by", "length", True),
        ("It is \\boxed{\\frac{7}{8", "length", False),
        ("It is $\\frac{6}{8} + \\frac{1}{8} = \\frac{7}{8}$", "length", False),
        ("", "length", False),
        # Without braces nothing shows that the answer is complete, but the end of the text does.
        ("It is \\boxed \\frac{7}{8}", "length", False),
        ("It is \\fbox\\frac78", "length", False),
        ("It is $\\boxed \\frac{7}{8} +", "length", False),
        ("It is $\\boxed \\frac{7}{8}$ and", "length", True),
        ("It is \\boxed {\\frac{7}{8}} and", "length", True),
        ("Not \\boxed 5, but \\boxed{\\frac{7}{8}} and", "length", True),
        ("It is \\(\\boxed \\frac{7}{8}\\) and", "length", True),
    ],
)
def test_verdict(tmp_path: Path, completion: str, finish_reason: Any, correct: bool) -> None:
    task = make(tmp_path)
    verdict = task.grade(task.samples(1)[0], completion, finish_reason)
    assert verdict.correct is correct
    if "\\boxed" not in completion:
        assert verdict.extracted is None


def test_base_suffix_may_be_left_out_where_the_problem_names_the_base(tmp_path: Path) -> None:
    rows = [
        {"problem": "Write 47 in base 5.", "answer": "142_5", "unique_id": "toy/base/1"},
        {"problem": "What is the sum?", "answer": "142_5", "unique_id": "toy/base/2"},
    ]
    task = make(tmp_path, rows)
    verdicts = [task.grade(s, "It is \\boxed{142}.", "eos").correct for s in task.samples()]
    assert verdicts == [True, False]


@pytest.mark.parametrize(
    ("finish_reason", "extracted"), [("eos", "3"), ("stop", "3"), ("length", None)]
)
def test_box_without_braces_counts_unless_the_budget_may_have_cut_it(
    tmp_path: Path, finish_reason: Any, extracted: str | None
) -> None:
    task = make(tmp_path)
    verdict = task.grade(task.samples()[1], "It is \\boxed 3", finish_reason)
    assert (verdict.correct, verdict.extracted) == (extracted is not None, extracted)
