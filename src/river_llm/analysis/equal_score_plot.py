"""The picture of time per token at equal score: curves, and bars where they are cut."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from river_llm.analysis.cells import REFERENCE_METHOD
from river_llm.analysis.equal_score import Curve, Cut, Score, cut
from river_llm.analysis.figures import plain_axes
from river_llm.analysis.provenance import captioned
from river_llm.analysis.styles import GREY, OTHER_STYLE, STYLES, line_looks
from river_llm.errors import UserError

SCORES: dict[Score, str] = {
    "agreement": "Same next token as no_exit, %",
    "accuracy": "Correct answers, %",
}
LEVEL_WORDS: dict[Score, str] = {"agreement": "agreement", "accuracy": "accuracy"}
WIDTH, HEIGHT = 12.5, 5.0


def equal_score_figure(
    curves: Sequence[Curve],
    score: Score,
    levels: Sequence[float],
    title: str,
    notes: Sequence[str] = (),
) -> Figure:
    """Draw score against time on the left, and the time of each method at each level as bars.

    A method that never scores so much has no bar but the words `not reached`; one whose every
    measured setting scores more has the bar of its fastest setting, hatched, with that score.

    Args:
        curves: of one task and model, in the order of legends.
        score: what is on the curves' y axis.
        levels: shares at which the methods are compared, one at least.
        title: of the figure.
        notes: the caption, below the picture.

    Raises:
        UserError: no curves or no levels.
    """
    if not curves:
        raise UserError("no run has both a time and a score: run the cells of the sweep first")
    if not levels:
        raise UserError("no score to compare at: give one or more levels")
    size = (WIDTH, max(HEIGHT, 0.42 * len(curves) + 1.6))
    fig, upper = captioned(size, notes)
    panels = upper.subplots(1, 1 + len(levels), width_ratios=[1.25, *[1] * len(levels)])
    _curves(panels[0], curves, score, levels)
    for place, (axes, level) in enumerate(zip(panels[1:], levels, strict=True)):
        _bars(axes, curves, level)
        axes.set_title(f"at {100 * level:.0f} % {LEVEL_WORDS[score]}", loc="left", fontsize=10)
        if place:
            axes.set_yticklabels([])
    longest = max(panel.get_xlim()[1] for panel in panels[1:])
    for panel in panels[1:]:
        panel.set_xlim(0, longest)
        panel.set_xlabel("ms per token (left: faster)")
    upper.suptitle(title, fontsize=12, fontweight="bold")
    return fig


def _curves(axes: Axes, curves: Sequence[Curve], score: Score, levels: Sequence[float]) -> None:
    plain_axes(axes)
    looks = line_looks({curve.line: curve.family for curve in curves})
    for curve in curves:
        look = looks[curve.line]
        axes.plot(
            [point.ms for point in curve.points],
            [100 * point.score for point in curve.points],
            color=look.color,
            linewidth=look.width,
            label=curve.line,
            zorder=3,
            **look.markers(6),
        )
    for level in levels:
        axes.axhline(100 * level, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set_ylim(0, max(104.0, axes.get_ylim()[1]) if score == "agreement" else None)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("ms per token (left: faster)")
    axes.set_ylabel(SCORES[score])
    axes.set_title("measured settings, colours as in the bars", loc="left", fontsize=10)


def _bars(axes: Axes, curves: Sequence[Curve], level: float) -> None:
    plain_axes(axes)
    axes.grid(axis="y", visible=False)
    found = [cut(curve.points, level) for curve in curves]
    for row, (curve, place) in enumerate(zip(curves, found, strict=True)):
        color = STYLES.get(curve.family, OTHER_STYLE)[0]
        if place.ms is not None:
            beyond = place.kind == "exceeded" and curve.family != REFERENCE_METHOD
            axes.barh(
                row,
                place.ms,
                height=0.66,
                color="white" if beyond else color,
                edgecolor=color,
                hatch="////" if beyond else None,
                linewidth=1.2,
            )
        axes.annotate(
            _words(place, curve.family),
            (place.ms or 0, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=GREY if place.ms is None else "black",
            style="italic" if place.ms is None else "normal",
        )
    axes.set_yticks(range(len(curves)), [curve.line for curve in curves], fontsize=9)
    axes.set_ylim(len(curves) - 0.4, -0.6)
    axes.set_xlim(0, 1.5 * max([place.ms for place in found if place.ms is not None] or [1.0]))
    axes.tick_params(axis="y", length=0)


def _words(place: Cut, family: str) -> str:
    if place.ms is None or place.score is None:
        return "not reached"
    # no_exit's score is 100 % agreement by definition, and it has no faster setting.
    if place.kind == "exceeded" and family != REFERENCE_METHOD:
        return f"{place.ms:.1f}, scores {100 * place.score:.0f} %"
    return f"{place.ms:.1f}"
