"""The comparison table: its cells, and its three forms."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from invented import NOT_GRADED, fidelity, matched, summary

from river_llm.analysis.tables import (
    caption,
    comparison_frame,
    to_csv,
    to_markdown,
    to_terminal,
)

NAN = float("nan")
REFERENCE = summary(
    method="no_exit", arm="no_exit", fidelity=None, speedup={"decode": {"matched": None}}
)


def row(**changes: Any) -> dict[str, str]:
    return comparison_frame([summary(**changes)]).iloc[0].to_dict()


def test_row_of_a_complete_run() -> None:
    assert row() == {
        "Task": "GSM-mini",
        "Arm": "river tau=0.5 sequence",
        "n": "5",
        "Accuracy % [95%]": "20.0 [3.6, 62.4]",
        "Agreement %": "90.0",
        "Excess NLL": "0.0500",
        "Noise floor % / NLL": "98.7 / 0.0001",
        "Mean depth": "3.1 / 30",
        "ms/token": "20.13",
        "TTFT ms": "123.4",
        "Speedup [95%]": "1.80 [1.70, 1.90]",
        "Bound": "2.00",
    }


@pytest.mark.parametrize(
    ("changes", "column", "cell"),
    [
        ({"accuracy": NOT_GRADED}, "Accuracy % [95%]", "not run"),
        ({"accuracy": {**NOT_GRADED, "value": NAN}, "samples": 0}, "Accuracy % [95%]", "n/a"),
        ({"samples": 8}, "n", "8 (5 graded)"),
        ({"fidelity": None}, "Agreement %", "not run"),
        ({"fidelity": None}, "Excess NLL", "not run"),
        ({"fidelity": None}, "Noise floor % / NLL", "not run"),
        ({"fidelity": fidelity(NAN)}, "Agreement %", "n/a"),
        ({"fidelity": fidelity(excess_nll=-0.00001)}, "Excess NLL", "0.0000"),
        ({"fidelity": fidelity(noise_floor=None)}, "Noise floor % / NLL", "not run"),
        ({"speedup": {"decode": {"matched": None}}}, "Speedup [95%]", "not run"),
        ({"speedup": {"decode": {"matched": None}}}, "Bound", "not run"),
        ({"speedup": matched(NAN)}, "Speedup [95%]", "not run"),
        ({"speedup": matched(1.5, low=None, high=None)}, "Speedup [95%]", "1.50 [no interval]"),
        ({"speedup": matched(1.5, bound_speedup=None)}, "Bound", "n/a"),
        ({"exit_depth": {"mean": None, "layers": 4, "histogram": [0] * 5}}, "Mean depth", "n/a"),
        ({"label": "MATH-500", "exp": "math"}, "Task", "MATH-500"),
    ],
)
def test_missing_figures_are_words(changes: dict[str, Any], column: str, cell: str) -> None:
    assert row(**changes)[column] == cell


def test_no_exit_is_not_compared_with_itself() -> None:
    cells = comparison_frame([REFERENCE]).iloc[0]
    for column in ("Agreement %", "Excess NLL", "Noise floor % / NLL", "Speedup [95%]", "Bound"):
        assert cells[column] == "n/a"


@pytest.mark.parametrize(
    ("speedup", "cell"),
    [
        (matched(2.16, flags=["reference below par"]), "2.16 [2.06, 2.26] reference below par"),
        (matched(2.0), "2.00 [1.90, 2.10]"),
        (matched(1.5, flags=["wide spread"]), "1.50 [1.40, 1.60] wide spread"),
    ],
)
def test_speedup_above_its_bound_is_marked(speedup: dict[str, Any], cell: str) -> None:
    assert row(speedup=speedup)["Speedup [95%]"] == cell


def test_runs_of_a_task_stand_together() -> None:
    arms = [("GSM-mini", "a"), ("HumanEval", "b"), ("GSM-mini", "c")]
    frame = comparison_frame([summary(label=label, arm=arm) for label, arm in arms])
    assert frame["Arm"].tolist() == ["a", "c", "b"]


def test_runs_of_two_models_can_be_told_apart() -> None:
    frame = comparison_frame([summary(model="small"), summary(model="large")])
    assert frame["Model"].tolist() == ["small", "large"]


def test_markdown_is_aligned_and_keeps_bars_inside_cells() -> None:
    frame = comparison_frame([summary(arm="a|b"), REFERENCE])[["Arm", "ms/token"]]
    assert to_markdown(frame) == (
        "| Arm     | ms/token |\n"
        "| ------- | -------: |\n"
        "| a\\|b    |    20.13 |\n"
        "| no_exit |    20.13 |\n"
    )


def test_markdown_of_no_runs_is_a_header() -> None:
    text = to_markdown(comparison_frame([]))
    assert len(text.splitlines()) == 2
    assert "Accuracy" in text


def test_csv_holds_the_same_cells() -> None:
    frame = comparison_frame([summary(), REFERENCE])
    assert list(csv.reader(io.StringIO(to_csv(frame)))) == [
        list(frame.columns),
        *frame.to_numpy().tolist(),
    ]


@pytest.mark.parametrize("width", [*range(55, 130), 300])
def test_terminal_table_keeps_to_its_width_and_loses_nothing(width: int) -> None:
    frame = comparison_frame([summary(speedup=matched(2.5)), REFERENCE])
    text = to_terminal(frame, width)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for cell in frame.to_numpy().ravel():
        assert set(cell.split()) <= set(words)
    for block in text.split("\n\n"):
        assert "river tau=0.5 sequence" in block


def test_terminal_table_is_one_block_where_there_is_room() -> None:
    text = to_terminal(comparison_frame([summary(), REFERENCE]), 300)
    # Two lines of header, a rule, one line for each run.
    assert len(text.splitlines()) == 5


def test_caption_counts_samples_and_warns_of_small_n() -> None:
    text = caption([summary(), summary(label="HumanEval", samples=4), summary(samples=3)])
    assert "GSM-mini n = 3 to 5; HumanEval n = 4" in text
    # The widest interval at n = 5 is that of 2 of 5: 11.8 to 76.9.
    assert "at n = 5 one spans up to 65 points" in text
    assert "over 2 prompts" in text
    assert "at most 40.0 %" in text


def test_caption_says_how_far_the_engines_differ() -> None:
    runs = [
        summary(fidelity=fidelity(engine_noise_floor={"agreement": share, "excess_nll": 0.0}))
        for share in (0.9961, 0.99)
    ]
    said = "no_exit on the eager engine agrees with that on the runs' own to"
    assert f"{said} 99.6 %." in caption([runs[0], summary()])
    assert f"{said} 99.0 % or more." in caption(runs)
    assert "eager" not in caption([summary(), REFERENCE])


def test_caption_without_graded_runs() -> None:
    text = caption([summary(accuracy=NOT_GRADED, cut_share=0.0)])
    assert "spans" not in text
    assert "budget" not in text
