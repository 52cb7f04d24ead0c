"""Prompts of benchmarks that ask a question and want a worked solution."""

from typing import ClassVar

from river_llm.tasks.base import Sample, Task, TaskSettings
from river_llm.tasks.data import HubSplit
from river_llm.tasks.fewshot import choose


class QuestionTask(Task):
    """A task whose samples are questions; exemplars are turns in chat and blocks in plain text."""

    instruction: ClassVar[str]
    """Tells the model how to mark its final answer."""
    columns: ClassVar[tuple[str, str]]
    """Names of the question and of the worked-solution column."""
    headings: ClassVar[tuple[str, str]]
    """Words before a question and before its solution in plain text."""
    own_exemplars: ClassVar[str | None]
    """Packaged file with exemplars written for this project, None without one."""
    train_split: ClassVar[HubSplit | None] = None
    """Where exemplars come from with ``exp.fewshot_source=train``."""

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.exemplars = choose(self.settings, self.columns, self.own_exemplars, self.train_split)

    def messages(self, sample: Sample) -> list[dict[str, str]]:
        """Exemplars as earlier turns; every question comes with the instruction."""
        turns = []
        for exemplar in self.exemplars:
            turns.append({"role": "user", "content": self._ask(exemplar.question)})
            turns.append({"role": "assistant", "content": exemplar.solution})
        question = sample.question[self.columns[0]]
        return [*turns, {"role": "user", "content": self._ask(question)}]

    def text(self, sample: Sample) -> str:
        """Exemplars as blocks of the same form as the question, which is left to be answered."""
        ask, answer = self.headings
        shots = [f"{ask}: {e.question}\n{answer}: {e.solution}\n\n" for e in self.exemplars]
        # Exemplars show the form of the answer; without any, only words can ask for it.
        lead = "".join(shots) or f"{self.instruction}\n\n"
        return f"{lead}{ask}: {sample.question[self.columns[0]]}\n{answer}:"

    def stop_strings(self, chat: bool) -> tuple[str, ...]:
        """The head of the next block, which a base model invents; nothing in chat."""
        # The whole head, since the heading alone also occurs in a solution that restates its
        # question. A chat model ends its turn by a special token.
        return () if chat else (f"\n\n{self.headings[0]}:",)

    def _ask(self, question: str) -> str:
        return f"{question}\n\n{self.instruction}"
