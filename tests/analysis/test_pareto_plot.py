"""The picture of a sweep: lines, front, limits, labels, and what is said to be missing."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from invented import NOT_GRADED, fidelity, matched, summary
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon
from matplotlib.text import Annotation, Text

from river_llm.analysis.figures import write_figure
from river_llm.analysis.pareto_marks import MEASURES, bound_corners, mark_of, near_marks
from river_llm.analysis.pareto_plot import pareto_figure
from river_llm.analysis.plots import accuracy_speed_figure
from river_llm.analysis.points import operating_points
from river_llm.analysis.saved import MissingRun
from river_llm.analysis.styles import STYLES, line_looks
from river_llm.errors import UserError

LAYERS = 30


def run(
    method: str,
    depth: float,
    speed: float | None,
    agreement: float | None,
    settings: dict[str, Any] | None = None,
    *,
    bound: float | None = 2.5,
    flags: tuple[str, ...] = (),
    **changes: Any,
) -> dict[str, Any]:
    loss = None if agreement is None else 0.75 * (1 - agreement)
    scores = fidelity(
        agreement,
        agreement_low=None if agreement is None else agreement - 0.02,
        agreement_high=None if agreement is None else min(agreement + 0.02, 1),
        excess_nll=loss,
        excess_nll_low=None if loss is None else 0.8 * loss,
        excess_nll_high=None if loss is None else 1.2 * loss,
        mean_depth=depth,
    )
    given = {"engine": "eager", "dtype": "bf16", "prefill": "backbone", **(settings or {})}
    timing = matched(speed, bound_speedup=bound, flags=list(flags))
    fields = {"method": method, "arm": method, "settings": given, "fidelity": scores}
    return summary(**{**fields, "speedup": timing, **changes})


def similarity(tau: float, name: str = "similarity") -> dict[str, Any]:
    return {"criterion": {"name": name, "tau": tau, "min_depth": 1, "max_depth": None}}


def no_exit() -> dict[str, Any]:
    none = {"decode": {"matched": None}}
    return run("no_exit", LAYERS, None, None, fidelity=None, speedup=none)


def static(k: int) -> dict[str, Any]:
    return {"method": {"name": "static_first", "k": k}}


def sweep() -> list[dict[str, Any]]:
    """About as many points and lines as a real one, most of them close to each other."""
    found = [no_exit(), run("quant_decode", 0, 2.05, 0.905, bound=2.2)]
    taus = [(0.5, 1), (0.9, 3), (0.96, 4), (0.985, 8), (0.99, 15), (0.9932, 22), (0.9999, 30)]
    for prefill, loss in (("sequence", 0.06), ("backbone", 0.0)):
        for tau, depth in taus:
            left = 1 - depth / LAYERS
            settings = {"prefill": prefill, **similarity(tau)}
            found.append(
                run("river", depth, 0.78 + 1.25 * left, 1 - (0.09 + loss) * left, settings)
            )
    for tau, depth in ((0.5, 8), (0.8, 16), (0.95, 23)):
        settings = similarity(tau, "confidence")
        found.append(run("river", depth, 0.8 - 0.003 * depth, 0.9 + 0.003 * depth, settings))
    for depth in (0, 1, 2, 3, 4, 8, 15, 22):
        left = 1 - depth / LAYERS
        settings = {"criterion": {"name": "fixed", "depth": depth}}
        found.append(run("river", depth, 1 + 1.1 * left, 1 - 0.088 * left, settings))
    for method, gain in (("static_first", 0.0), ("static_last", 0.01), ("static_ranked", 0.02)):
        for k in (1, 3, 8, 15, 22):
            left = 1 - k / LAYERS
            settings = {"method": {"name": method, "k": k}}
            found.append(run(method, k, 1 + 1.12 * left, 1 - (0.09 - gain) * left, settings))
    for group_size, agreement in ((32, 0.86), (64, 0.827)):
        quant = {"quant": {"name": "hqq_int4", "group_size": group_size}}
        found.append(run("full_quant", 0, 2.1 - group_size / 1000, agreement, quant))
    for i, method in enumerate(("recompute", "mask", "state_propagation", "mono_decreasing")):
        for depth, agreement in ((28, 0.75), (25, 0.6), (15, 0.4), (8, 0.22)):
            settings = similarity(depth / LAYERS)
            speed = 1.9 - 0.03 * depth + 0.04 * i
            found.append(run(method, depth, speed, agreement - 0.01 * i, settings))
    return found


def draw(summaries: list[dict[str, Any]], *arguments: Any) -> Figure:
    return pareto_figure(operating_points(summaries), *arguments)


def drawn_lines(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The methods' lines, by name."""
    return {
        str(line.get_label()): [
            (float(x), pytest.approx(float(y)))
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
        ]
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def by_gid(axes: Axes, gid: str) -> Any:
    (found,) = [artist for artist in axes.get_children() if artist.get_gid() == gid]
    return found


def ringed(axes: Axes) -> list[tuple[float, float]]:
    rings = by_gid(axes, "front points")
    assert isinstance(rings, Line2D) and rings.get_marker() == "o"
    return [
        (float(x), pytest.approx(float(y)))
        for x, y in zip(rings.get_xdata(), rings.get_ydata(), strict=True)
    ]


def words(fig: Figure) -> str:
    """All text of the picture, however it is wrapped."""
    return " ".join(" ".join(text.get_text() for text in fig.findobj(Text)).split())


def legend(fig: Figure) -> list[str]:
    (found,) = fig.subfigs[0].legends
    return [text.get_text() for text in found.get_texts()]


FEW = [
    no_exit(),
    run("river", 20, 1.2, 0.97, similarity(0.99), bound=1.3),
    run("river", 8, 1.6, 0.93, similarity(0.9), bound=1.8),
    run("river", 15, 1.4, 0.92, similarity(0.95), bound=1.5),  # slower and worse than tau 0.9
    run("static_first", 3, 1.9, 0.91, static(3), bound=2.0),
    run("static_first", 15, 1.3, 0.97, static(15), bound=1.5),  # faster than tau 0.99, and as good
    run("river", 8, 0.7, 0.95, similarity(0.5, "confidence"), bound=1.8),
]
CONFIDENCE = "river, prefill backbone, confidence (reads the head at every tested layer)"


def test_each_method_is_one_line_through_its_points_by_rising_speed() -> None:
    (axes,) = (panel for panel in draw(FEW).axes)
    assert drawn_lines(axes) == {
        "no_exit": [(1.0, 100.0)],
        "river, prefill backbone": [(1.2, 97.0), (1.4, 92.0), (1.6, 93.0)],
        CONFIDENCE: [(0.7, 95.0)],
        "static_first": [(1.3, 97.0), (1.9, 91.0)],
    }


def test_points_that_none_beats_are_ringed() -> None:
    (axes,) = draw(FEW).axes
    assert ringed(axes) == [(1.0, 100.0), (1.3, 97.0), (1.6, 93.0), (1.9, 91.0)]


def test_front_is_a_step_line_that_falls_behind_each_point() -> None:
    (axes,) = draw(FEW).axes
    stairs = by_gid(axes, "front")
    # "pre": between two points the front has the y of the faster one, which both speeds allow.
    assert stairs.get_drawstyle() == "steps-pre"
    assert list(stairs.get_xdata()) == [axes.get_xlim()[0], 1.0, 1.3, 1.6, 1.9]
    assert list(stairs.get_ydata()) == [pytest.approx(y) for y in (100, 100, 97, 93, 91)]


def hatched(axes: Axes, x: float, y: float) -> bool:
    region = by_gid(axes, "bound")
    assert isinstance(region, Polygon) and region.get_hatch()
    return bool(region.get_path().contains_point((x, y)))


def test_what_no_setting_can_reach_is_hatched() -> None:
    (axes,) = draw(FEW).axes
    # Bounds: 1.3 and 1.5 at 97 %, 1.8 at 95 % and 93 %, 1.5 at 92 %, 2.0 at 91 %.
    for x, y in ((1.49, 96.9), (1.79, 94.9), (1.99, 90.9), (1.2, 98.0)):
        assert not hatched(axes, x, y)
    for x, y in ((1.51, 96.9), (1.51, 98.0), (1.81, 94.9), (1.81, 92.9), (2.01, 90.0)):
        assert hatched(axes, x, y)


def test_excess_nll_has_better_above_and_hatches_the_same_settings() -> None:
    (axes,) = draw(FEW, "excess_nll").axes
    bottom, top = axes.get_ylim()
    assert bottom > 0.75 * 0.09 and top < 0
    assert ringed(axes) == [(1.0, 0.0), (1.3, 0.0225), (1.6, 0.0525), (1.9, 0.0675)]
    assert hatched(axes, 1.51, 0.03) and not hatched(axes, 1.51, 0.04)


def test_corners_of_the_limit_follow_the_definition() -> None:
    marks = [m for p in operating_points(sweep()) if (m := mark_of(p, "agreement")) is not None]
    corners = bound_corners(marks, MEASURES["agreement"])
    candidates = {(m.point.bound, m.y) for m in marks if not m.point.is_reference}
    expected = {
        one
        for one in candidates
        if not any(
            other != one and other[0] >= one[0] and other[1] >= one[1] for other in candidates
        )
    }
    assert set(corners) == expected and corners == sorted(corners)


def test_reach_is_not_hatched_where_no_bound_was_measured() -> None:
    given = [no_exit(), run("river", 8, 1.6, 0.93, similarity(0.9), bound=None)]
    fig = draw(given)
    assert not [a for a in fig.axes[0].get_children() if a.get_gid() == "bound"]
    assert not any("out of reach" in text for text in legend(fig))
    assert "No bound, so without a share in the limit: river, prefill backbone tau=0.9." in words(
        fig
    )


def test_error_bars_are_the_intervals_both_ways() -> None:
    (axes,) = draw([run("river", 8, 1.6, 0.93, similarity(0.9))]).axes
    (bar,) = axes.containers
    ends = [collection.get_segments()[0].tolist() for collection in bar[2]]
    assert ends == [
        [[pytest.approx(1.5), pytest.approx(93)], [pytest.approx(1.7), pytest.approx(93)]],
        [[pytest.approx(1.6), pytest.approx(91)], [pytest.approx(1.6), pytest.approx(95)]],
    ]
    (axes,) = draw([run("river", 8, 1.6, 0.93, similarity(0.9))], "accuracy").axes
    (bar,) = axes.containers
    (wilson,) = bar[2][1].get_segments()
    assert wilson[:, 1].tolist() == [pytest.approx(3.6), pytest.approx(62.4)]


def test_agreement_has_its_interval_in_the_figure_of_few_arms_too() -> None:
    (axes,) = accuracy_speed_figure([run("river", 8, 1.6, 0.93)], "agreement").axes
    (bar,) = axes.containers
    (interval,) = bar[2][1].get_segments()
    assert interval[:, 1].tolist() == [pytest.approx(91), pytest.approx(95)]


def test_collapsed_methods_do_not_squash_the_others() -> None:
    fig = draw(sweep())
    main, overview = fig.axes
    low, high = main.get_ylim()
    assert low > 75 and high < 102
    assert overview.get_ylim()[0] < 22
    # 60 points, 16 of them below 80 %.
    assert main.get_title("left").startswith("44 of 60 points: agreement with no_exit of 80 %")
    assert overview.get_title("left") == "all 60 points (frame: left panel)"
    labels = {text.get_text() for text in overview.texts}
    assert labels == {"τ=0.933333", "τ=0.833333", "τ=0.5", "τ=0.266667"}


def test_one_panel_where_nothing_collapses_or_everything() -> None:
    assert len(draw(FEW).axes) == 1
    collapsed = [no_exit(), run("mask", 25, 1.1, 0.6, similarity(0.5))]
    assert len(draw(collapsed).axes) == 1
    marks = [m for p in operating_points(collapsed) if (m := mark_of(p, "agreement"))]
    assert near_marks(marks, MEASURES["agreement"]) == marks


def test_labels_are_settings_inside_the_panel_and_cover_no_other() -> None:
    fig = draw(sweep())
    main, overview = fig.axes
    assert len(main.texts) == 44 and len(overview.texts) == 16
    fig.draw_without_rendering()
    for axes in (main, overview):
        boxes = [Text.get_window_extent(text) for text in axes.texts]
        for box in boxes:
            assert axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            assert axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1
        assert not any(
            one.width * one.height and _share(one, other) > 0.1
            for one, other in itertools.permutations(boxes, 2)
        )
    labels = {text.get_text() for text in main.texts}
    assert {"no_exit", "τ=0.9932", "k=3", "d=15", "quant_decode", "full_quant hqq_int4 g32"} <= (
        labels
    )


def _share(one: Any, other: Any) -> float:
    """Share of a box that another one covers."""
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(width, 0) * max(height, 0) / (one.width * one.height))


def test_labels_keep_their_place_at_another_resolution() -> None:
    # SVG and PDF count 72 dots per inch, the layout was made at 150.
    fig = draw(FEW)
    places = []
    for dpi in (150, 72):
        fig.set_dpi(dpi)
        fig.draw_without_rendering()
        texts = [text for text in fig.axes[0].texts if isinstance(text, Annotation)]
        places.append(
            [Text.get_window_extent(text).get_points() / dpi for text in texts]  # inches
        )
    for big, small in zip(*places, strict=True):
        assert small == pytest.approx(big, abs=0.03)


def test_nothing_of_the_text_around_the_panels_is_cut_off_or_covered() -> None:
    missing = [MissingRun(f"exp=gsm8k method=mask criterion.tau=0.{i}", "failed") for i in range(9)]
    unmeasured = [run("river", 8, None, 0.9, similarity(i / 50)) for i in range(40)]
    fig = pareto_figure(operating_points([*sweep(), *unmeasured]), "agreement", missing)
    fig.draw_without_rendering()
    upper, lower = fig.subfigs
    (found,) = upper.legends
    (notes,) = lower.texts
    boxes = [found.get_window_extent(), notes.get_window_extent()]
    boxes += [axes.get_tightbbox() for axes in fig.axes]
    for box in boxes:
        assert box.x0 >= 0 and box.x1 <= fig.bbox.x1 and box.y0 >= 0 and box.y1 <= fig.bbox.y1
    assert boxes[1].y1 <= boxes[0].y0 + 1
    assert not any(found.get_window_extent().overlaps(axes.bbox) for axes in fig.axes)


def test_legend_names_the_lines_that_are_drawn_and_the_marks() -> None:
    ungraded = [{**one, "accuracy": NOT_GRADED} for one in FEW if one["method"] == "static_first"]
    graded = [one for one in FEW if one["method"] != "static_first"]
    assert legend(draw([*graded, *ungraded], "accuracy")) == [
        "no_exit",
        "river, prefill backbone",
        CONFIDENCE,
        "Pareto front: no point is both faster and better",
        "out of reach: faster than the bytes read allow, at any setting here",
        "thin bars: 95 % intervals",
    ]
    assert "noise floor: another implementation of no_exit" in legend(draw(FEW))


def test_noise_floor_is_a_band_up_to_no_exit() -> None:
    bands = [patch for patch in draw(FEW).axes[0].patches if patch.get_gid() != "bound"]
    (band,) = bands
    assert band.get_bbox().y0 == pytest.approx(98.7) and band.get_bbox().y1 == 100


def test_missing_figures_are_named() -> None:
    given = [
        *FEW,
        run("static_first", 8, None, 0.95, static(8)),
        run("static_first", 9, float("nan"), 0.95, static(9)),
        run("mask", 25, 1.1, None, similarity(0.5)),
        run("quant_decode", 0, 2.0, 0.9, flags=("reference below par",)),
    ]
    missing = [MissingRun(f"cell {i}", "failed: no model") for i in range(8)]
    text = words(pareto_figure(operating_points(given), "agreement", missing))
    assert "Not drawn, no speedup: static_first k=8, k=9." in text
    assert "Not drawn, no agreement with no_exit: mask tau=0.5." in text
    assert "! reference below par: quant_decode." in text
    assert " quant_decode ! " in text
    assert "cell 5 (failed: no model); and 2 more, see the table" in text
    floorless = [one for one in given if one["fidelity"] is None]
    assert "Noise floor: not run." in words(draw(floorless))


def test_counts_are_said() -> None:
    text = words(draw(FEW))
    assert "Agreement with no_exit over 320 tokens of 5 answers" in text
    assert "speedup paired with no_exit over 2 prompts" in text
    assert "Accuracy over 5 graded answers" in words(draw(FEW, "accuracy"))


def test_lines_are_told_apart_without_colour() -> None:
    points = operating_points(sweep())
    looks = line_looks({point.line: point.family for point in points})
    assert len({(look.marker, look.fill) for look in looks.values()}) == len(looks) == 15
    markers = [marker for _, marker in STYLES.values()]
    assert len(set(markers)) == len(markers)
    greys = {"#6b6b6b"}
    dashes = [str(look.dash) for look in looks.values() if look.color in greys]
    assert len(dashes) == len(set(dashes)) == 3


def test_variants_of_one_method_differ_in_dashes_and_filling() -> None:
    looks = line_looks({f"full_quant, {i}": "full_quant" for i in range(5)})
    assert len({str(look.dash) for look in looks.values()}) == 5
    assert len({look.fill for look in looks.values()}) == 5
    assert len({look.color for look in looks.values()}) == 1


def test_figures_of_two_tasks_do_not_share_a_front() -> None:
    with pytest.raises(UserError, match="GSM-mini, tiny; HumanEval, tiny cannot share a front"):
        draw([*FEW, run("river", 8, 1.6, 0.93, label="HumanEval")])
    with pytest.raises(UserError, match="no points to draw"):
        draw([])


def test_panel_without_any_figure_says_so() -> None:
    assert "not run" in [t.get_text() for t in draw([run("mask", 25, None, None)]).axes[0].texts]


def test_three_files_are_written_and_stay_the_same(tmp_path: Path) -> None:
    paths = write_figure(draw(FEW), tmp_path / "new" / "front.v1")
    assert [path.name for path in paths] == ["front.v1.png", "front.v1.svg", "front.v1.pdf"]
    starts = [b"\x89PNG\r\n\x1a\n", b"<?xml", b"%PDF-"]
    for path, start in zip(paths, starts, strict=True):
        assert path.read_bytes().startswith(start) and path.stat().st_size > 5000
    for old, new in zip(paths, write_figure(draw(FEW), tmp_path / "again"), strict=True):
        assert old.read_bytes() == new.read_bytes()
