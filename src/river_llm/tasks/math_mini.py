"""math_mini: MATH-style problems written for this project and shipped with it."""

from river_llm.errors import UserError
from river_llm.tasks.base import Sample, TaskSettings
from river_llm.tasks.data import read_packaged
from river_llm.tasks.math import MathTask


class MathMini(MathTask):
    """A small set that needs no download. It is not MATH and says nothing about MATH."""

    name = "math_mini"
    label = "math_mini (own)"
    embedded = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        if self.settings.data_path is not None:
            raise UserError(
                f"data.path={settings.data_path!r}: exp=math_mini is embedded and reads no file; "
                f"use exp=math for a file with columns problem, answer and unique_id"
            )

    def _load(self) -> list[Sample]:
        return self._samples(read_packaged("math_mini.jsonl", ("id", "problem", "answer")), "id")
