"""What the metrics share: no files, texts that are texts, and accuracy with its interval."""

import os
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from river_llm.analysis.statistics import wilson_interval
from river_llm.errors import UserError

TEXT = datasets.Value("string")


class TextMetric(evaluate.Metric):
    """A metric over texts that keeps what it is given in memory and leaves nothing on disk.

    Args:
        keep_in_memory: False stores predictions in the cache folder of `evaluate`, for several
            processes that compute one metric together.
        options: further arguments of `evaluate.Metric`.
    """

    def __init__(self, *, keep_in_memory: bool = True, **options: Any) -> None:
        super().__init__(keep_in_memory=keep_in_memory, **options)

    def _build_data_dir(self) -> str:
        # evaluate makes this folder at once, also where nothing is ever put there, and so fails
        # where the user's home cannot be written.
        if self.keep_in_memory:
            return os.path.join(self._data_dir_root, self.name, self.config_name)
        return str(super()._build_data_dir())


def share(verdicts: Sequence[bool]) -> dict[str, float | int | None]:
    """Accuracy with its 95 % Wilson interval; None where nothing was graded."""
    graded, right = len(verdicts), sum(verdicts)
    low, high = wilson_interval(right, graded)
    return {
        "accuracy": right / graded if graded else None,
        "low": low,
        "high": high,
        "graded": graded,
    }


def check_texts(name: str, values: Sequence[Any]) -> None:
    """Refuses missing texts, which `evaluate` lets through.

    Raises:
        UserError: names the first of them.
    """
    for index, value in enumerate(values):
        if value is None:
            raise UserError(f"{name}[{index}] is None: give a text, '' where a model said nothing")


def per_sample(name: str, values: Sequence[str] | None, default: str, count: int) -> Sequence[str]:
    """One value for each sample; the default for all where none are given.

    Raises:
        UserError: not as many values as samples.
    """
    if values is None:
        return [default] * count
    if len(values) != count:
        raise UserError(f"{len(values)} {name} for {count} predictions: give one for each")
    return values
