"""What must hold for the extractors on any text, searched by hypothesis.

In the suite the examples are the same each time; behind the marker `soak` they are many and new.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from properties import search
from river_llm.grading import exact, gsm8k
from river_llm.grading import math as math_grader
from river_llm.grading.humaneval import extract_program

LONG = 100_000  # characters
SECONDS = 6.0  # of one core, for a long text

FINISH = ("eos", "stop", "length")
PROMPT = (
    'from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    """Add the numbers."""\n'
)
NUMBERS = [
    "7",
    ",000",
    "/2",
    " 1/2",
    "\\frac{1}{2}",
    "-3",
    "1,234",
    "1{,}234",
    "$5.00",
    "35%",
    "3/4",
    "2\\frac{1}{2}",
    "1e3",
    "٣",
]
MARKS = ["####", "#### ", "\n", "\n\n", " ", "\t", "\r\n", "\u2028", "Step 2: ", "answer ", "**"]
TEX = ["\\boxed", "\\boxed{", "\\fbox{", "{", "}", "\\{", "\\", "$", "\\]", "^", "_", "\\!", ","]
ANSWERS = [
    "7",
    "1,234",
    r"\frac{1}{2}",
    "(1,6]",
    r"\{1, 6\}",
    "x = 3",
    r"\text{on}",
    "142_5",
    "1,6",
]
CODE = ["```", "```python\n", "~~~\n", "def total(xs):\n", "    return 1\n", "@a\n", "(\n", "'''"]
CODE += ["if x:\n", "x = 1\n", "a[]:", "import a\n", "</think>", "<|im_end|>", "</s>", "#\n", '"']
SPECIAL = ["\x00", "\ud800", "\u2212", "\ufeff", "\x0c", "\xa0", "🙂", "e\u0301"]
PIECES = [*NUMBERS, *MARKS, *TEX, *CODE, *SPECIAL]

anything = st.characters(exclude_categories=())  # surrogates too
texts = st.lists(st.sampled_from(PIECES) | st.text(anything, max_size=6), max_size=30).map("".join)
tails = st.builds(str.__add__, st.sampled_from(["", *PIECES]), texts)
heads = st.builds(str.__add__, texts, st.sampled_from(["", *PIECES]))
repeated = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)
long_texts = st.builds(
    lambda head, part, tail: head + part * (LONG // len(part)) + tail, texts, repeated, texts
)
half_as_long = st.builds(lambda part, tail: part * (LONG // 3 // len(part)) + tail, repeated, texts)
finishes = st.sampled_from(FINISH)
whole = st.integers(-(10**9), 10**9) | st.integers(-(10**30), 10**30)
cents = whole | whole.map(lambda value: 100 * value)


def written(cents: int) -> str:
    """A value with two decimals where it needs them."""
    decimals = f".{abs(cents) % 100:02}" if cents % 100 else ""
    return f"{'-' * (cents < 0)}{abs(cents) // 100}{decimals}"


def plain(cents: int) -> str:
    """The same as the grader writes it."""
    return written(cents).rstrip("0") if cents % 100 else written(cents)


def gsm8k_never_raises(text: str, finish: str) -> None:
    for found in (gsm8k.extract_answer(text, finish), gsm8k.extract_strict(text, finish)):
        if found is not None:
            assert Decimal(found).is_finite()
            assert gsm8k.extract_strict(f"#### {found}") == found  # in its only spelling


def math_never_raises(text: str, finish: str) -> None:
    found = math_grader.extract_answer(text, finish)
    assert found is None or (found and found == found.strip() and found in text)


def humaneval_never_raises(text: str) -> None:
    program = extract_program(PROMPT, text, "total")
    assert program.endswith("\n")
    source = (PROMPT + text).replace("\r\n", "\n").replace("\r", "\n")
    for line in program.split("\n"):
        assert line.strip() in source  # dropped or indented, never changed


def exact_never_raises(text: str, finish: str) -> None:
    found = exact.extract_answer(text, finish)
    assert found is None or (found and found == found.strip() and found in text)


def gsm8k_ends_fast(text: str, finish: str) -> None:
    within(SECONDS, lambda: gsm8k.grade(text, "7", finish))


def math_ends_fast(text: str, finish: str) -> None:
    within(SECONDS, lambda: math_grader.extract_answer(text, finish))


def math_normalizes_fast(text: str) -> None:
    answer = text[:1000]
    assume(answer.strip())
    within(SECONDS, lambda: math_grader.normalize(answer))


def math_grades_any_answer(text: str, gold: str) -> None:
    verdict = math_grader.answers_equal(text, gold)
    assert verdict in (True, False)
    assert math_grader.answers_equal(text, text) is bool(text.strip())


def humaneval_ends_fast(text: str) -> None:
    within(SECONDS, lambda: extract_program(PROMPT, text, "total"))


def within(seconds: float, work: Callable[[], object]) -> None:
    begin = time.process_time()
    work()
    assert time.process_time() - begin < seconds


def gsm8k_ignores_what_follows_the_answer(cents: int, tail: str, finish: str) -> None:
    text = f"So it is.\n#### {written(cents)}\n{tail}"
    assert gsm8k.extract_strict(text, finish) == plain(cents)
    assert gsm8k.extract_answer(text, finish) == plain(cents)


def math_ignores_what_follows_the_last_box(inner: int, tail: str, finish: str) -> None:
    assume("\\boxed" not in tail and "\\fbox" not in tail)
    text = rf"It is \boxed{{\frac{{{inner}}}{{7}}}}" + tail
    assert math_grader.extract_answer(text, finish) == rf"\frac{{{inner}}}{{7}}"


SOLUTIONS = [
    "    return sum(xs)",
    "    s = 0\n    for x in xs:\n        s += x\n    return s\n",
    "```python\ndef total(xs):\n    return sum(xs)\n```",
    "Sure:\n```\ndef total(xs):\n    return sum(xs)\n```\nIt adds.",
    "def total(xs):\n    return sum(xs)\n",
]
ENDS = ["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>", "</s>\n"]


def humaneval_ignores_what_follows_the_turn(solution: str, end: str, tail: str) -> None:
    expected = extract_program(PROMPT, solution, "total")
    assert extract_program(PROMPT, solution + end + tail, "total") == expected


def gsm8k_ignores_what_stands_before(before: str, cents: int, form: str) -> None:
    text = form.format(written(cents))
    assume("#" not in before)
    assert gsm8k.extract_answer(before + "\n\n" + text) == plain(cents)


def math_ignores_what_stands_before(before: str, inner: int, finish: str) -> None:
    text = before + rf"\boxed{{x_{{{inner}}}}}"
    assert math_grader.extract_answer(text, finish) == f"x_{{{inner}}}"


def humaneval_ignores_prose_before_a_block(before: str, solution: str) -> None:
    fenced = f"```python\ndef total(xs):\n{solution}```"
    expected = extract_program(PROMPT, fenced, "total")
    assert extract_program(PROMPT, f"{before}\n{fenced}", "total") == expected


def humaneval_ignores_reasoning_before(before: str, solution: str) -> None:
    assume("</think>" not in before)
    expected = extract_program(PROMPT, solution, "total")
    text = f"<think>{before}</think>{solution}"
    assert extract_program(PROMPT, text, "total") == expected


words = st.text("abcdefgh .,:;!?'()=+-0123456789", max_size=30).filter(lambda line: line.strip())
prose = st.lists(words.map(str.strip), min_size=1, max_size=8).map("\n".join)
bodies = st.sampled_from([s + "\n" for s in ("    return sum(xs)", "    s = 0\n    return s")])
forms = st.sampled_from(["#### {}", "So it is\n#### {}", "The answer is {}", "He has {} nuts."])
Property = tuple[Callable[..., None], list[st.SearchStrategy[Any]], int]
PROPERTIES: dict[str, Property] = {
    check.__name__: (check, strategies, examples)
    for check, strategies, examples in [
        (gsm8k_never_raises, [texts, finishes], 400),
        (math_never_raises, [texts, finishes], 400),
        (humaneval_never_raises, [texts], 200),
        (exact_never_raises, [texts, finishes], 200),
        (gsm8k_ends_fast, [long_texts, finishes], 20),
        (math_ends_fast, [long_texts, finishes], 40),
        (math_normalizes_fast, [half_as_long], 100),
        (math_grades_any_answer, [texts, st.sampled_from(ANSWERS) | texts], 100),
        (humaneval_ends_fast, [long_texts | half_as_long], 40),
        (gsm8k_ignores_what_follows_the_answer, [cents, tails, finishes], 300),
        (math_ignores_what_follows_the_last_box, [st.integers(), tails, finishes], 300),
        (
            humaneval_ignores_what_follows_the_turn,
            [st.sampled_from(SOLUTIONS), st.sampled_from(ENDS), tails],
            200,
        ),
        (gsm8k_ignores_what_stands_before, [heads, cents, forms], 300),
        (math_ignores_what_stands_before, [heads, st.integers(), finishes], 300),
        (humaneval_ignores_prose_before_a_block, [prose, bodies], 200),
        (humaneval_ignores_reasoning_before, [texts, st.sampled_from(SOLUTIONS)], 200),
    ]
}
SOAK = 20  # times the examples of the suite


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("times", [1, pytest.param(SOAK, marks=pytest.mark.soak)])
def test_property(name: str, times: int) -> None:
    check, strategies, examples = PROPERTIES[name]
    search(check, strategies, examples, times)
