"""Child process that asks math-verify whether two answers are equal. Run by ``math_process``.

Started by path as a script, so that nothing of the package is imported here. One JSON object per
line on stdin (``{"prediction": tex, "gold": tex, "seconds": limit}``), one per line on stdout
(``{"equal": bool}``), after a first line ``{"ready": true}``.

math-verify's own timeouts are off, since their alarms cannot interrupt C code: the parent kills
this process at the deadline. A timer with the default action of ending the process is the second
line of defence for a parent that died itself.
"""

import json
import os
import signal
import sys
from typing import Any

_MEMORY_LIMIT_BYTES = 4 << 30
_FLOAT_TOLERANCE = 2e-6  # six significant digits, what math-verify's rounding means near 1
_EXACT_TOLERANCE = 1e-80
_DIGITS = 30
_MOST_DIGITS = 200  # a difference that stays 0 up to here is 0
_SAMPLE_POINTS = ((37, 11), (-53, 17), (7, 29))


def parse(tex: str) -> Any | None:
    """Parse one TeX expression to a SymPy object; None where it is not understood as a whole."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig
    from math_verify import parse as verify_parse

    config = LatexExtractionConfig(
        boxed_match_priority=-1,
        normalization_config=NormalizationConfig(
            basic_latex=True,
            units=False,  # its unit list holds single letters and would eat variables
            malformed_operators=True,
            nits=True,
            boxed="none",
            equations=False,
        ),
    )
    found = verify_parse(
        f"${tex}$",
        [config],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return found[0] if found else None


def equal(prediction: str, gold: str) -> bool:
    """Whether math-verify calls the two TeX expressions equal and their values agree closely."""
    from math_verify import verify

    left, right = parse(prediction), parse(gold)
    if left is None or right is None:
        return False
    same = verify(right, left, allow_set_relation_comp=True, timeout_seconds=None)
    return bool(same) and values_agree(left, right)


def values_agree(left: Any, right: Any) -> bool:
    """Refuse what math-verify's absolute tolerance lets through: 2^-61 for 2^-60.

    Compares relative to the size of the values, at a few points where there are variables; says
    nothing (True) about objects that have no numeric value.
    """
    from sympy import Expr, Float, MatrixBase, Rational

    if isinstance(left, MatrixBase) and isinstance(right, MatrixBase):
        if left.shape != right.shape:
            return False
        return all(values_agree(a, b) for a, b in zip(left.flat(), right.flat(), strict=True))
    if not isinstance(left, Expr) or not isinstance(right, Expr):
        return True
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    tolerance = _FLOAT_TOLERANCE if left.has(Float) or right.has(Float) else _EXACT_TOLERANCE
    for numerator, denominator in _SAMPLE_POINTS if symbols else _SAMPLE_POINTS[:1]:
        point = {
            symbol: Rational(numerator + 3 * index, denominator)
            for index, symbol in enumerate(symbols)
        }
        a, b = left.subs(point).doit(), right.subs(point).doit()
        difference = abs((a - b).evalf(_DIGITS, maxn=_MOST_DIGITS))
        size = max(abs(a.evalf(_DIGITS)), abs(b.evalf(_DIGITS)))
        if not (difference.is_Number and size.is_Number and difference.is_finite):
            continue
        if difference > tolerance * size:
            return False
    return True


def _answer(request: dict[str, Any]) -> bool:
    try:
        return equal(request["prediction"], request["gold"])
    except (Exception, RecursionError):
        # Whatever an expression makes the algebra system raise: it did not prove equality.
        return False


def main() -> None:
    """Serve requests until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)  # nothing that a library prints may reach the channel
    import math_verify  # noqa: F401  (the slow import, before the first deadline runs)

    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
    except (ImportError, ValueError, OSError):
        pass  # the deadline still holds
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, request["seconds"] + 5.0)
        verdict = _answer(request)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        print(json.dumps({"equal": verdict}), file=replies, flush=True)


if __name__ == "__main__":
    main()
