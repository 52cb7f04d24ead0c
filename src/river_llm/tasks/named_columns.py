"""A task of a user's own: a local file with named columns, and the grader of another task."""

from dataclasses import dataclass

from river_llm.errors import UserError
from river_llm.tasks.base import Sample, TaskSettings
from river_llm.tasks.data import Row, check_unique, read_file
from river_llm.tasks.exact import ExactTask
from river_llm.tasks.fewshot import check_disjoint
from river_llm.tasks.gsm import GsmTask, gold_answer
from river_llm.tasks.math import MathTask
from river_llm.tasks.question import QuestionTask


@dataclass(frozen=True)
class NamedColumns:
    """What a file of a user's own holds, and how its answers are graded.

    Args:
        grader: whose instruction, exemplars and verdicts are used: ``gsm8k``, ``math`` or
            ``exact``.
        prompt: column with the question.
        answer: column with the gold answer; for ``gsm8k`` a number, or a solution that ends in
            ``#### <number>``.
        id: column with ids; None: rows are numbered.
    """

    grader: str
    prompt: str
    answer: str
    id: str | None = None


class _NamedColumns(QuestionTask):
    """Reads the file; everything else is the grader's own task."""

    def __init__(self, name: str, source: NamedColumns, settings: TaskSettings) -> None:
        if settings.data_path is None:
            raise UserError(f"exp.name={name} has no data of its own: give data.path=<file>")
        self.name = self.label = name
        self.source = source
        super().__init__(settings)

    def _load(self) -> list[Sample]:
        path, source = self.settings.data_path, self.source
        assert path is not None  # __init__ refuses it
        ids = [] if source.id is None else [source.id]
        rows = read_file(path, [*ids, source.prompt, source.answer])
        if source.id is not None:
            check_unique(rows, source.id)
        question = self.columns[0]
        samples = [
            Sample(
                f"{self.name}/{i}" if source.id is None else row.fields[source.id],
                {question: row.fields[source.prompt]},
                self._gold(row),
            )
            for i, row in enumerate(rows)
        ]
        check_disjoint(self.exemplars, (sample.question[question] for sample in samples))
        return samples

    def _gold(self, row: Row) -> str:
        gold = row.fields[self.source.answer]
        if self.source.grader != "gsm8k":
            return gold.strip()
        written = gold if "####" in gold else f"#### {gold}"
        return gold_answer(Row(row.place, {"answer": written}))


class _WithGsm(_NamedColumns, GsmTask):
    pass


class _WithMath(_NamedColumns, MathTask):
    pass


class _WithExact(_NamedColumns, ExactTask):
    pass


_GRADERS: dict[str, type[_NamedColumns]] = {
    "gsm8k": _WithGsm,
    "math": _WithMath,
    "exact": _WithExact,
}


def build_named(name: str, columns: NamedColumns, settings: TaskSettings) -> QuestionTask:
    """Builds the task.

    Args:
        name: of the task in results; that of the file, where ``data.path`` is a folder.
        columns: of the file, and the grader.
        settings: `data_path` is needed.

    Raises:
        UserError: no data path, an unknown grader, or the settings' own reasons.
    """
    if columns.grader not in _GRADERS:
        raise UserError(f"exp.grader={columns.grader!r}: choose one of {', '.join(_GRADERS)}")
    return _GRADERS[columns.grader](name, columns, settings)
