"""The MATH grader on tables of cases; expectations are worked out by hand."""

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from river_llm.errors import UserError
from river_llm.grading import math as math_grader
from river_llm.grading import math_guard, math_process
from river_llm.grading.math import answers_equal, extract_answer, grade


@pytest.mark.parametrize(
    "answer",
    [
        r"\left( 7, \frac{\pi}{5} \right)",
        r"\left[2, 5\right)",
        r"\begin{pmatrix} 4 & 1/3 \\ 0 & 2 \end{pmatrix}",
        r"x \bowtie \weird{{",
        "))((",
        r"\text{Thursday}",
        "7" * 5000,
    ],
)
def test_identical_answers_are_equal_whatever_the_parser_says(answer: str) -> None:
    assert answers_equal(answer, answer)
    assert answers_equal(f" {answer}\n", answer)


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        (r"\left(\frac14,\infty\right]", r"(\frac{1}{4}, \infty]"),
        (r"(2,9]", r"\left( 2, \dfrac{18}{2} \right]"),
        (r"\begin{bmatrix}1\\0.5\end{bmatrix}", r"\begin{pmatrix} 1 \\ \frac{1}{2} \end{pmatrix}"),
        (r"7 \text{ ft}", "7"),
        ("7 ft", "7"),
        (r"(-\infty,7)", r"\left(-\infty,7\right)"),
        (r"\infty", r"+\infty"),
        ("7 square inches", r"7 \mbox{ in}^2"),
        (r"\frac{7}2\text{ degrees}", r"3.5^\circ"),
    ],
)
def test_brackets_and_units_do_not_break_each_other(prediction: str, gold: str) -> None:
    assert answers_equal(prediction, gold)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"so \boxed{\frac{1}{2}} holds", r"\frac{1}{2}"),
        (r"\boxed{\frac{1}{\sqrt{\frac{2}{3}}}}.", r"\frac{1}{\sqrt{\frac{2}{3}}}"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed 5", "5"),
        (r"$\boxed 5$ apples {x}", "5"),
        (r"$\boxed \frac{1}{2}$ of {it}", r"\frac{1}{2}"),
        (r"\boxed 5. {x}", "5"),
        (r"\boxed{\left\{1,2\right.}", r"\left\{1,2\right."),
        (r"first \boxed{3}, no: {wait} \boxed{4} {done}", "4"),
        (r"\boxed{\text{a } \fbox{8}}", "8"),
        ("no box", None),
        (r"\boxedness{7}", None),
    ],
)
def test_box_is_read_by_counting_braces_and_the_last_one_wins(
    completion: str, answer: str | None
) -> None:
    assert extract_answer(completion) == answer


def test_boxes_that_agree_up_to_the_first_brace_differ() -> None:
    assert not grade(r"\boxed{\frac{1}{2}}", r"\frac{1}{3}")
    assert grade(r"\boxed{\frac{1}{3}}", r"\frac{1}{3}")


def test_withdrawn_first_box_does_not_win() -> None:
    text = r"I get \boxed{3}. Wait, {that} is wrong. It is \boxed{4}."
    assert not grade(text, "3")
    assert grade(text, "4")


@pytest.mark.parametrize(
    "last", [r"\boxed{}", r"\boxed{ }", r"\boxed{4", r"\boxed", r"\boxed{\frac{1}{2}"]
)
def test_empty_or_unfinished_last_box_gives_no_credit_to_an_earlier_one(last: str) -> None:
    text = rf"It is \boxed{{4}}. Once more: {last}"
    assert extract_answer(text) is None
    assert not grade(text, "4")


@pytest.mark.parametrize(
    ("prediction", "gold", "equal"),
    [
        (r"1\frac{4}{5}", r"\frac{9}{5}", True),
        (r"1\frac{4}{5}", "1.8", True),
        ("1 4/5", "9/5", True),
        (r"-1\frac12", "-1.5", True),
        (r"1\frac{4}{5}", r"\frac{4}{5}", False),
        (r"1 4/5", r"\frac{14}{5}", False),
        (r"2\frac{1}{3}\pi", r"\frac{7\pi}{3}", True),
        (r"2\frac{1}{3}\pi", r"\frac{2\pi}{3}", False),
        (r"3\frac{x}{2}", r"\frac{3x}{2}", True),
        (r"(1\frac{1}{2}, 2)", "(1.5, 2)", True),
    ],
)
def test_mixed_number_is_a_sum(prediction: str, gold: str, equal: bool) -> None:
    assert answers_equal(prediction, gold) is equal


@pytest.mark.parametrize(
    ("prediction", "gold", "equal"),
    [
        ("6,-3,1", "-3,1,6", True),
        ("6 and -3", "-3, 6", True),
        (r"x = 6 \text{ or } x = -3", "-3, 6", True),
        ("6,6,1", "6,1", False),
        ("6,6,1", "6,1,1", False),
        ("6,1", "6,1,2", False),
        (r"\{6, 1\}", "1, 6", True),
        (r"\{6, 1\}", r"\{1, 6\}", True),
        ("(1,6)", "(6,1)", False),
        ("(1,6)", "1,6", True),
        ("(6,1)", "1,6", False),
        ("(1,6)", r"\{1,6\}", False),
        ("[1,6]", "(1,6)", False),
        ("[1,6)", "[1,6]", False),
        ("2-\\sqrt{3}, 2+\\sqrt3", r"2 \pm \sqrt{3}", True),
        ("2-\\sqrt{3}", r"2 \pm \sqrt{3}", False),
        (r"(4,9)\cup(0,4)", r"(0,4) \cup (4,9)", True),
        (r"(0,4]\cup(4,9)", r"(0,4) \cup (4,9)", False),
        ("100,200", "200, 100", True),
        ("58,500", "58500", True),
        (r"58{,}500", "58500", True),
        (r"58,\!500", "58500", True),
        ("1,2,3", "123", False),
        ("x>5", r"(5,\infty)", True),
        (r"[-4,7]", r"x \in [-4,7]", True),
    ],
)
def test_order_counts_in_tuples_and_not_in_lists(prediction: str, gold: str, equal: bool) -> None:
    assert answers_equal(prediction, gold) is equal


@pytest.mark.parametrize(
    ("prediction", "question", "equal"),
    [
        ("253", "Write the sum in base $6$.", True),
        ("253", "Write the sum in base six.", True),
        ("253", "Write the sum in base 7.", False),
        ("253", None, False),
        ("253_6", None, True),
        ("253_{6}", None, True),
        ("253_7", "Write the sum in base 6.", False),
        ("254", "Write the sum in base 6.", False),
        ("105", "Write the sum in base 6.", False),  # its value in base ten
    ],
)
def test_missing_base_suffix_needs_a_base_in_the_question(
    prediction: str, question: str | None, equal: bool
) -> None:
    assert answers_equal(prediction, "253_6", question=question) is equal
    assert answers_equal("253_6", prediction, question=question) is equal


@pytest.mark.parametrize(
    ("prediction", "gold", "equal"),
    [
        (r"45\%", "45", True),
        ("45%", r"45\%", True),
        ("45 percent", "45", True),
        (r"45\%", "0.45", False),
        (r"3.5\%", r"3.5\%", True),
        (r"\$1,250.50", "1250.5", True),
        ("1250.5 dollars", r"\$1250.50", True),
    ],
)
def test_percent_and_currency_signs_are_dropped(prediction: str, gold: str, equal: bool) -> None:
    assert answers_equal(prediction, gold) is equal


@pytest.mark.parametrize(
    ("prediction", "gold", "equal"),
    [
        (r"\frac{1}{2^{61}}", r"\frac{1}{2^{60}}", False),
        (r"\frac{2}{2^{61}}", r"\frac{1}{2^{60}}", True),
        (r"\frac{1}{2^{61}}", "0", False),
        ("0.0000001", "0.0000002", False),
        (r"3 \times 10^{-9}", "0.000000004", False),
        (r"3 \times 10^{-9}", "0.000000003", True),
        ("e^{-40}", "e^{-41}", False),
        (r"\frac{x}{2^{61}}", r"\frac{x}{2^{60}}", False),
        (r"x + 10^{-30}", "x", False),
        (r"\sqrt{10^{40}+1}", "10^{20}", False),
        ("2^{90}+1", "2^{90}", False),
        (
            r"\begin{pmatrix} 2^{-61} \\ 1 \end{pmatrix}",
            r"\begin{pmatrix} 2^{-60} \\ 1 \end{pmatrix}",
            False,
        ),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}", True),
        ("0.333333", r"\frac{1}{3}", True),
        ("1.414", r"\sqrt{2}", False),
        ("0.30", "0.3", True),
        ("0.3000001", "0.3", False),
    ],
)
def test_numbers_are_equal_relative_to_their_size(prediction: str, gold: str, equal: bool) -> None:
    assert answers_equal(prediction, gold) is equal
    assert answers_equal(gold, prediction) is equal


@pytest.mark.parametrize(
    ("prediction", "gold", "equal"),
    [
        (r"\text{(C)}", "C", True),
        ("(C)", r"\text{(C)}", True),
        ("B", r"\text{(C)}", False),
        ("thursday", r"\text{Thursday}", True),
        ("no", r"\text{on}", False),  # as products of letters they would be equal
        ("2t", "2", False),
        ("2\\text{ cups}", "2", True),
        ("(b+2)(a+5)", "(a+5)(b+2)", True),
        ("9i+6", "6 + 9i", True),
        (r"\frac{\sqrt3}{3}", r"\frac{1}{\sqrt{3}}", True),
        ("3*pi", r"3\pi", True),
        ("sqrt(7)/2", r"\frac{\sqrt{7}}{2}", True),
        ("x^2+x**10", "x^{10} + x^{2}", True),
        ("y = 3x + 1", "3x+1", True),
        ("x = 5", "5", True),
        ("x = 5", "y = 5", False),
        ("x", "y", False),
        ("", "", False),
        (r"\text{}", "5", False),
    ],
)
def test_expressions_and_words(prediction: str, gold: str, equal: bool) -> None:
    assert answers_equal(prediction, gold) is equal


@pytest.mark.parametrize(
    "tex",
    [
        "9^{9^{9^{9}}}",
        "10^{10^{10}}",
        "(9^{9})^{9^{9}}",
        "x^{123456789}",
        "123456!",
        "((9!)!)!",
        "(" * 60 + "1" + ")" * 60,
        r"\frac{1}{2",
        "We add the first number to the second number and get seven",
        "+".join(f"x^{{{n}}}" for n in range(100)),
    ],
)
def test_tower_or_rambling_text_is_kept_from_the_algebra_system(tex: str) -> None:
    assert math_guard.hazardous(tex)
    begin = time.monotonic()
    assert not answers_equal(tex, "7")
    assert answers_equal(tex, tex)
    assert time.monotonic() - begin < 0.5


@pytest.mark.parametrize(
    "tex", ["2^{2^{10}}", "10^{100}", "e^{x^{2}}", "x^{2}+y^{2}", "20!", "(2,3]"]
)
def test_ordinary_expressions_are_not_kept_back(tex: str) -> None:
    assert not math_guard.hazardous(tex)


def test_calculation_without_end_is_killed_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers_equal(r"4\pi", r"\pi \cdot 4")  # a worker runs
    worker = math_process.shared._child
    assert worker is not None
    monkeypatch.setattr(math_grader, "DEADLINE_SECONDS", 1.0)
    begin = time.monotonic()
    assert not answers_equal(r"9^{3 \cdot 9^{9}}", "7")
    assert 0.9 < time.monotonic() - begin < 3.0
    assert worker.poll() is not None
    assert answers_equal(r"4\pi", r"\pi \cdot 4")  # a new one runs


def test_worker_that_died_is_replaced_without_a_wrong_verdict() -> None:
    assert answers_equal(r"4\pi", r"\pi \cdot 4")
    worker = math_process.shared._child
    assert worker is not None
    worker.kill()
    worker.wait()
    assert answers_equal(r"5\pi", r"\pi \cdot 5")


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    ("prediction", "gold", "equal"),
    [
        (r"3.5\%", r"3.5\%", True),
        (r"4\pi", r"\pi\cdot 4", True),
        ("2x", "x", False),
        (r"\sqrt{8}", r"2\sqrt2", True),
        ("9^{9^{9^{9}}}", "7", False),
    ],
)
def test_grading_in_threads_gives_the_same_verdicts_and_no_exception(
    prediction: str, gold: str, equal: bool, threads: int
) -> None:
    others = [(r"5\pi", r"\pi\cdot 5"), ("3y", "y"), (prediction, gold)]
    assert threading.current_thread() is threading.main_thread()
    with ThreadPoolExecutor(threads) as pool:
        verdicts = list(pool.map(lambda pair: answers_equal(*pair), others * 5))
    assert verdicts == [True, False, equal] * 5


@pytest.mark.parametrize(
    "text",
    [
        "\ud800",
        "\x00",
        "(1," * 300 + "1" + ")" * 300,
        "{" * 900,
        "$" * 900,
        "\\" * 900,
        "\\text{" * 150,
        "7" + "~" * 900 + "x",
        "7" + "\\ \n" * 300 + "x",
    ],
)
def test_no_input_raises_or_takes_long(text: str) -> None:
    begin = time.process_time()
    assert not answers_equal(text, "7")
    assert not answers_equal("7", text)
    assert not grade(rf"\boxed{{{text}}}", "7")
    assert time.process_time() - begin < 2.0


def test_worker_that_cannot_start_is_a_loud_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_process, "shared", math_process.MathProcess())
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(UserError, match="cannot start the math-verify worker"):
        answers_equal(r"4\pi", r"\pi \cdot 4")


def test_forked_process_starts_a_worker_of_its_own() -> None:
    assert answers_equal(r"4\pi", r"\pi \cdot 4")
    worker = math_process.shared._child
    child = os.fork()
    if child == 0:
        right = math_process.shared._child is None
        right = right and answers_equal(r"6\pi", r"\pi \cdot 6") and not answers_equal("2x", "x")
        math_process.shared.close()
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert answers_equal(r"5\pi", r"\pi \cdot 5")
    assert math_process.shared._child is worker  # the same as before


def test_worker_ends_with_its_parent_handle() -> None:
    process = math_process.MathProcess()
    assert process.equal("2x", "x+x", math_process.Budget(20.0))
    worker = process._child
    assert worker is not None
    process.close()
    assert worker.poll() is not None


@pytest.mark.benchmark_data
def test_gold_answers_in_other_spellings_are_right_and_others_wrong() -> None:
    path = Path(os.environ["RIVER_LLM_BENCHMARK_DATA"]) / "math" / "math500_test.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 500
    for row in rows:
        respelt = (
            row["answer"].replace(r"\frac", r"\dfrac").replace(", ", ",").replace("-", "\u2212")
        )
        assert answers_equal(f"${respelt}$.", row["answer"])
        digit = next((index for index, c in enumerate(row["answer"]) if c.isdigit()), None)
        if digit is not None:
            changed = str((int(row["answer"][digit]) + 1) % 10)
            wrong = row["answer"][:digit] + changed + row["answer"][digit + 1 :]
            assert not answers_equal(wrong, row["answer"])
