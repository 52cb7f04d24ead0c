"""Accuracy on GSM8K from completions and gold answers."""

from collections.abc import Sequence

import datasets
import evaluate

from river_llm.errors import UserError
from river_llm.grading import gsm8k as grader
from river_llm.metrics.base import TEXT, TextMetric, check_texts, per_sample, share


class Gsm8kAccuracy(TextMetric):
    """Share of completions with the gold number (docs/grading.md).

    `compute(predictions, references, finish_reasons=None)`: completions; gold answers, as bare
    numbers or as worked solutions that end in ``#### <number>``; why each text ended (``eos``,
    ``stop`` or ``length``, default ``stop``).

    Returns a dict: ``accuracy`` (the flexible reading) with ``low`` and ``high`` (95 % Wilson
    interval), ``graded``, and the accuracies of both readings, ``strict`` and ``flexible``.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Accuracy of final numbers on GSM8K-style problems.",
            citation="Cobbe et al. 2021, arXiv 2110.14168",
            inputs_description=str(Gsm8kAccuracy.__doc__),
            features=datasets.Features({"predictions": TEXT, "references": TEXT}),
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str],
        finish_reasons: Sequence[str] | None = None,
    ) -> dict[str, float | int | None]:
        check_texts("predictions", predictions)
        check_texts("references", references)
        reasons = per_sample("finish_reasons", finish_reasons, "stop", len(predictions))
        verdicts = [
            grader.grade(text, _gold(index, reference), reason)
            for index, (text, reference, reason) in enumerate(
                zip(predictions, references, reasons, strict=True)
            )
        ]
        flexible = share([verdict.flexible for verdict in verdicts])
        strict = share([verdict.strict for verdict in verdicts])
        return {**flexible, "strict": strict["accuracy"], "flexible": flexible["accuracy"]}


def _gold(index: int, reference: str) -> str:
    gold = reference.rpartition("####")[2].strip()
    if not grader.answers_equal(gold, gold):
        raise UserError(
            f"references[{index}]={reference[-60:]!r} is no gold answer: give a number, or a "
            "solution that ends in '#### <number>'"
        )
    return gold
