"""What docs/adding_a_task.md shows works as it is written."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from river_llm.composition import load_config
from river_llm.evaluation.summary import build_task
from river_llm.tasks import Task, TaskSettings

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_task.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_command_of_the_page_reads_the_file_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("colours.jsonl").write_text(blocks("json")[0], encoding="utf-8")
    python, script, *overrides = shlex.split(blocks("bash")[0].replace("\\\n", ""))
    assert (python, script) == ("python", "run.py")
    task = build_task(load_config(overrides))
    assert [(s.id, s.gold) for s in task.samples()] == [
        ("colours/0", "blue"),
        ("colours/1", "white"),
    ]
    assert task.grade(task.samples()[0], "So it is\nblue", "eos").correct is True


def test_class_of_the_page_is_a_task() -> None:
    scope: dict[str, Any] = {"__name__": "true_false"}
    exec(blocks("python")[0], scope)
    task = scope["TrueFalse"](TaskSettings())
    assert isinstance(task, Task)
    task.self_check()
    first, second = task.samples()
    assert (first.id, second.gold) == ("true_false/0", "false")
    assert task.text(first).endswith("Statement: Seven is a prime number.\nAnswer:")
    assert task.grade(second, "False. It is 3 times 3.", "eos").correct is True
    assert task.grade(first, "", "eos").correct is False
    assert f"name: {task.name}\n" in blocks("yaml")[0]
