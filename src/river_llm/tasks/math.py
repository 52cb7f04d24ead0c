"""What MATH-style benchmarks share: the boxed answer and its verdict."""

from collections.abc import Iterable

from river_llm.grading import math as grader
from river_llm.tasks.base import FinishReason, Sample, Specimen, Verdict
from river_llm.tasks.data import Row, check_unique
from river_llm.tasks.fewshot import check_disjoint
from river_llm.tasks.question import QuestionTask


class MathTask(QuestionTask):
    r"""Competition mathematics, answered in a ``\boxed{}``."""

    instruction = "Solve the problem step by step. Put the final answer in \\boxed{}."
    columns = ("problem", "solution")
    headings = ("Problem", "Solution")
    own_exemplars = "math_exemplars.jsonl"
    # Equal as mathematics alone, so that math-verify's process is asked.
    specimen = Specimen(
        Sample("specimen", {"problem": "Which number is the sine of 60 degrees?"}, r"\sqrt{3}/2"),
        right=r"It is $\boxed{\frac{3}{\sqrt{12}}}$.",
        wrong=r"It is $\boxed{\frac{2}{\sqrt{12}}}$.",
    )

    def grade(self, sample: Sample, completion: str, finish_reason: FinishReason) -> Verdict:
        """Right if the last box is complete and equals the gold answer, also in a cut text."""
        extracted = grader.extract_answer(completion, finish_reason)
        correct = grader.answers_equal(extracted, sample.gold, question=sample.question["problem"])
        return Verdict(correct, extracted, {})

    def same_answer(self, one: str, other: str) -> bool:
        """Compared as mathematics."""
        return grader.answers_equal(one, other)

    def _samples(self, rows: Iterable[Row], id_column: str) -> list[Sample]:
        """Samples of rows with the columns problem, answer and that of the id."""
        rows = list(rows)
        check_unique(rows, id_column)
        samples = [
            Sample(row.fields[id_column], {"problem": row.fields["problem"]}, row.fields["answer"])
            for row in rows
        ]
        check_disjoint(self.exemplars, (sample.question["problem"] for sample in samples))
        return samples
