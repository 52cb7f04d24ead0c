"""The embedded MATH-style set: right, varied, apart from the exemplars."""

import json
import re
from collections import Counter
from decimal import Decimal
from importlib import resources
from itertools import combinations
from math import factorial
from typing import Any

import pytest
import sympy
from latex2sympy2_extended import latex2sympy
from sympy import I, Matrix, Rational, S, Symbol, latex, oo, pi, sin, sqrt
from sympy.calculus.util import continuous_domain

from river_llm.errors import UserError
from river_llm.tasks import Sample, Task, TaskSettings
from river_llm.tasks.math_mini import MathMini

SUBJECTS = {
    "Algebra", "Counting & Probability", "Geometry", "Number Theory", "Intermediate Algebra",
    "Prealgebra", "Precalculus",
}  # fmt: skip


def read(filename: str) -> list[dict[str, Any]]:
    text = (resources.files("river_llm.tasks") / "data" / filename).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


PROBLEMS = read("math_mini.jsonl")
EACH = pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in PROBLEMS])

x, y, a, t, n = (Symbol(name, real=True) for name in "xyatn")


def roots(equation: sympy.Expr, of: Symbol) -> list[sympy.Expr]:
    return sorted(sympy.solve(equation, of), key=lambda root: root.evalf())


def listed(values: list[Any]) -> str:
    return ", ".join(latex(value) for value in values)


def column(vector: Matrix) -> str:
    rows = [" & ".join(str(vector[i, j]) for j in range(vector.cols)) for i in range(vector.rows)]
    return r"\begin{pmatrix} " + r" \\ ".join(rows) + r" \end{pmatrix}"


def jury() -> int:
    people = [("baker", i) for i in range(6)] + [("miller", i) for i in range(5)]
    return sum(len({trade for trade, _ in four}) == 2 for four in combinations(people, 4))


def even_sums() -> Rational:
    pairs = list(combinations(range(1, 10), 2))
    return Rational(sum(sum(pair) % 2 == 0 for pair in pairs), len(pairs))


def base_6(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 6)
        digits = f"{digit}{digits}"
    return digits


def largest_choice() -> str:
    values = {
        "A": Rational(5, 8),
        "B": Rational(7, 11),
        "C": Rational(12, 19),
        "D": Rational(17, 27),
    }
    return max(values, key=lambda letter: values[letter])


def mixed(value: Rational) -> str:
    whole = int(value)
    return f"{whole}{latex(value - whole)}"


def distance_from_corner() -> sympy.Expr:
    return sympy.Point(0, 0).distance(sympy.Line((5, 0), (0, 7)))


def triangle_area() -> sympy.Expr:
    s = Rational(6 + 6 + 4, 2)  # Heron
    return sqrt(s * (s - 6) * (s - 6) * (s - 4))


def cone_volume() -> sympy.Expr:
    h = Symbol("h", positive=True)
    height = sympy.solve(h**2 + 9 - 25, h)[0]
    return sympy.integrate(pi * (3 * h / height) ** 2, (h, 0, height))


def inverse() -> sympy.Expr:
    (back,) = sympy.solve((2 * y + 1) / (y - 3) - x, y)
    return sympy.cancel(back)


def angles() -> list[sympy.Expr]:
    steps = [pi * Rational(k, 24) for k in range(48)]
    return [angle for angle in steps if sympy.simplify(2 * sin(angle) ** 2 + sin(angle) - 1) == 0]


def parity() -> str:
    def g(value: Rational) -> Rational:
        return value**3 - 1 / value

    value = Rational(3, 7)
    return {g(value): "even", -g(value): "odd"}.get(g(-value), "neither")


def weekday_after(start: str, days: int) -> str:
    week = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    return week[(week.index(start) + days) % 7]


POINT = sympy.solve([3 * x + 2 * y - 4, x - y - 3], [x, y])
QUOTIENT = sympy.expand_complex((2 + 3 * I) / (1 - I))

# Every gold answer once more, worked out by a computation and spelt as its problem asks.
GOLD: list[str] = [
    latex(sympy.solve(4 * x - 7 - (3 * x + 12), x)[0]),
    latex(Rational(-1 - 5, 6 - (-2))),
    f"({listed(roots((2 * x - 3) ** 2 - 49, x))})",
    listed(roots(y**2 - 4 * y - 7, y)),
    latex(sympy.expand((3 * a - 2) * (a + 4) - a**2)),
    f"({POINT[x]}, {POINT[y]})",
    rf"{100 - 100 * Rational(120, 100) * Rational(75, 100)}\%",
    rf"{40 * 25 * 18 * Rational(2, 3) / 1000} \text{{ liters}}",
    rf"\text{{({largest_choice()})}}",
    rf"\text{{{weekday_after('Tuesday', 100)}}}",
    str(jury()),
    latex(even_sums()),
    f"{factorial(10) // (factorial(3) * 2 * 2):,}".replace(",", r",\!"),
    mixed(Rational(sum(k if k % 2 == 0 else -1 for k in range(1, 7)), 6)),
    latex(distance_from_corner()),
    latex(sympy.simplify(pi * (t**2 + 5**2) - pi * t**2)),
    rf"{Rational(360 * 6, 2 + 3 + 4 + 6)}^\circ",
    rf"{latex(cone_volume())} \text{{ cm}}^3",
    latex(triangle_area()),
    str(pow(3, 52, 11)),
    str(sum(720 % (k * k) == 0 for k in range(1, 27))),
    f"{base_6(94)}_6",
    ", ".join(f"({p}, {q})" for p in range(1, 99) for q in range(1, p) if p * p - q * q == 21),
    str(next(k for k in range(999) if (k % 5, k % 7, k % 9) == (2, 3, 4))),
    f"{latex(sympy.re(QUOTIENT))} + {latex(sympy.im(QUOTIENT))}i",
    latex(continuous_domain(sqrt(6 - x) / (x - 1), x, S.Reals)),
    latex(sympy.summation(9 * Rational(-2, 3) ** n, (n, 0, oo))),
    latex(sympy.rem(x**4 - 2 * x + 3, x**2 + 1)),
    latex(inverse()),
    r"\{" + listed(roots(t**4 - 13 * t**2 + 36, t)) + r"\}",
    "x = " + listed([k for k in range(7, 99) if k * (k - 6) == 2**4]),
    str((Decimal("2.4") * Decimal("0.35")).normalize()),
    rf"{(11 * 60 + 5) - (8 * 60 + 47)} \text{{ minutes}}",
    latex(Rational(3, 4) / 12 * 30),
    rf"\${148 * Rational(25, 2) + 30 * 8}",
    latex(sympy.together(sympy.sqrtdenest(sin(pi * Rational(75, 180))))),
    column(Matrix([1, 2, -1]).cross(Matrix([3, 0, 4]))),
    column(Matrix([[3, 5], [1, 2]]).inv()),
    rf"\left( {abs(-1 + sqrt(3) * I)}, {latex(sympy.arg(-1 + sqrt(3) * I))} \right)",
    listed(angles()),
    rf"\text{{{parity()}}}",
]  # fmt: skip


def spelling(tex: str) -> str:
    """TeX without blanks, sizes of brackets and braces around one digit of an exponent."""
    return re.sub(r"\^\{(\d)\}", r"^\1", re.sub(r"\s|\\left|\\right", "", tex))


def make(**changes: Any) -> Task:
    return MathMini(TaskSettings(**changes))


SAMPLES = {sample.id: sample for sample in make().samples()}


def graded(sample: Sample, completion: str) -> bool | None:
    return make().grade(sample, completion, "eos").correct


def test_gold_answers_agree_with_a_second_computation() -> None:
    wrong = [
        (row["id"], row["answer"], gold)
        for row, gold in zip(PROBLEMS, GOLD, strict=True)
        if spelling(row["answer"]) != spelling(gold)
    ]
    assert wrong == []


def test_second_computation_of_the_logarithm_finds_no_other_solution() -> None:
    """The one gold above that is found among whole numbers alone."""
    (found,) = sympy.solve(sympy.log(x, 2) + sympy.log(x - 6, 2) - 4, x)
    assert found == 8


def wrong_equations(solution: str) -> tuple[int, list[str]]:
    """How many equations of numbers a solution holds, and which of them are wrong."""
    formulas = re.findall(r"(?<!\\)\$((?:[^$\\]|\\.)*)(?<!\\)\$", solution)
    numeric = [
        formula
        for formula in formulas
        if "=" in formula and not re.search("[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", formula))
    ]
    wrong = []
    for formula in numeric:
        first, *others = [latex2sympy(side) for side in formula.split("=")]
        if any(abs((first - other).evalf()) > 1e-9 for other in others):
            wrong.append(formula)
    return len(numeric), wrong


@EACH
def test_equations_of_numbers_in_a_solution_hold(row: dict[str, Any]) -> None:
    assert wrong_equations(row["solution"])[1] == []


def test_equation_checker_reads_equations_and_finds_wrong_ones() -> None:
    counts = [wrong_equations(row["solution"])[0] for row in PROBLEMS]
    assert sum(counts) >= 50
    text = r"$\frac{1}{2} + \binom{4}{2} = 6.5 = 7$, $2 \cdot 3 = 6$, $x = 3$ and $\sqrt{8} = 3$"
    assert wrong_equations(text) == (3, [r"\frac{1}{2} + \binom{4}{2} = 6.5 = 7", r"\sqrt{8} = 3"])


@EACH
def test_worked_solution_is_right_and_ends_in_its_one_box(row: dict[str, Any]) -> None:
    sample, solution = SAMPLES[row["id"]], row["solution"]
    assert solution.count(r"\boxed{") == 1
    box = rf"\boxed{{{row['answer']}}}"
    assert re.search(re.escape(box) + r"\$\.?( strings\.)?\Z", solution)
    assert sample.gold == row["answer"]
    assert graded(sample, solution) is True


def changed(answer: str) -> list[str]:
    """The answer with each of its digits changed, or with another word."""
    # A digit behind a unit is part of the unit.
    digits = [i for i, c in enumerate(answer.partition(r" \text")[0]) if c.isdigit()]
    if not digits:
        return [
            {r"\text{(B)}": r"\text{(D)}", r"\text{Thursday}": r"\text{Tuesday}"}.get(
                answer, "even"
            )
        ]
    return [answer[:i] + str((int(answer[i]) + 1) % 10) + answer[i + 1 :] for i in digits]


@EACH
def test_changed_answer_is_wrong(row: dict[str, Any]) -> None:
    box = rf"\boxed{{{row['answer']}}}"
    for other in changed(row["answer"]):
        completion = row["solution"].replace(box, rf"\boxed{{{other}}}")
        assert completion != row["solution"]
        assert graded(SAMPLES[row["id"]], completion) is False, other


def test_set_is_large_unique_and_varied() -> None:
    assert len(PROBLEMS) >= 30
    assert [row["id"] for row in PROBLEMS] == [
        f"math_mini/{i:02d}" for i in range(1, len(PROBLEMS) + 1)
    ]
    assert len({row["problem"] for row in PROBLEMS}) == len(PROBLEMS)
    subjects = Counter(row["subject"] for row in PROBLEMS)
    assert set(subjects) == SUBJECTS
    assert min(subjects.values()) >= 4
    levels = Counter(row["level"] for row in PROBLEMS)
    assert set(levels) == {1, 2, 3, 4, 5}
    assert min(levels.values()) >= 3
    assert max(Counter(row["answer"] for row in PROBLEMS).values()) == 1


@pytest.mark.parametrize(
    "form",
    [
        r"\d+", r"-?\\frac.*", r".*\\sqrt.*", r"\(-?\d+, -?\d+\)", r".*\\cup.*", r".*\\%",
        r".*\\circ", r".*\\text\{ \w+\}.*", r"\\text\{\w+\}", r"\\\$\d+", r"\d\\frac.*",
        r"\d+\.\d+", r".*\\!.*", r"\\\{.*", r".*pmatrix.*", r"\d+_\d", r".*i", r".*\\pi.*",
        r"x = .*", r".*x.*", r".*, .*, .*",
    ],
)  # fmt: skip
def test_answers_are_of_many_kinds(form: str) -> None:
    assert any(re.fullmatch(form, row["answer"]) for row in PROBLEMS)


def test_exemplars_share_no_run_of_words_with_the_set() -> None:
    def runs(filename: str) -> set[tuple[str, ...]]:
        found = set()
        for row in read(filename):
            words = re.findall(r"[a-z0-9]+", row["problem"].lower())
            found |= {tuple(words[i : i + 7]) for i in range(len(words) - 6)}
        return found

    assert len(runs("math_mini.jsonl")) > 400
    assert runs("math_exemplars.jsonl") & runs("math_mini.jsonl") == set()


def test_set_is_never_called_math() -> None:
    task = make(fewshot=4)
    assert (task.name, task.label) == ("math_mini", "math_mini (own)")
    assert task.text(task.samples(1)[0]).count("\n\nProblem:") == 4


def test_set_is_embedded_and_reads_no_file() -> None:
    with pytest.raises(UserError, match=r"data\.path='x\.jsonl'.*exp=math "):
        make(data_path="x.jsonl")
