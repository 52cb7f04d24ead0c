"""How single figures of a summary are read and written; shared by tables, plots and report."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

Summary = Mapping[str, Any]

NOT_AVAILABLE = "n/a"
NOT_RUN = "not run"
REFERENCE_METHOD = "no_exit"


def pick(summary: Any, *path: str) -> Any:
    """The value under a path of keys; None where a key is missing or a level is null."""
    for key in path:
        if not isinstance(summary, Mapping):
            return None
        summary = summary.get(key)
    return summary


def figure(summary: Any, *path: str) -> float | None:
    """The finite number under a path of keys, else None."""
    value = pick(summary, *path)
    return float(value) if value is not None and isfinite(value) else None


def fixed(value: float | None, decimals: int, missing: str = NOT_AVAILABLE) -> str:
    """A number with so many decimals, or the word for a missing one."""
    return missing if value is None else f"{value:z.{decimals}f}"


def percent(share: float | None, missing: str = NOT_AVAILABLE) -> str:
    """A share in percent with one decimal, without the sign."""
    return fixed(None if share is None else 100 * share, 1, missing)


def accuracy(summary: Summary) -> str:
    """`20.0 [3.6, 62.4]` in percent, `not run` where samples wait for their grading."""
    value = figure(summary, "accuracy", "value")
    if value is None:
        return NOT_RUN if summary["samples"] else NOT_AVAILABLE
    low, high = (figure(summary, "accuracy", end) for end in ("low", "high"))
    return f"{percent(value)} [{percent(low)}, {percent(high)}]"


def speedup(summary: Summary) -> str:
    """`1.80 [1.70, 1.90]`: the matched decode speedup with its interval."""
    measured = matched(summary)
    if measured is None:
        return absent(summary)
    ends = [fixed(figure(measured, end), 2) for end in ("low", "high")]
    interval = "[no interval]" if NOT_AVAILABLE in ends else f"[{', '.join(ends)}]"
    return f"{fixed(figure(measured, 'value'), 2)} {interval}"


def matched(summary: Summary) -> Mapping[str, Any] | None:
    """The matched decode speedup of a run, None where it was not measured or is not finite."""
    measured = pick(summary, "speedup", "decode", "matched")
    return None if figure(measured, "value") is None else measured


def marks(summary: Summary) -> list[str]:
    """What a reader must know about a speedup: the flags of its measurement."""
    measured = matched(summary)
    return [] if measured is None else [str(flag) for flag in measured.get("flags") or []]


def absent(summary: Summary) -> str:
    """The word for a missing comparison: no_exit has none with itself, others were not run."""
    return NOT_AVAILABLE if summary["method"] == REFERENCE_METHOD else NOT_RUN


def span(values: list[int]) -> str:
    """`5`, or `3 to 5` where runs differ."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
