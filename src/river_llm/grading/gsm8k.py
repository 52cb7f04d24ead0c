r"""GSM8K: find the final number of a completion and compare it with the gold answer.

Two readings are reported side by side. *Strict* takes the first complete number after the first
``####`` that introduces an answer. *Flexible* (:func:`extract_answer`) is strict where there is
such a number, else the last complete number of the text. An answer is a decimal value, never a
string: ``$5,000.00`` is ``5000``.

What counts as one complete number:

* digits with or without thousands groups (``1,234``, LaTeX ``1{,}234``, ``1,\!234``, no-break
  spaces). A run of digits and commas is one number only if the whole run is grouped in threes;
  otherwise it is a list: ``1,2,3`` is three numbers, ``100,200`` is 100200, ``100, 200`` is two;
* a sign that belongs to the number: ``-3``, ``$-3``, ``+7``, all Unicode minus signs. A minus
  behind a digit or a closing bracket subtracts: ``10-3`` holds 10 and 3;
* ``.5``, ``1.5e3``, ``1.5 \times 10^{3}``, fractions ``3/4`` and ``\frac{3}{4}``, mixed numbers
  ``1 3/4``; a trailing full stop, comma or ellipsis is punctuation;
* a currency sign, a percent sign, a unit, ``**`` or ``\boxed{}`` around it changes nothing: 35 %
  is 35, because the gold answers of percent questions are bare numbers;
* digits inside a word (``x2``, ``H2O``), subscripts and powers (``cm^2``) are no numbers. Ordinals
  (``3rd``) and coefficients (``2x``) are numbers only where there is nothing better.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext

_MINUS_SIGNS = "\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d"
_CURRENCY = "$\u20ac\u00a3\u00a5\u20b9\uff04"
_CURRENCY_WORDS = frozenset({"usd", "eur", "gbp", "inr", "rs", "rm", "cad", "aud"})
_LARGEST_EXPONENT = 300
_LONGEST_FRACTION = 24

_NUMBER = re.compile(
    r"""
      (?:(?P<whole>\d++)[ \t]*+)?\\[dtc]?frac\s*+
        (?:\{\s*(?P<num>[-+]?\d++)\s*\}\s*\{\s*(?P<den>\d++)\s*\} | (?P<num1>\d)\s*(?P<den1>\d))
    | (?P<mixed>\d++)[ ](?P<mixed_num>\d++)/(?P<mixed_den>\d++)(?![/\d])
    | (?P<run>\d++(?:\.\d++)?+(?:,\d++(?:\.\d++)?+)*+ | (?<![\w.])\.\d++)
      (?: [eE](?P<exp>[-+]?\d++)(?!\w)
        | [ ]?(?:\\times|\\cdot|[*x\u00d7\u00b7])[ ]?10\^\{?(?P<power>[-+]?\d++)\}?
        | /(?P<over>\d++)(?![/\d.])
      )?+
    """,
    re.VERBOSE,
)
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_LOOSE_TAIL = re.compile(r"(?:st|nd|rd|th|[xyz])(?![a-zA-Z])")
_MARKER = re.compile(r"#{4,}")
_LABEL_BEFORE = re.compile(
    r"\b(?:step|part|question|problem|exercise|case|example|stage|phase|option|method)[\s#*:.]*\Z",
    re.IGNORECASE,
)
# What may still grow into a longer number if the text had gone on.
_OPEN_END = re.compile(r"(?:[.,/^]|\{,?|,?\\!?|[eE][-+]?|\s?(?:x|\\times)?\s?10\^\{?)?")


_PREFIX = re.compile(
    rf"(?:[{_CURRENCY}](?P<inner>[-+])|(?:(?P<outer>[-+])(?P<gap>[ ])?)?(?:[{_CURRENCY}][ ]?)?)\Z"
)
_INDEX_BEFORE = re.compile(r"\^\s*\{?\s*-?\Z|[\w})]_\{?\Z|frac\s*\{\Z")
_POWER_BEHIND = re.compile(r"\^(?!\s*\{?\s*\\circ)")
_WORD_BEFORE = re.compile(r"(?P<command>\\?)(?P<word>[a-zA-Z]+)(?P<stop>\.?)\Z")


@dataclass(frozen=True)
class _Number:
    value: str  # plain decimal
    start: int  # of the sign or currency sign in front
    end: int
    loose: bool  # an ordinal or a coefficient


def extract_answer(completion: str, finish_reason: str = "stop") -> str | None:
    """Return the final answer of a completion as a plain decimal string (flexible reading).

    Args:
        completion: Generated text, without the prompt.
        finish_reason: ``"eos"``, ``"stop"`` or ``"length"``. With ``"length"`` (the token limit
            cut the text) only a complete number after ``####`` counts: the last number of
            unfinished reasoning is no answer, and neither is a number that the cut may have split.

    Returns:
        For example ``"5000"``, ``"-3.5"``; None where there is no answer.
    """
    strict = extract_strict(completion, finish_reason)
    if strict is not None or finish_reason == "length":
        return strict
    numbers = list(_numbers(_plain_text(completion)))
    firm = [number for number in numbers if not number.loose]
    chosen = firm or numbers
    return chosen[-1].value if chosen else None


def extract_strict(completion: str, finish_reason: str = "stop") -> str | None:
    """Return the first complete number after ``####``; None without one.

    The first ``####`` that introduces an answer decides, so a further question that the model
    invents behind its answer cannot win. A Markdown heading such as ``#### Step 2`` introduces
    none.

    Args:
        completion: Generated text, or a gold solution.
        finish_reason: As in :func:`extract_answer`.
    """
    text = _plain_text(completion)
    marks = list(_MARKER.finditer(text))
    if not marks:
        return None
    numbers = list(_numbers(text))
    starts = [number.start for number in numbers]
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        index = bisect_left(starts, mark.end())
        if index == len(numbers):
            return None
        number = numbers[index]
        if following and following.start() < number.start:
            continue
        if _introduces(text[mark.end() : number.start]):
            cut = finish_reason == "length" and _OPEN_END.fullmatch(text, number.end)
            return None if cut else number.value
    return None


@dataclass(frozen=True)
class Grade:
    """Verdicts on one completion.

    Attributes:
        extracted: the flexible reading's answer; None without one.
        strict: whether the number behind ``####`` is right.
        flexible: whether the extracted answer is right.
    """

    extracted: str | None
    strict: bool
    flexible: bool


def grade(completion: str, gold: str, finish_reason: str = "stop") -> Grade:
    """Grade a completion by both readings.

    Args:
        completion: Generated text, without the prompt.
        gold: The gold answer, a number.
        finish_reason: As in :func:`extract_answer`.
    """
    extracted = extract_answer(completion, finish_reason)
    number = extract_strict(completion, finish_reason)
    return Grade(extracted, answers_equal(number, gold), answers_equal(extracted, gold))


def answers_equal(a: str | None, b: str | None) -> bool:
    """Whether two answers are the same decimal value; None and text without one number never are.

    Args:
        a: An extracted answer or a gold answer; ``+7``, ``7.00`` and ``$7`` are 7.
        b: The other one.
    """
    left, right = _single_value(a), _single_value(b)
    return left is not None and right is not None and left == right


def _single_value(text: str | None) -> Decimal | None:
    if not isinstance(text, str):
        return None
    numbers = list(_numbers(_plain_text(text)))
    return Decimal(numbers[0].value) if len(numbers) == 1 else None


def _introduces(between: str) -> bool:
    """Whether the text between ``####`` and a number says that the number is the answer."""
    words = re.sub(r"\\[a-zA-Z]+", " ", between)
    if not re.search(r"[^\W\d_]", words):
        return True
    heading, newline, _ = between.partition("\n")
    if newline:
        return re.search(r"answer", heading, re.IGNORECASE) is not None
    return _LABEL_BEFORE.search(between) is None


def _plain_text(text: str) -> str:
    """Bring minus signs, digits and thousands separators to one spelling."""
    text = re.sub(f"[{_MINUS_SIGNS}]", "-", text)
    text = re.sub(r"\d", _ascii_digit, text) if not text.isascii() else text
    text = re.sub(r"\\([$%])", r"\1", text)
    # These separators are never used in a list, so they are read as commas inside a number.
    return re.sub(r"(?<=\d)(?:\{,\}|,?\\!\s*|\\,|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))", ",", text)


def _ascii_digit(match: re.Match[str]) -> str:
    return str(unicodedata.decimal(match.group()))


def _numbers(text: str) -> Iterator[_Number]:
    for match in _NUMBER.finditer(text):
        begin, end = match.span()
        if not _stands_alone(text, begin, end):
            continue
        negative, start = _sign(text, begin)
        loose = _LOOSE_TAIL.match(text, end) is not None
        values = _values(match)
        for index, value in enumerate(values):
            if value is None:
                continue
            if index == 0 and negative:
                value = value[1:] if value.startswith("-") else "-" + value
            # A list counts as written from where it starts: only its order matters.
            last = index == len(values) - 1
            yield _Number(_canonical(value), start, end, loose and last)


def _stands_alone(text: str, begin: int, end: int) -> bool:
    """Whether the digits are a number of their own and no part of a word, index or power."""
    before = text[max(0, begin - 24) : begin]
    if _INDEX_BEFORE.search(before) or _POWER_BEHIND.match(text, end):
        return False
    word = _WORD_BEFORE.search(before)
    if word is None or word["command"] or word["word"].lower() in _CURRENCY_WORDS:
        return True
    return word["stop"] == "."


def _sign(text: str, begin: int) -> tuple[bool, int]:
    """Read sign and currency in front of the digits: (negative, where the number starts)."""
    prefix = _PREFIX.search(text, max(0, begin - 5), begin)
    assert prefix is not None  # every part is optional
    start = prefix.start()
    sign = prefix["inner"] or prefix["outer"]
    if not sign:
        return False, start
    before = text[max(0, start - 40) : start].rstrip(" \t")
    subtracts = before.endswith(tuple("0123456789)]}%")) or text[start - 1 : start].isalpha()
    # A dash and a blank in front of a number are a list bullet, but for these two places.
    bullet = bool(prefix["gap"]) and not before.endswith(("=", "####"))
    if subtracts or bullet:
        return False, start + 1
    return sign == "-", start


def _values(match: re.Match[str]) -> list[str | None]:
    group = match.groupdict()
    if group["run"] is None:
        numerator = group["num"] or group["num1"] or group["mixed_num"]
        denominator = group["den"] or group["den1"] or group["mixed_den"]
        return [_fraction(group["whole"] or group["mixed"] or "0", numerator, denominator)]
    run: str = group["run"]
    items: list[str | None] = []
    items += [run.replace(",", "")] if _GROUPED.fullmatch(run) else run.split(",")
    last = items[-1] or ""
    exponent = group["exp"] or group["power"]
    if group["over"] is not None:
        items[-1] = _fraction("0", last, group["over"])
    elif exponent is not None:
        small = len(exponent) <= 4 and abs(int(exponent)) <= _LARGEST_EXPONENT
        items[-1] = f"{last}e{exponent}" if small else None
    return items


def _fraction(whole: str, numerator: str, denominator: str) -> str | None:
    """``whole + numerator / denominator`` in decimals; None for a division by zero."""
    if len(whole + numerator + denominator) > _LONGEST_FRACTION or not Decimal(denominator):
        return None
    with localcontext() as context:
        context.prec = 2 * _LONGEST_FRACTION  # a fraction that ends is exact
        return str(Decimal(whole) + Decimal(numerator) / Decimal(denominator))


def _canonical(value: str) -> str:
    """Plain decimal notation without exponent, leading or trailing zeros, or a negative zero.

    By string operations: Decimal.normalize would round to the context's precision.
    """
    plain = format(Decimal(value), "f")
    negative = plain.startswith("-")
    whole, _, decimals = plain.lstrip("-").partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    plain = f"{whole}.{decimals}" if decimals else whole
    return f"-{plain}" if negative and plain != "0" else plain
