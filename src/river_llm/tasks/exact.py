"""Questions whose answer is compared letter by letter."""

from river_llm.grading import exact as grader
from river_llm.tasks.base import FinishReason, Sample, Specimen, Verdict
from river_llm.tasks.question import QuestionTask


class ExactTask(QuestionTask):
    """A question, answered on the last line."""

    instruction = "Write the final answer alone on the last line."
    columns = ("question", "answer")
    headings = ("Question", "Answer")
    own_exemplars = None
    specimen = Specimen(
        Sample("specimen", {"question": "Which colour has fresh snow?"}, "white"),
        right="Snow reflects all light.\nwhite",
        wrong="Snow reflects all light.\nwhit",
    )

    def grade(self, sample: Sample, completion: str, finish_reason: FinishReason) -> Verdict:
        """Right if the last line is the gold answer."""
        extracted = grader.extract_answer(completion, finish_reason)
        return Verdict(grader.answers_equal(extracted, sample.gold), extracted, {})

    def same_answer(self, one: str, other: str) -> bool:
        """Compared as texts."""
        return grader.answers_equal(one, other)
