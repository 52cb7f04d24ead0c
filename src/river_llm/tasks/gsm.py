"""What GSM-style benchmarks share: the answer format, its gold answers and its two verdicts."""

import re
from collections.abc import Iterable

from river_llm.errors import UserError
from river_llm.grading import gsm8k as grader
from river_llm.tasks.base import FinishReason, Sample, Specimen, TaskSettings, Verdict
from river_llm.tasks.data import Row
from river_llm.tasks.fewshot import Exemplar, check_disjoint
from river_llm.tasks.question import QuestionTask

_NUMBER = re.compile(r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")
_CALCULATOR = re.compile(r"<<[^<>]*>>")


def gold_answer(row: Row) -> str:
    """The number after ``####`` in a worked solution, without thousands commas.

    Raises:
        UserError: there is none (names the row's place).
    """
    _, marker, tail = row.fields["answer"].rpartition("####")
    if not marker or not _NUMBER.fullmatch(tail.strip()):
        raise UserError(f"{row.place}: column 'answer' does not end with '#### <number>'")
    return tail.strip().replace(",", "")


class GsmTask(QuestionTask):
    """Grade-school arithmetic in words, answered by a number after ``####``."""

    instruction = (
        "Solve the problem step by step. Then write the final answer as one number on a last "
        "line of its own, in this form:\n#### <number>"
    )
    columns = ("question", "answer")
    headings = ("Question", "Answer")
    own_exemplars = "gsm_exemplars.jsonl"
    specimen = Specimen(
        Sample("specimen", {"question": "A farm has 1,200 hens and buys 34. How many?"}, "1234"),
        right="1,200 + 34 = 1,234\n#### 1,234",
        wrong="1,200 + 34 = 1,243\n#### 1,243",
    )

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        # The train split annotates each calculation for a calculator tool, which is not here.
        self.exemplars = tuple(
            Exemplar(e.question, _CALCULATOR.sub("", e.solution)) for e in self.exemplars
        )

    def grade(self, sample: Sample, completion: str, finish_reason: FinishReason) -> Verdict:
        """Flexible verdict (headline), with the strict one (a number after ``####``) beside it."""
        grade = grader.grade(completion, sample.gold, finish_reason)
        detail: dict[str, bool | str | None] = {"strict": grade.strict, "flexible": grade.flexible}
        return Verdict(grade.flexible, grade.extracted, detail)

    def same_answer(self, one: str, other: str) -> bool:
        """Compared as numbers."""
        return grader.answers_equal(one, other)

    def _samples(self, rows: Iterable[tuple[str, Row]]) -> list[Sample]:
        """Samples from pairs of an id and a row."""
        samples = [
            Sample(key, {"question": row.fields["question"]}, gold_answer(row)) for key, row in rows
        ]
        check_disjoint(self.exemplars, (sample.question["question"] for sample in samples))
        return samples
