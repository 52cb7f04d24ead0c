"""Choosing the worked exemplars that stand before a question."""

from collections.abc import Iterable
from dataclasses import dataclass

from river_llm.errors import UserError
from river_llm.tasks.base import TaskSettings
from river_llm.tasks.data import HubSplit, Row, read_file, read_hub, read_packaged

SOURCES = ("own", "train")


@dataclass(frozen=True)
class Exemplar:
    """A question with its worked solution."""

    question: str
    solution: str


def check_settings(settings: TaskSettings) -> None:
    """Refuses few-shot settings that are wrong for every task."""
    if settings.fewshot < 0:
        raise UserError(f"exp.fewshot={settings.fewshot}: must be 0 or more")
    if settings.fewshot_source not in SOURCES:
        raise UserError(
            f"exp.fewshot_source={settings.fewshot_source!r}: must be one of {', '.join(SOURCES)}"
        )
    if settings.fewshot_path is not None and settings.fewshot_source != "train":
        raise UserError(
            f"data.fewshot_path={settings.fewshot_path!r} is read only with "
            f"exp.fewshot_source=train; set that, or drop the path"
        )


def choose(
    settings: TaskSettings, columns: tuple[str, str], own_file: str | None, train: HubSplit | None
) -> tuple[Exemplar, ...]:
    """The first `settings.fewshot` exemplars of the chosen source.

    Args:
        settings: number, source and path.
        columns: names of the question and of the solution column, the same in every source.
        own_file: packaged file with the exemplars written for this project, None without one.
        train: the benchmark's train split on the hub, None if it has none.

    Raises:
        UserError: wrong settings, unreadable data, or fewer exemplars than wanted.
    """
    check_settings(settings)
    if settings.fewshot == 0:
        return ()
    rows = _rows(settings, columns, own_file, train)
    if settings.fewshot > len(rows):
        raise UserError(
            f"exp.fewshot={settings.fewshot}: only {len(rows)} exemplars are available "
            f"(exp.fewshot_source={settings.fewshot_source}); set exp.fewshot to at most that"
        )
    question, solution = columns
    return tuple(
        Exemplar(row.fields[question], row.fields[solution]) for row in rows[: settings.fewshot]
    )


def check_disjoint(exemplars: Iterable[Exemplar], questions: Iterable[str]) -> None:
    """Refuses exemplars that give away the answer of a question of the benchmark."""
    asked = {_words(question) for question in questions}
    for exemplar in exemplars:
        if _words(exemplar.question) in asked:
            raise UserError(
                f"the few-shot exemplar {exemplar.question[:60]!r}... is itself a question of this "
                f"benchmark; take exemplars from another file"
            )


def _rows(
    settings: TaskSettings, columns: tuple[str, str], own_file: str | None, train: HubSplit | None
) -> list[Row]:
    if settings.fewshot_source == "own":
        if own_file is None:
            raise UserError(
                "exp.fewshot_source=own: no exemplars were written for this task; use "
                "exp.fewshot_source=train with data.fewshot_path=<file>, or exp.fewshot=0"
            )
        return read_packaged(own_file, columns)
    if settings.fewshot_path is not None:
        return read_file(settings.fewshot_path, columns)
    if train is None:
        raise UserError(
            "exp.fewshot_source=train: this benchmark has no train split; use "
            "exp.fewshot_source=own, or give a file with data.fewshot_path="
        )
    return read_hub(train, columns)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())
