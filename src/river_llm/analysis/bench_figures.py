"""Figures of a decode benchmark, from the seconds of its passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Arms = Mapping[str, Mapping[str, Any]]
"""Figures by the arm's name, as :func:`arm_figures` gives them."""

KINDS = ("backbone", "river", "head", "kv", "other")
TESTED = "no_exit~"
"""Begins the names of arms that test at every depth and never exit."""
CLOCK_TOLERANCE = 0.05
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
        the quartiles of the ratios within a round. `no_exit~tau` has `test_us`, the microseconds
        that an exit test takes (median and quartiles over rounds), and each `river@d` the
        `test_share` that testing at every depth up to d would be of its step.
    """
    figures: dict[str, dict[str, Any]] = {
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
    tested = [name for name in arms if name.startswith(TESTED) and arms[name]["mean_tests"]]
    for name in tested if "no_exit" in arms else ():
        figures[name] |= _test_cost(arms[name], arms["no_exit"], steps)
        for river in [own for own in arms if own.startswith("river@")]:
            tests_ms = figures[name]["test_us"] * arms[river]["mean_depth"] / 1000
            figures[river]["test_share"] = tests_ms / figures[river]["ms_per_token"]
    return figures


def _test_cost(tested: Mapping[str, Any], plain: Mapping[str, Any], steps: int) -> dict[str, float]:
    """Microseconds of one exit test: what a round's pass took more than no_exit's, per test."""
    tests = steps * tested["mean_tests"]
    pairs = zip(tested["seconds"], plain["seconds"], strict=True)
    keys = ("test_us_q1", "test_us", "test_us_q3")
    values = _quartiles([1e6 * (own - other) / tests for own, other in pairs])
    return dict(zip(keys, values, strict=True))


def pass_figures(seconds: Sequence[float], steps: int) -> dict[str, float]:
    """Median and quartiles of ms per token over passes of `steps` decode steps."""
    return _times(seconds, steps)


def clocks_apart(arms: Arms) -> dict[str, float]:
    """Arms whose time by the device's own clock is not the wall clock's: the ratio of the two."""
    shares = {name: arm.get("device_share") for name, arm in arms.items()}
    return {n: s for n, s in shares.items() if s is not None and abs(s - 1) > CLOCK_TOLERANCE}


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
