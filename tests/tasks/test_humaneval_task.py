"""HumanEval: data from the package or a file, prompts, and programs that run only if allowed."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from river_llm.errors import UserError
from river_llm.grading import sandbox
from river_llm.grading.sandbox import ExecutionResult
from river_llm.tasks import TASKS, Task, TaskSettings, humaneval

PROMPT = 'def double(x: int) -> int:\n    """Twice x.\n    >>> double(2)\n    4\n    """\n'
ROWS = [
    {
        "task_id": "Toy/0",
        "prompt": PROMPT,
        "entry_point": "double",
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(3) == 6 and candidate(0) == 0\n",
    }
]


def make(**changes: Any) -> Task:
    # The level that works everywhere; which one `auto` takes is not the task's matter.
    return TASKS["humaneval"](TaskSettings(**{"sandbox": "process", **changes}))


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
    return str(path)


def test_package_holds_164_problems_in_order() -> None:
    samples = make().samples()
    assert [sample.id for sample in samples] == [f"HumanEval/{i}" for i in range(164)]
    for sample in samples:
        assert f"def {sample.question['entry_point']}(" in sample.question["prompt"]
        assert "def check(" in sample.question["test"]


def test_local_file_takes_the_place_of_the_package(data: str) -> None:
    [sample] = make(data_path=data).samples()
    assert sample.id == "Toy/0"
    assert sample.gold == "    return 2 * x\n"
    assert dict(sample.question) == {k: ROWS[0][k] for k in ("prompt", "entry_point", "test")}


def test_base_prompt_is_the_problem_as_it_is(data: str) -> None:
    task = make(data_path=data)
    assert task.text(task.samples()[0]) == PROMPT


def test_chat_prompt_shows_the_function_in_a_closed_fence(data: str) -> None:
    task = make(data_path=data)
    [message] = task.messages(task.samples()[0])
    assert message["role"] == "user"
    assert "whole function" in message["content"]
    assert message["content"].endswith(f"\n```python\n{PROMPT.rstrip()}\n```")


@pytest.mark.parametrize(
    "tail",
    [
        "\ndef next_one(y):\n",
        "\n\n\nclass Thing:\n",
        '\nif __name__ == "__main__":\n',
        "\nprint(double(4))\n",
        "\nassert double(2) == 5\n",
        "\n```\nThis function doubles.",
    ],
)
def test_base_stops_cut_what_follows_the_function(tail: str) -> None:
    body = "    # twice\n    if x < 0:\n        print(x)\n    y = x + x\n    return y"
    stops = make().stop_strings(chat=False)
    cut = min(at for at in ((body + tail).find(stop) for stop in stops) if at >= 0)
    assert (body + tail)[:cut].rstrip() == body


@pytest.mark.parametrize(
    "body",
    [
        "    y = x\n# a comment at column 0 is legal here\n    return 2 * y",
        "    def f(z):\n        return z\n\n    class Box:\n        pass\n    return 2 * f(x)",
        "    assert x\n    print(x)\n    return 2 * x",
    ],
)
def test_base_stops_do_not_cut_inside_a_function_body(body: str) -> None:
    assert not any(stop in body for stop in make().stop_strings(chat=False))


def test_chat_has_no_stop_that_could_cut_a_fenced_answer() -> None:
    answer = f"Sure:\n```python\nimport math\n\n\n{PROMPT}    return 2 * x\n\nprint(1)\n```\nDone."
    assert not any(stop in answer for stop in make().stop_strings(chat=True))


def test_program_is_not_run_without_permission(
    data: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []
    monkeypatch.setattr(humaneval, "run_program", lambda *args, **options: calls.append(args))
    task = make(data_path=data)
    verdict = task.grade(task.samples()[0], "    return 2 * x\n", "eos")
    assert verdict.correct is None
    assert verdict.detail == {"status": "not_executed"}
    assert verdict.extracted is not None
    assert "return 2 * x" in verdict.extracted
    assert calls == []


@pytest.mark.parametrize(
    ("completion", "correct", "status"),
    [
        ("    return 2 * x\n", True, "passed"),
        (f"```python\n{PROMPT}    return x + x\n```", True, "passed"),
        ("    return 3 * x\n", False, "failed"),
        ("    while True:\n        pass\n", False, "timeout"),
    ],
    ids=["body", "fenced function", "wrong", "endless"],
)
def test_program_is_graded_by_its_tests_with_permission(
    data: str, completion: str, correct: bool, status: str
) -> None:
    task = make(data_path=data, allow_code_execution=True, timeout_s=2.0)
    verdict = task.grade(task.samples()[0], completion, "eos")
    assert verdict.correct is correct
    assert verdict.detail == {"status": status, "sandbox": "process"}


def test_gold_answer_of_a_packaged_problem_passes() -> None:
    task = make(allow_code_execution=True)
    sample = task.samples(1)[0]
    assert task.grade(sample, sample.gold, "eos").correct is True


def test_a_sandbox_that_cannot_contain_is_refused_before_anything_is_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "fault_of", lambda level: "not here")
    with pytest.raises(UserError, match=r"exp\.sandbox=process"):
        make(allow_code_execution=True, sandbox="auto")
    make(allow_code_execution=False, sandbox="auto")


def test_fault_of_the_sandbox_stops_the_run(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ExecutionResult("error", "no process could be started")
    monkeypatch.setattr(humaneval, "run_program", lambda *args, **options: broken)
    task = make(data_path=data, allow_code_execution=True)
    with pytest.raises(UserError, match=r"Toy/0.*no process could be started"):
        task.grade(task.samples()[0], "    return 2 * x\n", "eos")


def test_inert_sandbox_is_refused_before_anything_is_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes_all = ExecutionResult("passed")
    monkeypatch.setattr(sandbox, "run_program", lambda *args, **options: passes_all)
    with pytest.raises(UserError, match="sandbox does not work"):
        make(allow_code_execution=True)
    make(allow_code_execution=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fewshot": 2}, "humaneval has 0 exemplars"),
        ({"fewshot": -2}, "must be 0 or more"),
        ({"fewshot_source": "mine"}, "must be one of"),
        ({"timeout_s": 0.0}, "above 0"),
        ({"timeout_s": float("nan")}, "above 0"),
        ({"timeout_s": float("inf")}, "above 0"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(**changes)


def test_row_without_tests_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = {key: value for key, value in ROWS[0].items() if key != "test"}
    path.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"rows\.jsonl, line 2: column 'test' is missing"):
        make(data_path=str(path)).samples()
