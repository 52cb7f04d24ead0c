"""Keeps expressions away from the computer algebra system that it would chew on for minutes.

The deadline of the worker process catches everything; this catches the usual cases at no cost, so
that a model that often writes such things does not cost a deadline for each of its answers.
"""

import re

from river_llm.grading.math_text import balanced

_LONGEST_EXPRESSION = 400
_LARGEST_EXPONENT = 20_000
_DEEPEST_TOWER = 3
_DEEPEST_NESTING = 12
_MOST_WORDS = 4

_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
_LARGE_FACTORIAL = re.compile(r"\d{5,}\s*\)*!|!\s*\)*\s*!|\)\s*!.*\)\s*!")


def hazardous(tex: str) -> bool:
    """Whether an expression is too long, prose, broken off, or too large to work out.

    Args:
        tex: An expression in the normal spelling of ``math_text.normalize``.
    """
    if len(tex) > _LONGEST_EXPRESSION or len(_WORD.findall(tex)) > _MOST_WORDS:
        return True
    if not balanced(tex) or _nesting(tex) > _DEEPEST_NESTING or _LARGE_FACTORIAL.search(tex):
        return True
    return any(_too_large(tex[match.end() :]) for match in re.finditer(r"\^\s*", tex))


def _nesting(tex: str) -> int:
    depth = deepest = 0
    for character in tex:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _too_large(text: str, depth: int = 1) -> bool:
    """Whether the exponent that opens ``text`` is a huge number or a deep tower."""
    exponent = _exponent(text)
    value = _value(exponent)
    if value is not None:
        return value > _LARGEST_EXPONENT
    inner = [match.end() for match in re.finditer(r"\^\s*", exponent)]
    if not inner:
        return False
    if not re.search(r"[a-zA-Z]", exponent):
        return True  # digits alone, yet not small enough for _value
    return depth >= _DEEPEST_TOWER or any(_too_large(exponent[at:], depth + 1) for at in inner)


def _exponent(text: str) -> str:
    """The braced or bracketed group, or the digits or the character, at the start of ``text``."""
    if text[:1] not in ("{", "("):
        match = re.match(r"-?\d+|.", text, re.DOTALL)
        return match.group() if match else ""
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "{(") - (character in "})")
        if depth == 0:
            return text[1:index]
    return text[1:]


def _value(exponent: str) -> int | None:
    """Value of an integer or of a tower of integers; None if it is neither or far too large."""
    stripped = exponent.strip().strip("{}()").strip()
    if re.fullmatch(r"-?\d{1,9}", stripped):
        return abs(int(stripped))
    if re.fullmatch(r"-?\d+", stripped):
        return _LARGEST_EXPONENT + 1
    tower = re.fullmatch(r"\s*(\d{1,6})\s*\^\s*(.*)", exponent, re.DOTALL)
    if tower is None:
        return None
    rest = _exponent(tower[2])
    if tower[2].strip("{}() ") != rest.strip("{}() "):
        return None  # something follows the power
    upper = _value(rest)
    if upper is None:
        return None
    base = int(tower[1])
    if base <= 1 or upper * base.bit_length() <= 64:
        return int(base**upper)
    return _LARGEST_EXPONENT + 1
