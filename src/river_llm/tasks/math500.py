"""MATH-500: the 500 test problems of MATH (Hendrycks et al. 2021) chosen by Lightman et al. 2023.

It is always labelled MATH-500, since figures on the full test split of 5,000 differ.
"""

import re

from river_llm.grading import math as grader
from river_llm.tasks.base import FinishReason, Sample, Verdict
from river_llm.tasks.data import HubSplit, check_unique, read_file, read_hub
from river_llm.tasks.fewshot import check_disjoint
from river_llm.tasks.question import QuestionTask

# A box without braces whose formula is not closed before the text ends: it may go on behind a cut.
_OPEN_BOX = re.compile(
    r"\\(?:boxed|fbox)(?![a-zA-Z])\s*+(?!\{)(?:(?!\$|\\\)|\\\]|\\boxed|\\fbox).)*\Z"
)


class Math500(QuestionTask):
    """MATH-500 from the hub (``HuggingFaceH4/MATH-500``) or a local copy with its columns."""

    name = "math"
    label = "MATH-500"
    instruction = "Solve the problem step by step. Put the final answer in \\boxed{}."
    columns = ("problem", "solution")
    headings = ("Problem", "Solution")
    own_exemplars = "math_exemplars.jsonl"
    test_split = HubSplit("HuggingFaceH4/MATH-500", None, "test")

    def grade(self, sample: Sample, completion: str, finish_reason: FinishReason) -> Verdict:
        """Right if the last box is complete and equals the gold answer, also in a cut text."""
        cut = finish_reason == "length" and _OPEN_BOX.search(completion)
        extracted = None if cut else grader.extract_answer(completion)
        correct = grader.answers_equal(extracted, sample.gold, question=sample.question["problem"])
        return Verdict(correct, extracted, {})

    def same_answer(self, one: str, other: str) -> bool:
        """Compared as mathematics."""
        return grader.answers_equal(one, other)

    def _load(self) -> list[Sample]:
        path = self.settings.data_path
        columns = ("problem", "answer", "unique_id")
        rows = read_hub(self.test_split, columns) if path is None else read_file(path, columns)
        check_unique(rows, "unique_id")
        samples = [
            Sample(
                row.fields["unique_id"], {"problem": row.fields["problem"]}, row.fields["answer"]
            )
            for row in rows
        ]
        check_disjoint(self.exemplars, (sample.question["problem"] for sample in samples))
        return samples
