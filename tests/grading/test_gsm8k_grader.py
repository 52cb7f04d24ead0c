"""The GSM8K grader on tables of cases; expectations are worked out by hand."""

import pytest

from river_llm.grading.gsm8k import answers_equal, extract_answer, extract_strict


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("She pays 1,234 dollars.", "1234"),
        ("#### 12,345,678", "12345678"),
        ("#### 1{,}234", "1234"),
        (r"#### 10,\!080", "10080"),
        (r"That is 7\,500 in all.", "7500"),
        ("That is 18\u00a0000 in all.", "18000"),
        ("It costs 12,345.60 a year", "12345.6"),
    ],
)
def test_number_is_not_split_at_its_thousands_separator(completion: str, answer: str) -> None:
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "strict", "flexible"),
    [
        ("#### 1,2,3", "1", "1"),
        ("the digits are 1,2,3", None, "3"),
        ("the digits are 4, 5, 6", None, "6"),
        ("#### 100, 200", "100", "100"),
        ("they are 1,234, 5,678", None, "5678"),
        ("codes 12,3456", None, "3456"),
        ("codes 1234,567", None, "567"),
        ("years 2019,2020", None, "2020"),
        ("1.5,2.5", None, "2.5"),
    ],
)
def test_list_is_not_fused_into_one_number(
    completion: str, strict: str | None, flexible: str
) -> None:
    assert extract_strict(completion) == strict
    assert extract_answer(completion) == flexible


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("#### 18,", "18"),
        ("There are 18, I think.", "18"),
        ("#### 18.", "18"),
        ("There are 18...", "18"),
        ("There are 18,,", "18"),
        ("so 3.5.", "3.5"),
        ("it ends with ... 18 , .", "18"),
        ("only ...18", "18"),
    ],
)
def test_punctuation_behind_the_number_is_no_number(completion: str, answer: str) -> None:
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("#### $18", "18"),
        (r"#### \$18", "18"),
        ("#### $5,000.00.", "5000"),
        ("#### 5000.50", "5000.5"),
        ("she has 7€ left", "7"),
        ("she has £7", "7"),
        ("US$40", "40"),
        ("Rs.500", "500"),
        ("it is .5", "0.5"),
        ("it is 007", "7"),
        ("it is -0.0", "0"),
    ],
)
def test_currency_and_zeros_do_not_survive_extraction(completion: str, answer: str) -> None:
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    "tail",
    [
        "\n\nQuestion: Ann has 5 pens. How many in 2 years?\nAnswer: 5+2=7\n#### 7",
        " #### 99",
        "\n\nThe next one: 3 * 4 = 12",
        "\n####\n12",
        "\n\\frac{1}{2} of 8 is 4",
    ],
)
def test_invented_further_question_does_not_win(tail: str) -> None:
    assert extract_answer("9+9=18\n#### 18" + tail) == "18"
    assert extract_strict("9+9=18\n#### 18" + tail) == "18"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("#### -3", "-3"),
        ("#### - 3", "-3"),
        ("#### \u22123", "-3"),
        ("#### \u20133", "-3"),
        ("#### -$5", "-5"),
        ("#### $-5", "-5"),
        ("#### +7", "7"),
        ("x = - 3", "-3"),
        ("the change is (-3)", "-3"),
        ("it fell to **-3**", "-3"),
        ("it fell to -$1,250.00", "-1250"),
    ],
)
def test_sign_is_kept(completion: str, answer: str) -> None:
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("(since 10-3)", "3"),
        ("that is 10 - 3", "3"),
        ("that is 10 -3", "3"),
        ("that is $10-$3", "3"),
        ("that is (7+3)-3", "3"),
        ("on 2024-05-03", "3"),
        ("Shopping list:\n- 3 apples", "3"),
        ("a cost\u201418", "18"),
    ],
)
def test_minus_of_a_subtraction_or_bullet_is_no_sign(completion: str, answer: str) -> None:
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("There were 6 tests. So 35% of them failed.", "35"),
        (r"There were 6 tests. So 35\% of them failed.", "35"),
        ("6 tests, 35 percent", "35"),
        ("There were 6 tests.\nThe share is 35%", "35"),
        ("first 6\nthen 40\n", "40"),
    ],
)
def test_percent_sign_or_line_end_does_not_hide_the_number(completion: str, answer: str) -> None:
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"$\boxed{18}$", "18"),
        (r"#### \boxed{18}", "18"),
        ("#### **18**", "18"),
        ("**18**", "18"),
        ("_18_", "18"),
        ("####18", "18"),
        ("####\n18", "18"),
        ("#### The answer is 18 dollars", "18"),
        ("#### Final answer\n18", "18"),
        ("#### x = 18", "18"),
        ("#### 18km", "18"),
        ("The distance is 18km", "18"),
        ("18 km, she came 3rd", "18"),
        ("18 + 2x", "18"),
        ("18 cm^2", "18"),
        ("18 cm2", "18"),
        (r"an angle of 18^\circ", "18"),
        ("18 litres of H2O", "18"),
        ("#### 3rd", "3"),
        ("she came 3rd", "3"),
        ("<<9+9=18>>18 eggs", "18"),
        ("答案是18。", "18"),
    ],
)
def test_markup_and_units_around_the_number(completion: str, answer: str) -> None:
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("#### 3/4", "0.75"),
        ("#### 36/2", "18"),
        ("#### 1 3/4", "1.75"),
        (r"#### \frac{3}{4}", "0.75"),
        (r"#### 2\frac{1}{2}", "2.5"),
        (r"#### \dfrac12", "0.5"),
        ("#### 1.5e3", "1500"),
        (r"#### 1.5 \times 10^{3}", "1500"),
        ("#### 2 x 10^-2", "0.02"),
        ("5/0 of 7", "7"),
        ("1e999999999 of 7", "7"),
        ("#### \u0661\u0668", "18"),
        ("#### \uff11\uff18", "18"),
        ("#### " + "9" * 6000, "9" * 6000),
    ],
)
def test_other_ways_to_write_a_number(completion: str, answer: str) -> None:
    assert extract_answer(completion) == answer


@pytest.mark.parametrize("completion", ["", "no idea", "####", "x_1", "x2", "#### none"])
def test_no_number_is_no_answer(completion: str) -> None:
    assert extract_answer(completion) is None


def test_heading_of_a_step_is_no_answer() -> None:
    text = "#### Step 1: add\n5+6=11\n#### Step 2: double\n22\n#### 22"
    assert extract_strict(text) == "22"
    assert extract_strict("#### Part 2: add 5 and 6") is None


def test_word_question_in_the_reasoning_changes_nothing() -> None:
    assert extract_answer("First restate the Question: how many? 5+6=11\n#### 11") == "11"


def test_marker_without_number_leaves_the_flexible_reading() -> None:
    assert extract_strict("5+6=11\n####") is None
    assert extract_answer("5+6=11\n####") == "11"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("First, 5+6=11. Then 11*", None),
        ("It is 22.\n", None),
        ("#### 22", None),
        ("#### 22.", None),
        ("#### 1,", None),
        ("#### 1{,", None),
        ("#### 22/", None),
        ("#### 22\n", "22"),
        ("#### 22 apples", "22"),
        ("#### 22\n\nQuestion: 7", "22"),
        (r"#### \boxed{22}", "22"),
    ],
)
def test_token_limit_does_not_turn_half_a_text_into_an_answer(
    completion: str, answer: str | None
) -> None:
    assert extract_answer(completion, finish_reason="length") == answer


@pytest.mark.parametrize("finish_reason", ["stop", "eos"])
def test_finished_text_may_end_with_its_number(finish_reason: str) -> None:
    assert extract_answer("#### 22", finish_reason) == "22"
    assert extract_answer("so 22", finish_reason) == "22"


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ("+7", "7", True),
        ("-3.0", "-3", True),
        ("7", "-7", False),
        ("1,234", "1234", True),
        ("$5,000.00", "5000", True),
        ("0.1", ".10", True),
        ("18", "18.5", False),
        ("1,2,3", "123", False),
        ("35%", "35", True),
        (None, None, False),
        (None, "7", False),
        ("", "", False),
        ("NaN", "NaN", False),
        ("1" + "0" * 50, "1" + "0" * 50 + ".00", True),
        ("1" + "0" * 50, "1" + "0" * 49 + "1", False),
    ],
)
def test_answers_are_compared_as_numbers(a: str | None, b: str | None, equal: bool) -> None:
    assert answers_equal(a, b) is equal
    assert answers_equal(b, a) is equal
