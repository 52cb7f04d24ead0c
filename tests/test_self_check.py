"""A run grades a right and a wrong answer first, and stops where a verdict is off."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from river_llm.composition import load_config
from river_llm.errors import UserError
from river_llm.evaluation import summary
from river_llm.evaluation.run import execute
from river_llm.evaluation.runtime import Runtime
from river_llm.grading import exact, gsm8k, math_process
from river_llm.grading import math as math_grader
from river_llm.grading.sandbox import ExecutionResult
from river_llm.records import RunFolder
from river_llm.tasks import TASKS, NamedColumns, Task, build, humaneval

OWN = ["exact", "gsm8k", "math"]


def make(
    name: str, data_path: str | None = None, permission: bool = True, **columns: NamedColumns
) -> Task:
    return build(
        name,
        fewshot=0,
        fewshot_source="own",
        data_path=data_path,
        fewshot_path=None,
        allow_code_execution=permission,
        timeout_s=20.0,
        sandbox="process",  # works everywhere
        **columns,
    )


@pytest.mark.parametrize("name", TASKS)
def test_every_task_tells_its_right_answer_from_its_wrong_one(name: str) -> None:
    task = make(name)
    task.self_check()
    specimen = task.specimen
    assert task.grade(specimen.sample, specimen.right, "eos").correct is True
    assert task.grade(specimen.sample, specimen.wrong, "eos").correct is False


@pytest.mark.parametrize("grader", OWN)
def test_a_task_of_a_users_own_checks_its_grader(grader: str, tmp_path: Path) -> None:
    make("own", str(tmp_path / "none"), columns=NamedColumns(grader, "ask", "gold")).self_check()


def equal(verdict: bool) -> Callable[..., bool]:
    return lambda *args, **options: verdict


def runs(status: str) -> Callable[..., Any]:
    return lambda *args, **options: ExecutionResult(status)  # type: ignore[arg-type]


def no_answer(*args: Any, **options: Any) -> None:
    return None


FAULTS: dict[str, tuple[str, Any, str, Any, str]] = {
    "gsm8k calls all equal": ("gsm_mini", gsm8k, "answers_equal", equal(True), "wrong"),
    "gsm8k calls none equal": ("gsm_mini", gsm8k, "answers_equal", equal(False), "right"),
    "gsm8k finds no number": ("gsm_mini", gsm8k, "extract_answer", no_answer, "right"),
    "math calls all equal": ("math_mini", math_grader, "answers_equal", equal(True), "wrong"),
    "math finds no box": ("math_mini", math_grader, "extract_answer", no_answer, "right"),
    "math-verify calls all equal": (
        "math_mini",
        math_process.MathProcess,
        "equal",
        equal(True),
        "wrong",
    ),
    "math-verify calls none equal": (
        "math_mini",
        math_process.MathProcess,
        "equal",
        equal(False),
        "right",
    ),
    "exact calls all equal": ("own", exact, "answers_equal", equal(True), "wrong"),
    "programs always pass": ("humaneval", humaneval, "run_program", runs("passed"), "wrong"),
    "programs always fail": ("humaneval", humaneval, "run_program", runs("failed"), "right"),
    "programs are not found": (
        "humaneval",
        humaneval,
        "extract_program",
        lambda prompt, *rest: prompt,
        "right",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_verdict_that_is_off_stops_the_run_before_the_model_is_loaded(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exp, module, name, broken, which = FAULTS[fault]
    loaded: list[Any] = []
    monkeypatch.setattr(Runtime, "load", loaded.append)
    monkeypatch.setattr(module, name, broken)
    chosen = [f"exp={exp}"]
    if exp == "humaneval":
        chosen += ["exp.allow_code_execution=true", "exp.sandbox=process"]
    if exp == "own":
        rows = tmp_path / "rows.jsonl"
        rows.write_text(json.dumps({"prompt": "1 + 1", "answer": "2"}) + "\n", encoding="utf-8")
        chosen = ["exp=jsonl", "exp.name=own", f"data.path={rows}"]
    config = load_config([*chosen, "method=no_exit", f"output.dir={tmp_path / 'out'}"])
    with pytest.raises(UserError, match=rf"grader of {exp} does not work.*own {which} answer") as e:
        execute(config)
    assert "\n" not in str(e.value)
    assert loaded == []
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_loaded_already_does_not_pass_by_the_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gsm8k, "answers_equal", equal(True))
    config = load_config(["exp=gsm_mini", f"output.dir={tmp_path / 'out'}"])
    loaded: Any = object()  # any use of it would be another error
    with pytest.raises(UserError, match="grader of gsm_mini does not work"):
        execute(config, loaded)
    assert not (tmp_path / "out").exists()


def test_without_permission_no_program_runs_for_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(humaneval, "run_program", lambda *args, **options: calls.append(args))
    make("humaneval", permission=False).self_check()
    assert calls == []


def test_grading_again_is_checked_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    settings = load_config(["exp=gsm_mini"])
    folder.write_json(summary.CONFIG, asdict(settings))
    folder.write_json(summary.MEASUREMENTS, {"data": None})
    folder.write_json(summary.SUMMARY, {"samples": 0})
    monkeypatch.setattr(gsm8k, "answers_equal", equal(True))
    with pytest.raises(UserError, match="grader of gsm_mini does not work"):
        summary.regrade(folder.path, allow_code_execution=False)
