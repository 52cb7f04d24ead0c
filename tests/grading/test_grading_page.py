"""Every row of every table of docs/grading.md holds."""

import re
from pathlib import Path

import pytest

from river_llm.grading import exact, gsm8k
from river_llm.grading import math as math_grader
from river_llm.grading.humaneval import extract_program
from river_llm.grading.sandbox import run_program

PAGE = (Path(__file__).parents[2] / "docs" / "grading.md").read_text(encoding="utf-8")
GSM8K = ("rule", "completion", "finish", "strict", "flexible")
NUMBERS = ("rule", "answer", "gold number", "equal")
BOXES = ("rule", "completion", "finish", "boxed")
MATH = ("rule", "answer", "gold", "equal")
BASES = ("rule", "answer", "gold", "question", "equal")
HUMANEVAL = ("rule", "completion", "status")
EXACT = ("rule", "completion", "finish", "gold", "right")
METRICS = ("metric", "result")

Row = dict[str, str]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def read_tables(page: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows of each table by its header; a cell in backticks is what stands between them."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        head, line, *body = block.splitlines()
        assert re.fullmatch(r"[|\s-]+", line)
        header = tuple(cells(head))
        assert header not in found
        found[header] = []
        for text in body:
            row = dict(zip(header, cells(text), strict=True))
            for key in header[1:]:
                code = re.fullmatch(r"`(.*)`", row[key])
                row[key] = code[1].replace(r"\|", "|") if code else row[key]
            found[header].append(row)
    return found


TABLES = read_tables(PAGE)


def each(header: tuple[str, ...]) -> list[object]:
    return [pytest.param(row, id=row["rule"]) for row in TABLES[header]]


def lines(text: str) -> str:
    return text.replace(r"\n", "\n").replace("~~~", "```")


def verdict(row: Row) -> bool:
    return {"yes": True, "no": False}[row["equal"]]


def test_page_has_these_tables_and_many_rows() -> None:
    assert set(TABLES) == {GSM8K, NUMBERS, BOXES, MATH, BASES, HUMANEVAL, EXACT, METRICS}
    assert len(TABLES[GSM8K]) >= 15
    assert len(TABLES[MATH]) >= 70
    assert sum(not verdict(row) for row in TABLES[MATH]) >= 25
    assert min(len(rows) for header, rows in TABLES.items() if header != METRICS) >= 4


@pytest.mark.parametrize("row", each(GSM8K))
def test_gsm8k(row: Row) -> None:
    completion = lines(row["completion"])
    found = (
        gsm8k.extract_strict(completion, row["finish"]),
        gsm8k.extract_answer(completion, row["finish"]),
    )
    assert tuple(value or "none" for value in found) == (row["strict"], row["flexible"])


@pytest.mark.parametrize("row", each(NUMBERS))
def test_numbers(row: Row) -> None:
    assert gsm8k.answers_equal(row["answer"], row["gold number"]) is verdict(row)


@pytest.mark.parametrize("row", each(BOXES))
def test_boxes(row: Row) -> None:
    found = math_grader.extract_answer(row["completion"], row["finish"])
    assert (found or "none") == row["boxed"]


@pytest.mark.parametrize("row", each(MATH))
def test_math(row: Row) -> None:
    assert math_grader.answers_equal(row["answer"], row["gold"]) is verdict(row)
    assert math_grader.answers_equal(row["gold"], row["answer"]) is verdict(row)


@pytest.mark.parametrize("row", each(BASES))
def test_bases(row: Row) -> None:
    equal = math_grader.answers_equal(row["answer"], row["gold"], question=row["question"])
    assert equal is verdict(row)


@pytest.mark.parametrize("row", each(HUMANEVAL))
def test_humaneval(row: Row) -> None:
    (prompt,) = re.findall(r"^```python\n(import math\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    tests = "def check(candidate):\n    assert candidate(3) == 6 and candidate(0) == 0\n"
    program = extract_program(prompt, lines(row["completion"]), "double")
    limit = 5.0 if row["status"] != "timeout" else 1.0
    assert run_program(program, tests, "double", limit, level="process").status == row["status"]


@pytest.mark.parametrize("row", each(EXACT))
def test_exact(row: Row) -> None:
    found = exact.extract_answer(lines(row["completion"]), row["finish"])
    assert exact.answers_equal(found, row["gold"]) is {"yes": True, "no": False}[row["right"]]


def test_example_of_the_metrics_runs() -> None:
    (code,) = re.findall(r"^```python\n(from river_llm.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    code = code.replace("allow_code_execution=True", 'allow_code_execution=True, sandbox="process"')
    shown = re.sub(r"^(\w+\(\)\.compute)", r"results += [\1", code, flags=re.MULTILINE)
    shown = re.sub(r"\)$(?=\n(?:results|\Z))", ")]", shown, flags=re.MULTILINE)
    scope: dict[str, list[dict[str, float]]] = {"results": []}
    exec(shown, scope)
    gsm, math, humaneval = scope["results"]
    assert (gsm["accuracy"], math["accuracy"]) == (1.0, 1.0)
    assert (humaneval["pass@1"], humaneval["pass@2"]) == (0.5, 1.0)


def test_a_wrong_row_would_be_found() -> None:
    head = "| rule | answer | gold | equal |\n| --- | --- | --- | --- |\n"
    table = head + "| r | `a \\| 2` | `3` | no |\n"
    (row,) = read_tables(table)[MATH]
    assert row == {"rule": "r", "answer": "a | 2", "gold": "3", "equal": "no"}
    assert math_grader.answers_equal("3", row["gold"]) is not verdict(row)
