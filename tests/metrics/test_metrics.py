"""The metrics: figures worked out by hand, and what they leave behind: nothing."""

import json
import os
import subprocess
import sys
from importlib import resources
from math import comb
from pathlib import Path
from typing import Any

import pytest

from river_llm.errors import UserError
from river_llm.metrics import Gsm8kAccuracy, HumanEvalPassAtK, MathAccuracy
from river_llm.tasks import TASKS, TaskSettings

RIGHT = {  # of HumanEval/0 (has_close_elements) and HumanEval/2 (truncate_number)
    "HumanEval/0": "    return any(abs(a - b) < threshold for i, a in enumerate(numbers)"
    " for b in numbers[i + 1 :])\n",
    "HumanEval/2": "    return number % 1.0\n",
}
WRONG = "    return None\n"


def test_gsm8k_by_hand() -> None:
    result = Gsm8kAccuracy().compute(
        predictions=["3 + 4 = 7\n#### 7", "so 1,000 it is", "#### 5", "Then 9"],
        references=["7", "It is\n#### 1,000", "6", "9"],
        finish_reasons=["eos", "stop", "stop", "length"],
    )
    low, high = result.pop("low"), result.pop("high")
    assert result == {"accuracy": 0.5, "graded": 4, "strict": 0.25, "flexible": 0.5}
    # Wilson at 2 of 4: centre 0.5, half width z sqrt(1/16 + z^2/64) / (1 + z^2/4), z = 1.959964.
    assert (low, high) == (pytest.approx(0.150039, abs=1e-6), pytest.approx(0.849961, abs=1e-6))


def test_math_by_hand() -> None:
    metric = MathAccuracy()
    result = metric.compute(
        predictions=[r"\boxed{\frac{2}{4}}", r"\boxed{234}", r"\boxed 1", "3"],
        references=["0.5", "234_6", "12", "3"],
        questions=["", "Write 94 in base 6.", "", ""],
        finish_reasons=["eos", "eos", "length", "eos"],
    )
    assert (result["accuracy"], result["graded"]) == (0.5, 4)
    # Without the question the base is missing; without the reason the box says 1.
    result = metric.compute(predictions=[r"\boxed{234}", r"\boxed 1"], references=["234_6", "1"])
    assert (result["accuracy"], result["graded"]) == (0.5, 2)


def test_batches_add_up() -> None:
    metric = Gsm8kAccuracy()
    metric.add(prediction="7", reference="7")
    metric.add_batch(predictions=["8", "9"], references=["8", "1"])
    result = metric.compute()
    assert result["graded"] == 3
    assert result["accuracy"] == pytest.approx(2 / 3)


def test_nothing_graded_has_no_accuracy() -> None:
    result = MathAccuracy().compute(predictions=[], references=[])
    assert result == {"accuracy": None, "low": None, "high": None, "graded": 0}


@pytest.mark.parametrize("name", ["gsm_mini", "math_mini"])
def test_metric_says_what_the_task_says(name: str) -> None:
    task = TASKS[name](TaskSettings())
    samples = task.samples()
    text = (resources.files("river_llm.tasks") / "data" / f"{name}.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    solutions = [row["answer" if name == "gsm_mini" else "solution"] for row in rows]
    # Each third sample gets its neighbour's solution, and the last ones are cut.
    texts = [solutions[i - 1] if i % 3 == 0 else each for i, each in enumerate(solutions)]
    reasons = ["length" if i > len(texts) - 6 else "eos" for i in range(len(texts))]
    verdicts = [
        task.grade(sample, each, reason).correct  # type: ignore[arg-type]
        for sample, each, reason in zip(samples, texts, reasons, strict=True)
    ]
    metric = Gsm8kAccuracy() if name == "gsm_mini" else MathAccuracy()
    result = metric.compute(
        predictions=texts,
        references=[sample.gold for sample in samples],
        finish_reasons=reasons,
    )
    assert 0.3 < result["accuracy"] < 0.7
    assert result["accuracy"] == sum(verdicts) / len(verdicts)


def test_pass_at_k_by_hand() -> None:
    result = HumanEvalPassAtK().compute(
        predictions=[
            [RIGHT["HumanEval/0"], WRONG, WRONG, RIGHT["HumanEval/0"]],
            [WRONG, RIGHT["HumanEval/2"], WRONG],
        ],
        references=["HumanEval/0", "HumanEval/2"],
        k=(1, 2, 3, 4),
        allow_code_execution=True,
        sandbox="process",
    )

    def one(n: int, c: int, k: int) -> float:
        return 1 - comb(n - c, k) / comb(n, k)

    assert result == {
        # The second problem has no four completions, so pass@4 is not there.
        **{f"pass@{k}": pytest.approx((one(4, 2, k) + one(3, 1, k)) / 2) for k in (1, 2, 3)},
        "problems": 2,
        "graded": 7,
        "statuses": {"passed": 3, "failed": 4},
    }
    assert result["pass@1"] == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_one_completion_for_each_problem_has_an_interval() -> None:
    result = HumanEvalPassAtK().compute(
        predictions=[[RIGHT["HumanEval/0"]], [WRONG]],
        references=["HumanEval/0", "HumanEval/2"],
        allow_code_execution=True,
        sandbox="process",
    )
    assert (result["pass@1"], result["accuracy"], result["graded"]) == (0.5, 0.5, 2)
    assert 0.09 < result["low"] < 0.1 < 0.9 < result["high"] < 0.91
    assert "pass@10" not in result


def test_programs_are_not_run_without_permission(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    program = f"    open({str(mark)!r}, 'w')\n    return 1\n"
    given: dict[str, Any] = {"predictions": [[program]], "references": ["HumanEval/2"]}
    with pytest.raises(UserError, match="allow_code_execution=True"):
        HumanEvalPassAtK().compute(**given)
    assert not mark.exists()
    HumanEvalPassAtK().compute(**given, allow_code_execution=True, sandbox="process")
    assert mark.exists()


@pytest.mark.parametrize(
    ("references", "options", "words"),
    [
        (["HumanEval/999"], {}, "'HumanEval/999' is no problem"),
        (["HumanEval/2", "HumanEval/2"], {}, "stands 2 times"),
        (["HumanEval/2"], {"k": (0,)}, "k=0"),
        (["HumanEval/2"], {"timeout_s": 0.0}, "above 0"),
    ],
)
def test_wrong_input_of_humaneval(
    references: list[str], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        HumanEvalPassAtK().compute(
            predictions=[[WRONG]] * len(references),
            references=references,
            allow_code_execution=True,
            sandbox="process",
            **options,
        )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"predictions": ["7", None], "references": ["7", "7"]}, r"predictions\[1\] is None"),
        ({"predictions": ["7"], "references": ["seven"]}, r"references\[0\]='seven'"),
        (
            {"predictions": ["7"], "references": ["7"], "finish_reasons": ["eos", "eos"]},
            "2 finish_reasons for 1",
        ),
    ],
)
def test_wrong_input(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Gsm8kAccuracy().compute(**given)


def test_works_offline_and_leaves_no_file(tmp_path: Path) -> None:
    script = (
        "import socket\n"
        "def refuse(*given): raise AssertionError(f'network: {given}')\n"
        "socket.socket.connect = refuse\n"
        "from river_llm.metrics import Gsm8kAccuracy, HumanEvalPassAtK, MathAccuracy\n"
        "print(Gsm8kAccuracy().compute(predictions=['#### 7'], references=['7'])['accuracy'])\n"
        "print(MathAccuracy().compute(predictions=['\\\\boxed 7'], references=['7'])['accuracy'])\n"
        "print(HumanEvalPassAtK().compute(predictions=[['    return number % 1.0']],\n"
        "    references=['HumanEval/2'], allow_code_execution=True,\n"
        "    sandbox='process')['pass@1'])\n"
    )
    # A file in the place of the cache folder: nothing can be written there, by root neither.
    home = tmp_path / "home"
    home.mkdir()
    (home / "cache").write_text("")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **kept,
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1.0\n1.0\n1.0\n"
    assert [path.name for path in home.rglob("*")] == ["cache"]
