"""MATH-500: the 500 test problems of MATH (Hendrycks et al. 2021) chosen by Lightman et al. 2023.

It is always labelled MATH-500, since figures on the full test split of 5,000 differ.
"""

from river_llm.tasks.base import Sample
from river_llm.tasks.data import HubSplit, read_file, read_hub
from river_llm.tasks.math import MathTask


class Math500(MathTask):
    """MATH-500 from the hub (``HuggingFaceH4/MATH-500``) or a local copy with its columns."""

    name = "math"
    label = "MATH-500"
    test_split = HubSplit("HuggingFaceH4/MATH-500", None, "test")

    def _load(self) -> list[Sample]:
        path = self.settings.data_path
        columns = ("problem", "answer", "unique_id")
        rows = read_hub(self.test_split, columns) if path is None else read_file(path, columns)
        return self._samples(rows, "unique_id")
