"""Tables of operating points: all of them, and what each method reaches at a fidelity target."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pandas as pd

from river_llm.analysis import cells
from river_llm.analysis.points import (
    OperatingPoint,
    comparisons,
    lines,
    noise_floor,
    percents,
    with_interval,
)
from river_llm.analysis.saved import MissingRun
from river_llm.analysis.tables import few_prompts

TARGET = 0.95
"""Share of tokens on which a method should agree with no_exit."""

TEXT_COLUMNS = ("Task", "Model", "Method", "Setting", "Reaches", "Run", "Note")
_SHARED = (
    "Setting",
    "Mean depth",
    "Speedup [95%]",
    "Bound",
    "Agreement % [95%]",
    "Excess NLL [95%]",
)
_ALL_COLUMNS = ("Task", "Model", "Method", *_SHARED, "Accuracy % [95%]", "Run", "Note")
_TARGET_COLUMNS = ("Task", "Model", "Method", "Target %", "Reaches", *_SHARED)


def target(points: Sequence[OperatingPoint]) -> float:
    """The agreement to reach: 0.95, or the noise floor where that is lower."""
    floor = noise_floor(points)
    return TARGET if floor is None else min(TARGET, floor)


def fastest_at(
    points: Sequence[OperatingPoint], agreement: float
) -> tuple[bool | None, OperatingPoint | None]:
    """What a line reaches: its fastest point with so much agreement, else its most faithful one.

    A point at full depth counts for neither: it is no_exit by another name.

    Args:
        points: of one line.
        agreement: the share to reach.

    Returns:
        (True, the fastest point that reaches it), (False, the point of highest agreement),
        (False, None) where every point is at full depth, or (None, None) where no point below
        full depth has an agreement. A point without a measured speedup is the slowest.
    """
    below = [point for point in points if point.below_full_depth]
    known = [(point.agreement.value, point) for point in below if point.agreement.value is not None]
    reaching = [point for value, point in known if value >= agreement]
    if reaching:
        return True, max(reaching, key=_speed)
    if known:
        return False, max(known, key=lambda pair: (pair[0], _speed(pair[1])))[1]
    every_full = all(p.mean_depth is not None and not p.below_full_depth for p in points)
    return (False if every_full else None), None


def target_frame(points: Sequence[OperatingPoint]) -> pd.DataFrame:
    """One row per line of a method: its fastest point at the target, or that it cannot reach it."""
    rows = []
    for (task, model), group in comparisons(points).items():
        goal = target(group)
        for line, own in lines(group).items():
            if own[0].is_reference:
                continue
            reached, point = fastest_at(own, goal)
            rows.append(
                [task, model, line, cells.percent(goal), _reaches(reached, point), *_shared(point)]
            )
    return _frame(rows, _TARGET_COLUMNS)


def all_points_frame(
    points: Sequence[OperatingPoint], missing: Sequence[MissingRun] = ()
) -> pd.DataFrame:
    """One row per point, lines together and each by rising speed; at the end what is missing."""
    rows = [
        [task, model, point.line, *_shared(point), *_rest(point)]
        for (task, model), group in comparisons(points).items()
        for point in group
    ]
    blank = [cells.NOT_AVAILABLE] * (len(_ALL_COLUMNS) - 4)
    absent = cells.NOT_AVAILABLE
    rows += [[absent, absent, run.name, *blank, run.reason] for run in missing]
    return _frame(rows, _ALL_COLUMNS)


def target_caption(points: Sequence[OperatingPoint]) -> str:
    """How the table of :func:`target_frame` is to be read."""
    floors = []
    for (task, model), group in comparisons(points).items():
        floor = noise_floor(group)
        floors.append(f"{task}, {model}: {cells.percent(floor, cells.NOT_RUN)}")
    return (
        "For each method its fastest point whose agreement with no_exit reaches the target: "
        f"{cells.percent(TARGET)} %, or the noise floor where that is lower "
        f"({'; '.join(floors)}). 'cannot': no measured point below full depth reaches it, and "
        "the row shows the one of highest agreement. A point at full depth does not count: it is "
        f"no_exit by another name. {points_note(points)}"
    )


def points_note(points: Sequence[OperatingPoint]) -> str:
    """What the figures of both tables are."""
    prompts = [point.prompts for point in points if point.prompts is not None]
    return (
        "Agreement (equal argmax tokens) and excess NLL (nats per token) are teacher-forced on "
        "no_exit's text, with 95 % bootstrap intervals over samples; speedup is that of decoding, "
        f"paired with no_exit, with a 95 % bootstrap over prompts{few_prompts(prompts)}; bound is "
        f"the speedup that the bytes read allow. {cells.NOT_RUN}: not measured; "
        f"{cells.NOT_AVAILABLE}: there is no such figure."
    )


def _speed(point: OperatingPoint) -> float:
    return -inf if point.speedup.value is None else point.speedup.value


def _reaches(reached: bool | None, point: OperatingPoint | None) -> str:
    if reached is None:
        return cells.NOT_RUN
    if point is None:
        return "no point below full depth"
    if not reached:
        return "cannot at any point measured"
    speed = point.speedup.value
    return "yes" if speed is None or speed > 1 else "yes, no faster than no_exit"


def _shared(point: OperatingPoint | None) -> list[str]:
    if point is None:
        return [cells.NOT_AVAILABLE] * len(_SHARED)
    depth = cells.fixed(point.mean_depth, 1)
    return [
        point.setting or "-",
        f"{depth} / {point.layers}",
        with_interval(point.speedup, 2, definite=point.is_reference),
        cells.fixed(point.bound, 2),
        percents(point.agreement, definite=point.is_reference),
        with_interval(point.excess_nll, 4, definite=point.is_reference),
    ]


def _rest(point: OperatingPoint) -> list[str]:
    return [percents(point.accuracy), point.identity, "; ".join(point.flags) or "-"]


def _frame(rows: list[list[str]], columns: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(columns))
    for name in ("Task", "Model"):
        if len(set(frame[name]) - {cells.NOT_AVAILABLE}) < 2:
            frame = frame.drop(columns=name)
    return frame
