"""The registry of tasks and what holds for all of them."""

import os
import subprocess
import sys

import pytest

from river_llm.errors import UserError
from river_llm.tasks import TASKS, Task, build


def make(name: str) -> Task:
    return build(
        name,
        fewshot=0,
        fewshot_source="own",
        data_path=None,
        fewshot_path=None,
        allow_code_execution=False,
        timeout_s=5.0,
    )


def test_names_and_labels() -> None:
    assert {name: task.label for name, task in TASKS.items()} == {
        "gsm8k": "GSM8K",
        "math": "MATH-500",
        "humaneval": "HumanEval",
        "gsm_mini": "gsm_mini (own)",
        "math_mini": "math_mini (own)",
    }


def test_unknown_task_is_refused_with_the_list() -> None:
    with pytest.raises(UserError) as error:
        make("gms8k")
    assert "'gms8k'" in str(error.value)
    assert all(name in str(error.value) for name in TASKS)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("chat", [True, False])
def test_stop_strings_are_a_tuple_without_empty_strings(name: str, chat: bool) -> None:
    stops = make(name).stop_strings(chat)
    assert isinstance(stops, tuple)
    assert all(isinstance(stop, str) and len(stop) > 1 for stop in stops)


@pytest.mark.parametrize("name", ["gsm_mini", "math_mini", "humaneval"])
def test_embedded_samples_have_unique_ids_and_are_the_same_each_time(name: str) -> None:
    first, second = make(name).samples(), make(name).samples()
    assert first == second
    assert len({sample.id for sample in first}) == len(first)


def test_embedded_tasks_need_neither_torch_nor_the_hub_library() -> None:
    script = (
        "import sys\n"
        "from river_llm.tasks import build\n"
        "for name in ('gsm_mini', 'math_mini', 'humaneval'):\n"
        "    task = build(name, fewshot=0, fewshot_source='own', data_path=None,\n"
        "                 fewshot_path=None, allow_code_execution=False, timeout_s=5.0)\n"
        "    assert task.samples()\n"
        "print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "[]\n"
