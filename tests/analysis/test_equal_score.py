"""Time at equal score: cuts of curves worked out by hand, and what the picture says of them."""

from __future__ import annotations

from typing import Any

import pytest
from invented import NOT_GRADED, fidelity, matched, summary
from matplotlib.figure import Figure
from matplotlib.text import Text

from river_llm.analysis.equal_score import (
    Curve,
    Cut,
    TimedPoint,
    curves,
    cut,
    cuts,
    default_levels,
    reference_ms,
    score_of,
)
from river_llm.analysis.equal_score_plot import equal_score_figure
from river_llm.errors import UserError


def points(*pairs: tuple[float, float]) -> tuple[TimedPoint, ...]:
    """Points from (score, ms), deeper and deeper."""
    return tuple(TimedPoint(depth, score, ms) for depth, (score, ms) in enumerate(pairs))


CUTS = {
    "between two points": (points((0.2, 10), (0.6, 20)), 0.3, Cut("reached", 12.5, 0.3)),
    "in the second stretch": (
        points((0.2, 10), (0.4, 12), (0.8, 20)),
        0.5,
        Cut("reached", 14.0, 0.5),
    ),
    "on a point": (points((0.2, 10), (0.6, 20)), 0.6, Cut("reached", 20, 0.6)),
    "falling with depth": (points((0.9, 10), (0.5, 30)), 0.8, Cut("reached", 15.0, 0.8)),
    # Up, down and up again: crossed at 15, 22.5 and 26.
    "crossed thrice": (
        points((0.2, 10), (0.6, 20), (0.2, 25), (0.7, 27.5)),
        0.4,
        Cut("reached", 15.0, 0.4),
    ),
    "the later crossing is faster": (
        points((0.2, 30), (0.6, 20), (0.2, 10)),
        0.4,
        Cut("reached", 15.0, 0.4),
    ),
    "never that good": (points((0.2, 10), (0.6, 20)), 0.61, Cut("not reached")),
    "one point below": (points((0.2, 10)), 0.5, Cut("not reached")),
    "always better": (points((0.7, 15), (0.9, 12)), 0.5, Cut("exceeded", 12, 0.9)),
    "one point above": (points((0.7, 15)), 0.5, Cut("exceeded", 15, 0.7)),
}


@pytest.mark.parametrize("case", CUTS)
def test_a_cut_by_hand(case: str) -> None:
    curve, level, expected = CUTS[case]
    found = cut(curve, level)
    assert (found.kind, found.score) == (expected.kind, expected.score)
    assert found.ms == (None if expected.ms is None else pytest.approx(expected.ms))


def run(method: str, depth: float, agreement: float, ratio: float, **changes: Any) -> Any:
    settings = {"criterion": {"name": "similarity", "tau": depth / 100}, "engine": "compiled"}
    if method == "river":
        settings["prefill"] = "sequence"
    fields = {
        "method": method,
        "arm": f"{method} {depth}",
        "identity": f"{method}{depth}",
        "settings": settings,
        "exit_depth": {"mean": depth, "layers": 30, "histogram": []},
        "fidelity": fidelity(agreement, mean_depth=depth),
        "speedup": matched(ratio, no_exit_ms_per_token=10.0, mean_depth=depth),
    }
    return summary(**{**fields, **changes})


RUNS = [
    run("no_exit", 30, 1.0, 1.02),
    run("river", 15, 0.9, 1.25),
    run("river", 3, 0.8, 2.0),
    run("mask", 20, 0.4, 1.5),
    run("mask", 27, 0.6, 1.0),
]


def test_a_curve_is_ordered_by_depth_and_timed_against_no_exit() -> None:
    found = {curve.line: curve for curve in curves(RUNS, "agreement")}
    assert list(found) == ["no_exit", "river, prefill sequence", "mask"]
    assert found["river, prefill sequence"].points == (
        TimedPoint(3, 0.8, 5.0),
        TimedPoint(15, 0.9, 8.0),
    )
    # no_exit stands at 1 by definition, whatever its clock said of itself.
    assert found["no_exit"].points == (TimedPoint(30, 1.0, 10.0),)
    at = cuts(list(found.values()), 0.5)
    assert at["mask"].ms == pytest.approx((10 / 1.5 + 10) / 2)
    assert at["river, prefill sequence"] == Cut("exceeded", 5.0, 0.8)


def test_a_slow_hour_does_not_count_against_what_ran_in_it() -> None:
    slow = run("mask", 27, 0.6, 1.0)
    slow["speedup"]["decode"]["matched"]["no_exit_ms_per_token"] = 40.0
    assert reference_ms([*RUNS[:4], slow]) == 10.0
    assert curves([*RUNS[:4], slow], "agreement") == curves(RUNS, "agreement")


def test_points_without_a_figure_are_left_out() -> None:
    untimed = run("mask", 20, 0.4, 1.5, speedup={"decode": {"matched": None}})
    unscored = run("river", 3, 0.8, 2.0, fidelity=None)
    found = curves([RUNS[0], untimed, unscored], "agreement")
    assert [curve.line for curve in found] == ["no_exit"]
    with pytest.raises(UserError, match=r"none of these runs was timed"):
        curves([untimed], "agreement")


def graded(value: float, low: float, count: int = 200) -> dict[str, Any]:
    return {"value": value, "low": low, "high": value + 0.1, "graded": count, "extra": {}}


@pytest.mark.parametrize(
    ("of_no_exit", "of_arm", "expected"),
    [
        (graded(0.3, 0.24), graded(0.25, 0.19), "accuracy"),
        (graded(0.04, 0.02), graded(0.25, 0.19), "agreement"),  # no_exit itself cannot do it
        (graded(0.3, 0.24), NOT_GRADED, "agreement"),
        (graded(0.3, 0.24), graded(0.25, 0.1, count=29), "agreement"),
    ],
)
def test_accuracy_is_the_score_only_where_it_tells_something(
    of_no_exit: Any, of_arm: Any, expected: str
) -> None:
    runs = [
        run("no_exit", 30, 1.0, 1.0, accuracy=of_no_exit),
        run("river", 3, 0.8, 2.0, accuracy=of_arm),
    ]
    assert score_of(runs) == expected


def test_without_no_exit_accuracy_has_no_floor_to_be_above() -> None:
    assert score_of([run("river", 3, 0.8, 2.0, accuracy=graded(0.3, 0.24))]) == "agreement"


def test_levels_of_accuracy_are_shares_of_no_exits_own() -> None:
    runs = [
        run("no_exit", 30, 1.0, 1.0, accuracy=graded(0.3, 0.24)),
        run("river", 3, 0.8, 2.0, accuracy=graded(0.2, 0.15)),
    ]
    found = curves(runs, "accuracy")
    assert default_levels(found, "accuracy") == pytest.approx((0.15, 0.27))
    assert [curve.points[0].score for curve in found] == [0.3, 0.2]
    assert default_levels(found, "agreement") == (0.5, 0.9)
    with pytest.raises(UserError, match="no no_exit run"):
        default_levels(found[1:], "accuracy")


def words(fig: Figure) -> list[str]:
    return [text.get_text() for text in fig.findobj(Text) if text.get_text()]


def test_the_picture_says_what_is_not_reached_and_what_is_exceeded() -> None:
    fig = equal_score_figure(curves(RUNS, "agreement"), "agreement", (0.5, 0.85), "title", ["n."])
    _, low, high = fig.axes
    rows = ["no_exit", "river, prefill sequence", "mask"]
    assert [label.get_text() for label in low.get_yticklabels()] == rows

    def told(panel: Any) -> list[str]:
        return [text.get_text() for text in panel.texts]

    assert told(low) == ["10.0", "5.0, scores 80 %", "8.3"]
    assert told(high) == ["10.0", "6.5", "not reached"]
    assert [round(bar.get_width(), 2) for bar in high.patches] == [10.0, 6.5]
    # Only what was not cut is hatched, no_exit aside.
    assert [bar.get_hatch() for bar in low.patches] == [None, "////", None]
    assert low.get_xlim() == high.get_xlim()
    assert "n." in words(fig)


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(UserError, match="no run has both"):
        equal_score_figure([], "agreement", (0.5,), "title")
    with pytest.raises(UserError, match="no score to compare at"):
        equal_score_figure([Curve("a", "mask", points((0.1, 1)))], "agreement", (), "title")
