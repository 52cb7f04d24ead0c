"""Whatever follows a stop string, however it is cut into tokens: text and verdict are the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from properties import search
from river_llm.decoding import StepOutput
from river_llm.engine.executor import Exit
from river_llm.generation import Generation, StopRules, generate
from river_llm.tasks import TASKS, Task, TaskSettings

PIECES = [
    "#### 7",
    "\n",
    "\n\n",
    "\n\nQuestion:",
    "\n\nProblem:",
    "\\boxed{7}",
    "\n```",
    "\ndef ",
    "\nif",
    "x",
]
tails = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=8).map("".join)
widths = st.lists(st.integers(1, 40), min_size=1, max_size=5)
EXAMPLES = 100


class Spelling:
    """Emits the given pieces of text, one a step: token n is piece n."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.calls = 0
        self.executor = SimpleNamespace(device=torch.device("cpu"))

    def step(self, *prompts: Any) -> StepOutput:
        token = self.calls
        self.calls += 1
        return StepOutput([[token]], [[0.0]], torch.zeros(1, 1, 2), Exit(0))

    prefill = step


def generated(text: str, widths: list[int], stops: tuple[str, ...]) -> Generation:
    """The text in pieces of these widths, in turn, through the generation loop."""
    pieces = []
    while text:
        width = widths[len(pieces) % len(widths)]
        pieces.append(text[:width])
        text = text[width:]
    rules = StopRules(len(pieces), stop_strings=stops)
    decoder: Any = Spelling(len(pieces))
    *_, last = generate(decoder, [0], rules, lambda ids: "".join(pieces[i] for i in ids[1:]))
    return last


def make(name: str) -> Task:
    return TASKS[name](TaskSettings())


@pytest.mark.parametrize("name", ["gsm_mini", "math_mini"])
@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_what_follows_a_stop_changes_neither_text_nor_verdict(name: str, times: int) -> None:
    task = make(name)
    specimen = task.specimen
    stops = task.stop_strings(chat=False)

    def check(stop: str, tail: str, widths: list[int]) -> None:
        for completion, right in ((specimen.right, True), (specimen.wrong, False)):
            result = generated(completion + stop + tail, widths, stops)
            assert (result.text, result.finish_reason) == (completion, "stop")
            assert task.grade(specimen.sample, result.text, "stop").correct is right

    search(check, [st.sampled_from(stops), tails, widths], EXAMPLES, times)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_a_program_is_what_stands_before_the_first_stop(times: int) -> None:
    """Programs are not run here: the same text is the same program."""
    task = make("humaneval")
    stops = task.stop_strings(chat=False)
    body = "    y = x * x\n    return y * x"

    def check(stop: str, tail: str, widths: list[int]) -> None:
        result = generated(body + stop + tail, widths, stops)
        assert (result.text, result.finish_reason) == (body, "stop")

    search(check, [st.sampled_from(stops), tails, widths], EXAMPLES, times)
