"""MATH answers as text: one spelling for what TeX writes in several ways, and plain values.

Nothing here calls a computer algebra system, so all of it is fast and works on any input.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_UNICODE = {
    "\u2212": "-",
    "\u2013": "-",
    "\u00d7": r"\times ",
    "\u00b7": r"\cdot ",
    "\u00f7": "/",
    "\u03c0": r"\pi ",
    "\u221e": r"\infty ",
    "\u221a": r"\sqrt ",
    "\u00b1": r"\pm ",
    "\u2264": r"\le ",
    "\u2265": r"\ge ",
    "\u2208": r"\in ",
    "\u222a": r"\cup ",
    "\u2205": r"\emptyset ",
    "\u00b2": "^2",
    "\u00b3": "^3",
    "\u00b0": "",
    "\u00a0": " ",
    "\u2009": " ",
    "\u202f": " ",
}
_FUNCTIONS = "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp|sqrt|pi|infty"
# Whole words only: as substrings they would eat the ft of \left and the in of \infty.
_UNIT_WORDS = (
    "inch(?:es)?|in|foot|feet|ft|yards?|yd|miles?|mi|mm|cm|km|meters?|metres?|centimeters?"
    "|kilometers?|degrees?|radians?|units?|square|cubic|sq|cu|percent|dollars?|cents?|seconds?"
    "|minutes?|min|hours?|hrs?|days?|weeks?|months?|years?|kg|grams?|pounds?|lbs?|ounces?|oz"
    "|liters?|litres?|gallons?|mph|points?|people|students?|ways"
)
# Single letters are units only in upright type behind a value, or behind a unit and a stroke.
_UNIT_LETTERS = "[mshgLl](?![a-zA-Z])"
_UPRIGHT_UNIT = rf"(?:{_UNIT_WORDS}|{_UNIT_LETTERS})(?:\s*/\s*(?:{_UNIT_WORDS}|{_UNIT_LETTERS}))?"
_TEXT = r"\\(?:text(?:rm|bf|it|normal|sf|tt)?|mbox|hbox)"
_FONT = r"\\(?:math(?:rm|bf|it|sf|tt)|operatorname)"
_DELIMITERS = re.compile(
    r"\\(?:left|right|[bB]ig{1,2}[lrm]?)(?![a-zA-Z])\.?"
    r"|\\(?:displaystyle|textstyle|limits|nolimits)(?![a-zA-Z])"
)
_TRAILING_TEXT = re.compile(rf"\s*{_TEXT}\s*\{{(?P<unit>[\s\w.,/]*)\}}\s*(?:\^\s*\{{?\d\}}?)?\s*\Z")
_TRAILING_UNIT = re.compile(
    rf"(?<=[\d}})\s])\s*(?<![a-zA-Z\\])(?:(?:{_UNIT_WORDS})\b\.?\s*"
    rf"(?:(?:/|per(?![a-zA-Z]))\s*(?:{_UNIT_LETTERS}\s*)?)?)+(?:\^\s*\{{?\d\}}?)?\s*\Z"
)
_LIST_WORD = re.compile(
    rf"\s*,?\s*{_TEXT}\s*\{{\s*,?\s*(?:and|or)\s*\}}\s*|\s*,?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])\s*"
)
_MIXED = re.compile(r"(?<![\d.}^_])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}")
_BASE_NUMERAL = re.compile(r"([0-9A-F]*\d[0-9A-F]*)_\{(\d+)\}")


@dataclass(frozen=True)
class Answer:
    """One answer in its normal spelling.

    Attributes:
        tex: For the parser: TeX with the blanks that separate commands.
        key: For string equality: without blanks. Equal keys are equal answers.
        words: Whether the answer is a text, to be compared as a string only.
    """

    tex: str
    key: str
    words: bool


def normalize(text: str) -> Answer:
    r"""Bring an answer to one spelling without changing its value.

    Dropped: math delimiters, an enclosing box, ``\left``/``\right``, sizes, spacing commands,
    currency and percent signs, degrees, units behind the value, a final full stop. Unified:
    fractions (``\frac12``, ``\dfrac``), braces of one-token arguments (``x^2``), Unicode signs,
    thousands separators that cannot belong to a list, "and"/"or" as commas, mixed numbers.
    """
    tex = _unwrap(text.strip())
    tex = re.sub(f"[{''.join(_UNICODE)}]", lambda match: _UNICODE[match.group()], tex)
    tex = re.sub(r"(?<=\d)\s*(?:,\s*\\!|\{,\}|\\,|\\!)\s*(?=\d{3}(?!\d))", "", tex)
    tex = _DELIMITERS.sub(" ", tex)
    tex = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", tex) if r"\begin" not in tex else tex
    tex = re.sub(r"\\[!,;:>]|\\(?:quad|qquad)(?![a-zA-Z])|(?<!\\)\\\s|~", " ", tex)
    tex = re.sub(r"\s+", " ", tex)  # long runs of blanks would cost the patterns below seconds
    tex = re.sub(r"\\?[$%]|[\u20ac\u00a3\u00a5]|(?<!\\)\\[()\[\]]", "", tex)
    tex = re.sub(r"\\(?:emptyset|varnothing)(?![a-zA-Z])", lambda _: r"\{\}", tex)
    tex = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degrees?(?![a-zA-Z])", "", tex)
    tex = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", tex)
    tex = _LIST_WORD.sub(", ", tex)
    tex = re.sub(rf"{_FONT}\s*\{{([^{{}}]*)\}}", _font, tex)
    tex = _without_unit_text(tex.rstrip(".,;: "))
    words = re.search(rf"{_TEXT}\s*\{{[^{{}}]*[^\W\d_][^{{}}]*\}}", tex) is not None
    tex = re.sub(rf"{_TEXT}\s*\{{([^{{}}]*)\}}", r" \1", tex)
    tex = re.sub(r"\s+", " ", tex).strip().rstrip(".,;:").strip()
    if not words:
        tex = _TRAILING_UNIT.sub("", tex)
        tex = _math_spelling(tex)
    key = re.sub(r"(?<!\d) | (?!\d)", "", tex)
    return Answer(tex, key, words)


def text_key(answer: Answer) -> str:
    r"""Letters and digits alone: ``\text{(C)}``, ``(C)`` and ``c`` are the same choice."""
    return re.sub(r"[\W_]", "", answer.key.casefold())


def plain_value(answer: Answer) -> Fraction | None:
    r"""Exact value of a number written in digits; None for everything else.

    Integers (grouped in threes or not), decimals (repeating ones too), ``a/b``,
    ``\frac{a}{b}`` and a power of ten as a factor.
    """
    text = answer.key
    if ", " not in answer.tex and re.fullmatch(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?", text):
        text = text.replace(",", "")
    repeating = re.fullmatch(r"([-+]?\d*)\.(\d*)\\overline\{(\d+)\}", text)
    if repeating is not None:
        whole, fixed, period = repeating.groups()
        once = int(f"{whole.lstrip('+-') or 0}{fixed}")
        value: Fraction = once + Fraction(int(period), int("9" * len(period)))
        value /= int(f"1{'0' * len(fixed)}")
        return -value if whole.startswith("-") else value
    text = re.sub(r"([-+]?)\\frac\{([-+]?[\d.]+)\}\{([\d.]+)\}", r"\1\2/\3", text)
    match = re.fullmatch(
        r"([-+]{0,2}[\d.]+)(?:/([\d.]+))?(?:(?:\\times|\\cdot|\*)10\^\{(-?\d{1,3})\}"
        r"|[eE]([-+]?\d{1,3}))?",
        text,
    )
    if match is None:
        return None
    try:
        numerator = match[1].replace("--", "").replace("+", "")
        value = Fraction(numerator) / Fraction(match[2] or 1)
    except (ValueError, ZeroDivisionError):
        return None
    return value * Fraction(10) ** int(match[3] or match[4] or 0)


def base_numeral(answer: Answer) -> tuple[str, str] | None:
    """Split ``142_5`` into digits and base; None for everything else."""
    match = _BASE_NUMERAL.fullmatch(answer.key)
    return (match[1], match[2]) if match else None


def _unwrap(text: str) -> str:
    """Take off math delimiters and a box that enclose the whole text."""
    while True:
        inner = re.fullmatch(
            r"\$\$?(.*?)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]|\\(?:boxed|fbox)\s*\{(.*)\}",
            text,
            re.DOTALL,
        )
        if inner is None:
            return text
        content = next(group for group in inner.groups() if group is not None).strip()
        if text.startswith(("\\boxed", "\\fbox")) and not balanced(content):
            return text
        text = content


def _font(match: re.Match[str]) -> str:
    """A unit in upright type is text; any other letters are mathematics."""
    name = match[1].strip()
    behind_value = re.search(r"[\d})]\s*\Z", match.string[: match.start()]) is not None
    units = _UPRIGHT_UNIT if behind_value else _UNIT_WORDS
    return rf"\text{{{name}}}" if re.fullmatch(units, name) else name


def _without_unit_text(tex: str) -> str:
    r"""Drop the text behind a value: ``864 \mbox{ inches}^2`` is 864."""
    match = _TRAILING_TEXT.search(tex)
    if match is None or match["unit"].strip() in {"i", "e"}:
        return tex
    value = tex[: match.start()]
    bare = re.sub(rf"{_TEXT}\s*\{{[^{{}}]*\}}", "", value)
    return value if re.search(r"\d|\\[a-z]", bare) else tex


def balanced(text: str) -> bool:
    """Whether every brace is closed in ``text`` and none from outside it (escaped braces aside)."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth < 0:
            return False
    return depth == 0


def _math_spelling(tex: str) -> str:
    tex = re.sub(rf"(?<![\\a-zA-Z])({_FUNCTIONS})(?![a-zA-Z])", r"\\\1", tex)
    tex = _braced_roots(tex.replace("**", "^"))
    tex = re.sub(r"\^\s*(-?\d+|[a-zA-Z])", r"^{\1}", tex)
    tex = re.sub(r"_\s*(\d+|[a-zA-Z])", r"_{\1}", tex)
    tex = re.sub(r"\\sqrt\s*(\d+|[a-zA-Z](?![a-zA-Z]))", r"\\sqrt{\1}", tex)
    tex = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", tex)
    tex = re.sub(r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{", tex)
    tex = re.sub(r"\\frac\s*\{([^{}]*)\}\s*(\d)", r"\\frac{\1}{\2}", tex)
    tex = re.sub(r"\\frac\s*\{\s*([^{}]*?)\s*\}\s*\{\s*([^{}]*?)\s*\}", r"\\frac{\1}{\2}", tex)
    tex = re.sub(r"(?<!\d)\.(?=\d)", "0.", tex)
    tex = re.sub(r"(?<![\d/.])(\d+) (\d+)/(\d+)(?![\d/])", r"\1\\frac{\2}{\3}", tex)
    tex = _MIXED.sub(_improper, tex)
    return re.sub(r"^\s*[=+]\s*", "", tex)


def _braced_roots(tex: str) -> str:
    r"""``sqrt(2(x+1))`` is ``\sqrt{2(x+1)}``."""
    while (root := re.search(r"\\sqrt\s*\(", tex)) is not None:
        depth = 1
        for index in range(root.end(), len(tex)):
            depth += (tex[index] == "(") - (tex[index] == ")")
            if depth == 0:
                inner, rest = tex[root.end() : index], tex[index + 1 :]
                tex = rf"{tex[: root.start()]}\sqrt{{{inner}}}{rest}"
                break
        else:
            return tex
    return tex


def _improper(match: re.Match[str]) -> str:
    r"""``2\frac{1}{3}`` is 7/3, also inside a product, where a parser would read 2 times 1/3."""
    whole, numerator, denominator = (int(group) for group in match.groups())
    if numerator >= denominator:
        return match.group()  # not how mixed numbers are written
    return rf"\frac{{{whole * denominator + numerator}}}{{{denominator}}}"
