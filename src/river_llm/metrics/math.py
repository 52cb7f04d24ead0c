"""Accuracy on MATH from completions and gold answers."""

from collections.abc import Sequence

import datasets
import evaluate

from river_llm.grading import math as grader
from river_llm.metrics.base import TEXT, TextMetric, check_texts, per_sample, share


class MathAccuracy(TextMetric):
    r"""Share of completions whose last box equals the gold answer (docs/grading.md).

    `compute(predictions, references, finish_reasons=None, questions=None)`: completions; gold
    answers without a box; why each text ended (``eos``, ``stop`` or ``length``, default
    ``stop``); the questions, which may name a base that an answer leaves out.

    Returns a dict: ``accuracy`` with ``low`` and ``high`` (95 % Wilson interval), and ``graded``.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Accuracy of boxed answers on MATH-style problems.",
            citation="Hendrycks et al. 2021, arXiv 2103.03874",
            inputs_description=str(MathAccuracy.__doc__),
            features=datasets.Features({"predictions": TEXT, "references": TEXT}),
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str],
        finish_reasons: Sequence[str] | None = None,
        questions: Sequence[str] | None = None,
    ) -> dict[str, float | int | None]:
        check_texts("predictions", predictions)
        check_texts("references", references)
        reasons = per_sample("finish_reasons", finish_reasons, "stop", len(predictions))
        asked = per_sample("questions", questions, "", len(predictions))
        return share(
            [
                grader.answers_equal(grader.extract_answer(text, reason), gold, question=question)
                for text, gold, reason, question in zip(
                    predictions, references, reasons, asked, strict=True
                )
            ]
        )
