"""The picture of time to first token over the prompt's length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from river_llm.analysis.figures import plain_axes
from river_llm.analysis.provenance import captioned
from river_llm.analysis.styles import GREY, line_looks
from river_llm.errors import UserError

WIDTH, HEIGHT = 10.0, 4.4
REFERENCE = "no_exit"
FAMILIES = {"river, prefill sequence": "river", "river, prefill backbone": "river backbone"}


def prefill_figure(
    points: Sequence[dict[str, Any]], title: str, notes: Sequence[str] = ()
) -> Figure:
    """Draw milliseconds over the prompt's length, and beside it the ratio to no_exit.

    Args:
        points: see :func:`river_llm.analysis.prefill.summarize_prefill`.
        title: of the figure.
        notes: the caption, below the picture.

    Raises:
        UserError: no points, or none of no_exit.
    """
    reference = {p["length"]: p["median_ms"] for p in points if p["arm"] == REFERENCE}
    if not reference:
        raise UserError("no time of no_exit to compare with: run scripts/measure_prefill.py")
    fig, upper = captioned((WIDTH, HEIGHT), notes)
    times, ratios = upper.subplots(1, 2)
    arms = list(dict.fromkeys(point["arm"] for point in points))
    looks = line_looks({arm: FAMILIES.get(arm, arm) for arm in arms})
    for place, arm in enumerate(arms):
        own = sorted((p for p in points if p["arm"] == arm), key=lambda p: int(p["length"]))
        look = looks[arm]
        # Bars of arms at one length would hide one another.
        xs = [p["length"] * 1.03 ** (place - (len(arms) - 1) / 2) for p in own]
        ys = [p["median_ms"] for p in own]
        below = [p["median_ms"] - p["low_ms"] for p in own]
        above = [p["high_ms"] - p["median_ms"] for p in own]
        style = {"color": look.color, "linestyle": look.dash, "linewidth": 1.6}
        times.errorbar(
            xs, ys, yerr=[below, above], label=arm, elinewidth=1, **style, **look.markers(5)
        )
        shared = [
            (p["length"], p["median_ms"] / reference[p["length"]])
            for p in own
            if p["length"] in reference
        ]
        ratios.plot(*zip(*shared, strict=True), label=arm, **style, **look.markers(5))
    for axes in (times, ratios):
        _lengths(axes, sorted({int(point["length"]) for point in points}))
    times.set_yscale("log")
    times.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    times.yaxis.set_minor_locator(NullLocator())
    times.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    times.set_ylabel("Time to first token, ms (median, quartiles)")
    ratios.set_ylabel("Time over no_exit's (below 1: faster)")
    ratios.set_ylim(bottom=0)
    ratios.axhline(1, color=GREY, linewidth=0.8, zorder=1)
    upper.suptitle(title, fontsize=12, fontweight="bold")
    handles, labels = times.get_legend_handles_labels()
    upper.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return fig


def _lengths(axes: Axes, lengths: Sequence[int]) -> None:
    plain_axes(axes)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(lengths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(length) for length in lengths])
    axes.set_xlabel("Prompt, tokens")
