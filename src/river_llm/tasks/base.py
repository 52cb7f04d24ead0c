"""What every benchmark offers: samples, prompts, stop strings and a verdict."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

from river_llm.errors import UserError
from river_llm.records import FinishReason
from river_llm.tasks.data import in_folder, lacks


@dataclass(frozen=True)
class Sample:
    """One problem of a benchmark.

    Args:
        id: stable and unique within the benchmark; records are matched by it.
        question: the fields of the row that prompting and grading need.
        gold: the gold answer as text.
    """

    id: str
    question: Mapping[str, str]
    gold: str


@dataclass(frozen=True)
class Verdict:
    """How a completion was graded.

    Args:
        correct: None when it was not graded.
        extracted: the final answer (or the program) found in the completion, None without one.
        detail: further outcomes by name, for the records.
    """

    correct: bool | None
    extracted: str | None
    detail: dict[str, bool | str | None]


@dataclass(frozen=True)
class Specimen:
    """A problem with known verdicts, by which a task checks its own grader.

    Args:
        sample: the problem.
        right: a completion that must be graded right.
        wrong: one of the same form that must be graded wrong.
    """

    sample: Sample
    right: str
    wrong: str


@dataclass(frozen=True)
class TaskSettings:
    """What a run may choose about a task; a task takes what it needs.

    Args:
        fewshot: number of worked exemplars before the question.
        fewshot_source: ``own`` (written for this project) or ``train`` (first rows of the
            train split).
        data_path: local .jsonl, .jsonl.gz or .parquet in place of the task's own source, or a
            folder with such a file named after the task.
        fewshot_path: the same in place of the hub's train split.
        allow_code_execution: permission to run generated programs.
        sandbox: how they are contained: ``auto``, ``bubblewrap``, ``namespaces`` or ``process``.
        timeout_s: limit for one generated program in seconds.
    """

    fewshot: int = 0
    fewshot_source: str = "own"
    data_path: str | None = None
    fewshot_path: str | None = None
    allow_code_execution: bool = False
    sandbox: str = "auto"
    timeout_s: float = 10.0


class Task(ABC):
    """A benchmark. Building one reads its exemplars, `samples` reads its problems."""

    name: str
    """Key of the task in ``exp=``."""
    label: str
    """Name of the task in tables."""
    specimen: Specimen
    """What `self_check` grades."""
    embedded: bool = False
    """Whether its rows come with a package, so that a folder of data may lack them."""

    def __init__(self, settings: TaskSettings) -> None:
        # A folder serves several tasks; from here on only the task's own file counts.
        path, shots = settings.data_path, settings.fewshot_path
        self.settings = replace(
            settings,
            data_path=None
            if path is None or (self.embedded and lacks(path, self.name))
            else in_folder(path, self.name),
            fewshot_path=None if shots is None else in_folder(shots, self.name),
        )

    def samples(self, limit: int | None = None) -> list[Sample]:
        """The first `limit` problems in the order of the source (None: all of them).

        Raises:
            UserError: limit below 1, or data that cannot be read.
        """
        if limit is not None and limit < 1:
            raise UserError(f"limit={limit}: at least 1 sample is needed, or null for all")
        return self._load()[:limit]

    @abstractmethod
    def _load(self) -> list[Sample]:
        """Reads and checks all problems."""

    @abstractmethod
    def messages(self, sample: Sample) -> list[dict[str, str]]:
        """The conversation for a chat model: dicts with ``role`` and ``content``."""

    @abstractmethod
    def text(self, sample: Sample) -> str:
        """The prompt for a base model, without special tokens."""

    @abstractmethod
    def stop_strings(self, chat: bool) -> tuple[str, ...]:
        """Strings that end a completion; the text kept ends before the first of them."""

    @abstractmethod
    def grade(self, sample: Sample, completion: str, finish_reason: FinishReason) -> Verdict:
        """Grades the kept text of a completion."""

    def self_check(self) -> None:
        """Grades the specimen's answers the way a run grades, before it generates anything.

        A grader that calls everything right, or nothing (a library that is missing, a program that
        cannot be started), would else be found out behind a night of generating, or never.

        Raises:
            UserError: a verdict is not what it must be.
        """
        specimen = self.specimen
        for completion, expected in ((specimen.right, True), (specimen.wrong, False)):
            verdict = self.grade(specimen.sample, completion, "eos")
            if verdict.correct is not expected:
                raise UserError(
                    f"the grader of {self.name} does not work here: its own "
                    f"{'right' if expected else 'wrong'} answer {completion!r} to a gold answer of "
                    f"{specimen.sample.gold!r} got the verdict {verdict.correct} "
                    f"{dict(verdict.detail)}; install the package's dependencies again"
                )

    def same_answer(self, one: str, other: str) -> bool:
        """Whether two extracted answers are the same; by default, the same text."""
        return one == other
