"""The embedded GSM-style set and the GSM exemplars: right, varied, apart from each other."""

import json
import math
import re
from collections import Counter
from fractions import Fraction
from importlib import resources

import pytest

from river_llm.tasks import TaskSettings
from river_llm.tasks.gsm_mini import GsmMini

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
EQUATION = re.compile(rf"({NUMBER}(?: [-+*/] {NUMBER})+) = ({NUMBER})")


def read(filename: str) -> list[dict[str, str]]:
    text = (resources.files("river_llm.tasks") / "data" / filename).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def fraction(number: str) -> Fraction:
    return Fraction(number.replace(",", ""))


def value(expression: str) -> Fraction:
    """Value of numbers joined by + - * /, worked out from left to right in two ranks."""
    first, *rest = expression.split(" ")
    terms = [fraction(first)]
    for operator, number in zip(rest[::2], rest[1::2], strict=True):
        match operator:
            case "+":
                terms.append(fraction(number))
            case "-":
                terms.append(-fraction(number))
            case "*":
                terms[-1] *= fraction(number)
            case "/":
                terms[-1] /= fraction(number)
    return sum(terms, Fraction(0))


def wrong_equations(solution: str) -> list[str]:
    return [
        match.group()
        for match in EQUATION.finditer(solution)
        if value(match.group(1)) != fraction(match.group(2))
    ]


PROBLEMS = read("gsm_mini.jsonl")
EXEMPLARS = read("gsm_exemplars.jsonl")
ALL = [
    pytest.param(row, id=row.get("id", f"exemplar {i}"))
    for i, row in enumerate(PROBLEMS + EXEMPLARS)
]

# Every gold answer once more, by another way than the worked solution's.
GOLD: list[int | float | Fraction] = [
    7 * (3 + 2), len(range(9, 23)), (9 * 60 + 40 + 85 + 35) - 9 * 60, 28,
    round(240 * 0.85) - 18, 96 * (1 - 3 / 8) * 3 / 4, 32, 2 * 10 + 2 * 5, 187 % 12,
    4 * 1500 // 250, 30 * Fraction(9, 6) - 30 * Fraction(13, 10), 5 - (9 + 4),
    36 * 450 + 2800, Fraction(114 - 23 + 15, 10), 14 + (0 + 5 - 3 + 2),
    next(t for t in range(1, 99) if 18 * t + 12 * t >= 3 * 150), Fraction(18 * 120 + 14 * 90, 60),
    Fraction(80 * 85, 100) + 6, 24 * Fraction(5 - 3, 8), 7 * 4 + 10 + 10,
    next(n for n in range(99) if (n - 9 + 5) == 2 * 11),
    next(w for w in range(99) if 35 + 12 * w >= 131), -(-(143 + 9) // 44),
    Fraction(2 * 450 * 7 * 2, 100), next(w for w in range(99) if 2 * (w + w + 15) == 130),
    60 * 40 * 30 // 10**3, Fraction(60 * 60, 100) + 9, (5 * 16 - 8) * 2 - 28,
    Fraction(8, 3) * (26 - 2), 5 * 2**6, Fraction(5000 - 4 * 235 - 3 * 120, 100),
    Fraction(5850, 300) + 2, Fraction(4 * 60 * 36, 24),
    next(2 * a + 4 for a in range(99) if a + 2 * a + (2 * a + 4) == 84), 41 * 16 + 6 * 8,
    420 * (1 - Fraction(2, 3) * Fraction(3, 5)), -(-(3000 // 300 * (2400 // 300)) // 12),
    math.lcm(12, 18), 7 * len(range(0, 61, 4)),
    next(t for t in range(99) if 12 * t == 63 - 9 * t), 500 * Fraction(108, 100) - 500,
    312 - 24 * 5 - 36 * 2, Fraction(750 * (10 - 4), 4), 40 + 185 - 310,
    sum(range(14, 14 + 5 * 3, 3)), 15 + 20 + 70 + 60, Fraction(6 * 9 * 15, 100),
    17 + 15 + 3 - 28, 3 + 2 * (-(-(13 * 60 - 495) // 60) - 1), Fraction(480 * 4 * 3, 6),
]  # fmt: skip


def test_gold_answers_agree_with_a_second_computation() -> None:
    samples = build_mini().samples()
    wrong = [
        (sample.id, sample.gold, gold)
        for sample, gold in zip(samples, GOLD, strict=True)
        if Fraction(sample.gold) != gold
    ]
    assert wrong == []


def test_second_computation_of_the_age_and_pump_problems() -> None:
    """The two golds that the table above gives as bare numbers."""
    ages = [(4 * j, j) for j in range(1, 40) if (4 * j + 6) + (j + 6) == 52]
    assert ages == [(GOLD[6], 8)]
    assert 45 * GOLD[3] == 1260


@pytest.mark.parametrize("row", ALL)
def test_every_equation_of_a_solution_holds(row: dict[str, str]) -> None:
    solution = row["answer"]
    equations = EQUATION.findall(solution)
    assert wrong_equations(solution) == []
    # None escapes the pattern, and the last one gives the answer.
    assert len(equations) == solution.count("=") >= 1
    body, _, gold = solution.partition("\n#### ")
    assert fraction(equations[-1][1]) == fraction(gold)
    assert not re.search(r"[+*/]", EQUATION.sub("", body))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("It is 2 + 3 * 4 = 14 and 20 / 8 = 2.5.", []),
        ("It is 5 - 9 = -4, then -4 - 4 = -8.", []),
        ("It is 1,200 - 0.5 = 1,199.5 so", []),
        ("It is 7 * 8 = 54 and 10 / 4 = 2.", ["7 * 8 = 54", "10 / 4 = 2"]),
        ("It is 2 + 3 * 4 = 20.", ["2 + 3 * 4 = 20"]),
    ],
)
def test_equation_checker_finds_wrong_equations(text: str, wrong: list[str]) -> None:
    assert wrong_equations(text) == wrong


@pytest.mark.parametrize("row", ALL)
def test_solutions_have_the_form_that_is_asked_for(row: dict[str, str]) -> None:
    assert re.fullmatch(rf"([^\n#]+\n)+#### {NUMBER}", row["answer"])
    assert "\n" not in row["question"]


def test_set_is_large_unique_and_varied() -> None:
    assert len(PROBLEMS) >= 44
    assert {row["id"] for row in PROBLEMS} == {
        f"gsm_mini/{i:02d}" for i in range(1, len(PROBLEMS) + 1)
    }
    assert len({row["question"] for row in PROBLEMS}) == len(PROBLEMS)
    golds = [sample.gold for sample in build_mini().samples()]
    assert sum(float(gold) < 0 for gold in golds) in (1, 2)
    assert 2 <= sum("." in gold for gold in golds) <= 6
    assert max(Counter(golds).values()) <= 3
    steps = Counter(len(EQUATION.findall(row["answer"])) for row in PROBLEMS)
    assert set(range(1, 6)) <= set(steps)


def test_thousands_commas_are_gone_from_gold_answers() -> None:
    written = [row["answer"].rpartition("#### ")[2] for row in PROBLEMS]
    golds = [sample.gold for sample in build_mini().samples()]
    assert [w for w in written if "," in w] == ["19,000", "1,125"]
    assert [g for w, g in zip(written, golds, strict=True) if "," in w] == ["19000", "1125"]


def test_exemplars_share_no_run_of_words_with_the_set() -> None:
    def runs(rows: list[dict[str, str]]) -> set[tuple[str, ...]]:
        found = set()
        for row in rows:
            words = re.findall(r"[a-z0-9]+", row["question"].lower())
            found |= {tuple(words[i : i + 7]) for i in range(len(words) - 6)}
        return found

    assert len(EXEMPLARS) == 8
    assert runs(EXEMPLARS) & runs(PROBLEMS) == set()


def test_set_is_never_called_gsm8k() -> None:
    task = build_mini()
    assert (task.name, task.label) == ("gsm_mini", "gsm_mini (own)")
    assert all("gsm8k" not in sample.id.lower() for sample in task.samples())


def build_mini() -> GsmMini:
    return GsmMini(TaskSettings())
