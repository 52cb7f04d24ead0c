r"""MATH: find the boxed answer of a completion and compare it with the gold answer.

Strings first: equal spellings are equal answers, whatever a parser thinks of them. Then numbers
written in digits are compared exactly. Then lists, tuples, intervals and sets are taken apart and
their elements compared. Only what is left goes to math-verify, in a process that is killed at a
deadline. Rulings on arguable points:

* a bare list (``1, 2`` or "1 and 2") is unordered; ``(a,b)`` is ordered; a bare list against a
  tuple is compared in order, a bare list against a set without order; a tuple is never a set, a
  closed interval never an open one. ``\pm`` stands for two elements;
* ``x = 5`` is 5 where only one side names the variable;
* percent and currency signs, degrees and units are dropped: ``45\%`` is 45 and not 0.45;
* ``1,000`` is a list only against another list; ``0.\overline{3}`` is 1/3; ``\emptyset`` is
  ``\{\}``;
* a base suffix on one side only (``142_5`` against 142) is accepted if the question names the base;
* ``2\frac{1}{3}`` is the mixed number 7/3;
* a decimal equals an exact value if the two agree to six digits and after rounding to six places
  (0.333333 is 1/3, 1.414 is not sqrt(2)); two decimals must be exactly equal;
* text answers are compared as text, without case, blanks and punctuation.

``docs/grading.md`` holds these rules with examples.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from river_llm.grading import math_process
from river_llm.grading.math_guard import hazardous
from river_llm.grading.math_text import (
    Answer,
    base_numeral,
    normalize,
    plain_value,
    text_key,
)

DEADLINE_SECONDS = 5.0
_LONGEST_ANSWER = 1000  # characters; longer text is rambling and must be equal as it stands
_LONGEST_LIST = 30

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
# A box without braces whose formula is not closed before the text ends: it may go on behind a cut.
_OPEN_BOX = re.compile(
    r"\\(?:boxed|fbox)(?![a-zA-Z])\s*+(?!\{)(?:(?!\$|\\\)|\\\]|\\boxed|\\fbox).)*\Z"
)
_NAME = re.compile(
    r"\s*([a-zA-Z](?:_\{\w+\}|\([a-z](?:,\s*[a-z])*\))?)\s*(?:=|\\in(?![a-zA-Z]))\s*"
)
_LABEL = re.compile(r"\s*(?P<label>[a-zA-Z][a-zA-Z ]*?)\s*=\s*")
_BASE_WORDS = {
    "2": "two",
    "3": "three",
    "4": "four",
    "5": "five",
    "6": "six",
    "7": "seven",
    "8": "eight",
    "9": "nine",
    "10": "ten",
    "11": "eleven",
    "12": "twelve",
    "16": "sixteen",
}


def extract_answer(completion: str, finish_reason: str = "stop") -> str | None:
    r"""Return the content of the last ``\boxed`` or ``\fbox``.

    Braces are counted, so nested ones stay whole. ``\boxed 5`` is accepted. If the last box is
    empty or its brace is never closed (the text was cut) there is no answer: an earlier box was
    withdrawn by opening a new one.

    Args:
        completion: Generated text, without the prompt.
        finish_reason: ``"eos"``, ``"stop"`` or ``"length"``. With ``"length"`` (the token limit
            cut the text) a box without braces counts only if its formula is closed behind it.

    Returns:
        The content without surrounding blanks, or None.
    """
    ends = [box.end() for box in _BOX.finditer(completion)]
    if not ends:
        return None
    if finish_reason == "length" and _OPEN_BOX.search(completion):
        return None
    rest = completion[ends[-1] :]
    content = _group(rest) if rest.startswith("{") else _bare_content(rest)
    return (content or "").strip() or None


def grade(completion: str, gold: str, *, question: str | None = None) -> bool:
    """Whether the completion's boxed answer equals the gold answer.

    Args:
        completion: Generated text.
        gold: The gold answer, without a box.
        question: See :func:`answers_equal`.
    """
    prediction = extract_answer(completion)
    return prediction is not None and answers_equal(prediction, gold, question=question)


def answers_equal(prediction: str | None, gold: str | None, *, question: str | None = None) -> bool:
    """Whether two answers are mathematically equal, by the rulings in the module's docstring.

    Usable from any thread. No input raises: what cannot be parsed, or takes longer than
    ``DEADLINE_SECONDS``, is equal only as a string.

    Args:
        prediction: TeX or plain text.
        gold: The gold answer.
        question: The question's text, if known; a base that it names may be missing in one answer.

    Raises:
        UserError: The math-verify process cannot be started at all (a broken installation).
    """
    if not isinstance(prediction, str) or not isinstance(gold, str):
        return False
    prediction, gold = prediction.strip(), gold.strip()
    if not prediction or not gold:
        return False
    if prediction == gold:
        return True
    if max(len(prediction), len(gold)) > _LONGEST_ANSWER:
        return False
    comparison = _Comparison(math_process.Budget(DEADLINE_SECONDS), question or "")
    try:
        return comparison.equal(normalize(prediction), normalize(gold))
    except RecursionError:  # brackets nested hundreds deep
        return False


def _group(text: str) -> str | None:
    """Content of the brace that opens ``text``; None if it is never closed."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return text[1 : match.start()]
    return None


def _bare_content(text: str) -> str:
    r"""What stands behind ``\boxed`` without a brace: up to the end of the formula, or one word."""
    line = text.split("\n", 1)[0]
    formula = re.match(r"(.*?)(?:\$|\\\)|\\\])", line)
    if formula is not None:
        return formula[1]
    word = re.match(r"\S*", line)
    return word.group().rstrip(".,;:") if word else ""


@dataclass(frozen=True)
class _Group:
    """A list, tuple, interval or set: the brackets (empty for a bare list) and the elements."""

    brackets: str
    items: list[Answer]


@dataclass(frozen=True)
class _Comparison:
    budget: math_process.Budget
    question: str

    def equal(self, prediction: Answer, gold: Answer) -> bool:
        if not prediction.key or not gold.key:
            return False
        if prediction.key == gold.key:
            return True
        prediction, gold = _without_labels(prediction, gold)
        if prediction.words or gold.words:
            return text_key(prediction) == text_key(gold) != ""
        by_base = self._numerals_equal(prediction, gold)
        if by_base is not None:
            return by_base
        prediction, gold = _without_names(prediction, gold)
        left, right = plain_value(prediction), plain_value(gold)
        if left is not None and right is not None:
            rounded = ("." in prediction.key) != ("." in gold.key)
            if left == right:
                return True
            if rounded:
                return self._leaf(prediction, gold)
            if not ("," in prediction.key and "," in gold.key):
                return False
            # 100,200 may also be a list
        return self._structures_equal(prediction, gold)

    def _numerals_equal(self, prediction: Answer, gold: Answer) -> bool | None:
        left, right = base_numeral(prediction), base_numeral(gold)
        if left is None and right is None:
            return None
        if left is not None and right is not None:
            return left == right
        digits, base = left or right or ("", "")
        other = gold if left is not None else prediction
        return other.key == digits and _names_base(self.question, base)

    def _structures_equal(self, prediction: Answer, gold: Answer) -> bool:
        unions = _split(prediction.tex, r"\cup"), _split(gold.tex, r"\cup")
        if len(unions[0]) == len(unions[1]) > 1:
            return self._unordered(*([normalize(part) for part in parts] for parts in unions))
        left, right = _group_of(prediction), _group_of(gold)
        if (left is None and right is None) or max(map(len, unions)) > 1:
            return self._leaf(prediction, gold)
        if left is None or right is None:
            # An inequality may describe an interval; a single value is a list of one.
            single = prediction if left is None else gold
            if re.search(r"[<>]|\\(?:le|ge|leq|geq|lt|gt)(?![a-zA-Z])", single.tex):
                return self._leaf(prediction, gold)
            other = left or right
            assert other is not None
            grouped = gold if left is None else prediction
            if plain_value(grouped) is not None:  # 1,000 is a number, not a list of 1 and 0
                return self._leaf(single, normalize(grouped.tex.replace(",", "")))
            return other.brackets in ("", "{}") and self._unordered([single], other.items)
        pair = {left.brackets, right.brackets}
        if pair <= {"", "{}"}:
            return self._unordered(left.items, right.items)
        if len(pair) == 1 or pair == {"", "()"}:
            return len(left.items) == len(right.items) and all(
                self.equal(a, b) for a, b in zip(left.items, right.items, strict=True)
            )
        return False

    def _unordered(self, left: list[Answer], right: list[Answer]) -> bool:
        if len(left) != len(right) or len(left) > _LONGEST_LIST:
            return False
        remaining = list(right)
        for item in left:
            match = next((other for other in remaining if self.equal(item, other)), None)
            if match is None:
                return False
            remaining.remove(match)
        return True

    def _leaf(self, prediction: Answer, gold: Answer) -> bool:
        if hazardous(prediction.tex) or hazardous(gold.tex):
            return False
        try:
            return math_process.shared.equal(prediction.tex, gold.tex, self.budget)
        except math_process.WorkerFailed:
            return False


def _names_base(question: str, base: str) -> bool:
    names = rf"{int(base)}|{_BASE_WORDS.get(base, base)}"
    return re.search(rf"\bbase[\s\-~${{(]*(?:{names})\b", question, re.IGNORECASE) is not None


def _without_labels(prediction: Answer, gold: Answer) -> tuple[Answer, Answer]:
    r"""Drop ``\text{Area} =`` where one side alone has it."""
    found = [_LABEL.match(each.tex) if each.words else None for each in (prediction, gold)]
    if found[0] is not None and found[1] is None:
        prediction = normalize(prediction.tex[found[0].end() :])
    elif found[1] is not None and found[0] is None:
        gold = normalize(gold.tex[found[1].end() :])
    return prediction, gold


def _without_names(prediction: Answer, gold: Answer) -> tuple[Answer, Answer]:
    """Drop ``x =`` where one side alone has it, or both have the same."""
    named = [_NAME.match(answer.tex) for answer in (prediction, gold)]
    names = {match[1] for match in named if match is not None}
    bodies = [
        answer.tex[match.end() :] if match is not None else answer.tex
        for match, answer in zip(named, (prediction, gold), strict=True)
    ]
    if len(names) != 1 or any("=" in body for body in bodies):
        return prediction, gold
    return normalize(bodies[0]), normalize(bodies[1])


def _group_of(answer: Answer) -> _Group | None:
    """Take a list, tuple, interval or set apart; None for a single expression."""
    tex = answer.tex.replace(r"\{", "\\lbrace ").replace(r"\}", "\\rbrace ").strip()
    brackets = ""
    for opening, closing, name in _bracket_pairs():
        if tex.startswith(opening) and tex.endswith(closing) and _encloses(tex):
            brackets, tex = name, tex[len(opening) : -len(closing)]
            break
    items = [normalize(part) for part in _split(tex, ",", ";")]
    if brackets in ("", "{}"):
        items = [each for item in items for each in _both_signs(item)]
    if len(items) < 2 and brackets != "{}":
        return None
    return _Group(brackets, items)


def _bracket_pairs() -> Iterator[tuple[str, str, str]]:
    for opening in "([":
        for closing in ")]":
            yield opening, closing, opening + closing
    yield r"\lbrace", r"\rbrace", "{}"


def _encloses(tex: str) -> bool:
    """Whether the first bracket is closed by the last one."""
    depths = [depth for depth, _ in _depths(tex)]
    return min(depths[:-1], default=0) > 0


def _depths(tex: str) -> Iterator[tuple[int, str]]:
    """Bracket depth behind each token (a command or a character), half-open brackets included."""
    depth = 0
    for token in re.findall(r"\\[a-zA-Z]+|\\.|.", tex, re.DOTALL):
        if token in ("(", "[", "{", r"\lbrace", r"\begin"):
            depth += 1
        elif token in (")", "]", "}", r"\rbrace", r"\end"):
            depth -= 1
        yield depth, token


def _split(tex: str, *separators: str) -> list[str]:
    parts = [""]
    for depth, token in _depths(tex):
        if depth == 0 and token in separators:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _both_signs(answer: Answer) -> list[Answer]:
    if not re.search(r"\\(?:pm|mp)(?![a-zA-Z])", answer.tex):
        return [answer]
    signs: list[Callable[[re.Match[str]], str]] = [
        lambda match: "+" if match[1] == "pm" else "-",
        lambda match: "-" if match[1] == "pm" else "+",
    ]
    return [normalize(re.sub(r"\\(pm|mp)(?![a-zA-Z])", sign, answer.tex)) for sign in signs]
