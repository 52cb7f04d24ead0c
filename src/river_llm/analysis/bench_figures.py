"""Figures of a decode benchmark, from the seconds of its passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Arms = Mapping[str, Mapping[str, Any]]
"""Figures by the arm's name, as :func:`arm_figures` gives them."""

KINDS = ("backbone", "river", "head", "kv", "other")
REFERENCES = {
    "vs_no_exit": ("no_exit",),
    # Where the engine is the eager one, no_exit is eager no_exit.
    "vs_eager": ("no_exit/eager", "no_exit"),
    "vs_hf": ("hf_generate",),
}


def arm_figures(arms: Arms, steps: int, gb_per_s: float) -> dict[str, dict[str, Any]]:
    """The figures of all arms that were timed in the same rounds.

    Args:
        arms: by name, `seconds` of each pass in the order of the rounds, `bytes` per token by
            kind (None: not known), `prefill_seconds`, where known `cached_gb_per_s` (rate of
            reading as many bytes again and again), and what else is to be kept with them.
        steps: decode steps in a pass.
        gb_per_s: bandwidth of this process's memory. The larger of the two counts for the bound.

    Returns:
        By name: median and quartiles of ms per token, bytes with their `total`, `bound_ms` (time
        to read them) with its share, GB/s, and for each reference that was timed the median and
        the quartiles of the ratios within a round.
    """
    return {
        name: {
            **_times(arm["seconds"], steps),
            **_reading(
                arm["bytes"],
                _times(arm["seconds"], steps)["ms_per_token"],
                max(gb_per_s, arm.get("cached_gb_per_s") or 0.0),
            ),
            "prefill_ms": 1000 * arm["prefill_seconds"],
            **_ratios(arm["seconds"], arms),
            **{
                key: value
                for key, value in arm.items()
                if key not in ("seconds", "bytes", "prefill_seconds")
            },
        }
        for name, arm in arms.items()
    }


def pass_figures(seconds: Sequence[float], steps: int) -> dict[str, float]:
    """Median and quartiles of ms per token over passes of `steps` decode steps."""
    return _times(seconds, steps)


def impossible(arms: Arms) -> list[str]:
    """Arms that would have read faster than the memory can, the worst first."""
    shares = {n: a["bound_share"] for n, a in arms.items() if a["bound_share"] is not None}
    return sorted((n for n, s in shares.items() if s > 1), key=lambda n: -shares[n])


def _times(seconds: Sequence[float], steps: int) -> dict[str, float]:
    low, middle, high = _quartiles([1000 * second / steps for second in seconds])
    return {"ms_per_token": middle, "q1": low, "q3": high}


def _reading(
    kinds: Mapping[str, float] | None, ms_per_token: float, gb_per_s: float
) -> dict[str, Any]:
    if kinds is None:
        return {"bound_ms": None, "bound_share": None, "gb_per_s": None, "bytes": None}
    total = sum(kinds[kind] for kind in KINDS)
    bound = total / gb_per_s / 1e6
    return {
        "bound_ms": bound,
        "bound_share": bound / ms_per_token,
        "gb_per_s": total / ms_per_token / 1e6,
        "bytes": {**{kind: kinds[kind] for kind in KINDS}, "total": total},
    }


def _ratios(seconds: Sequence[float], arms: Arms) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for key, names in REFERENCES.items():
        keys = (f"{key}_q1", key, f"{key}_q3")
        timed = [name for name in names if name in arms]
        if not timed:
            found |= dict.fromkeys(keys)
            continue
        pairs = zip(seconds, arms[timed[0]]["seconds"], strict=True)
        found |= zip(keys, _quartiles([own / other for own, other in pairs]), strict=True)
    return found


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
    return low, middle, high
