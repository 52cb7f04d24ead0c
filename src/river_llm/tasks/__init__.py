"""Benchmarks by their key in ``exp=``."""

from river_llm.errors import UserError
from river_llm.tasks.base import FinishReason, Sample, Specimen, Task, TaskSettings, Verdict
from river_llm.tasks.gsm8k import Gsm8k
from river_llm.tasks.gsm_mini import GsmMini
from river_llm.tasks.humaneval import HumanEval
from river_llm.tasks.math500 import Math500
from river_llm.tasks.math_mini import MathMini
from river_llm.tasks.named_columns import NamedColumns, build_named

__all__ = [
    "TASKS",
    "FinishReason",
    "NamedColumns",
    "Sample",
    "Specimen",
    "Task",
    "TaskSettings",
    "Verdict",
    "build",
]

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Gsm8k, Math500, HumanEval, GsmMini, MathMini)
}


def build(
    name: str,
    *,
    fewshot: int,
    fewshot_source: str,
    data_path: str | None,
    fewshot_path: str | None,
    allow_code_execution: bool,
    timeout_s: float,
    sandbox: str = "auto",
    columns: NamedColumns | None = None,
) -> Task:
    """Builds a task and reads its exemplars; its problems are read by `Task.samples`.

    Grading needs no exemplars: to grade stored completions, build with ``fewshot=0``.

    Args:
        name: a key of `TASKS`, or with `columns` any other name.
        fewshot: number of worked exemplars before the question.
        fewshot_source: ``own`` or ``train``.
        data_path: local file, or a folder with one named after the task, in place of the task's
            own source (see `TaskSettings`).
        fewshot_path: the same in place of the hub's train split.
        allow_code_execution: permission to run generated programs.
        timeout_s: limit for one generated program in seconds.
        sandbox: how generated programs are contained (see `TaskSettings`).
        columns: what a file of a user's own holds; None: a task of `TASKS`.

    Raises:
        UserError: unknown name, settings the task cannot serve, or unreadable exemplars.
    """
    settings = TaskSettings(
        fewshot=fewshot,
        fewshot_source=fewshot_source,
        data_path=data_path,
        fewshot_path=fewshot_path,
        allow_code_execution=allow_code_execution,
        sandbox=sandbox,
        timeout_s=timeout_s,
    )
    if columns is not None:
        if name in TASKS:
            raise UserError(f"exp.name={name!r} is a task of its own: give yours another name")
        return build_named(name, columns, settings)
    if name not in TASKS:
        raise UserError(f"exp={name!r}: unknown task; the tasks are {', '.join(TASKS)}")
    return TASKS[name](settings)
