"""The terminal summary: what it says, and that it stays short."""

from __future__ import annotations

from typing import Any

import pytest
from invented import NOT_GRADED, fidelity, matched, summary

from river_llm.analysis.report import histogram_lines, terminal_summary


def test_summary_of_a_complete_run() -> None:
    extra = {"strict": 0.2, "flexible": 0.4}
    accuracy = {"value": 0.2, "low": 0.036, "high": 0.624, "graded": 5, "extra": extra}
    text = terminal_summary(summary(accuracy=accuracy))
    assert text == (
        "GSM-mini, tiny: river tau=0.5 sequence\n"
        "accuracy      20.0 [3.6, 62.4] % of 5 samples; strict 20.0 %, flexible 40.0 %\n"
        "cut           40.0 % of answers ended by the token budget\n"
        "fidelity      agreement 90.0 % (noise floor 98.7), excess NLL 0.0500 (0.0001);\n"
        "              320 tokens of 5 samples\n"
        "same answers  80.0 % of 5 samples with an answer, 0 without any\n"
        "exit depth    mean 3.1 of 30 layers, most often 3 (96.9 %); prefill mean 2.0\n"
        "              │   █                         ▁▁│\n"
        "               0              15             30\n"
        "time          20.13 ms per token (640 steps); first token 123 ms (p90 150)\n"
        "speedup       1.80 [1.70, 1.90] in decode, bound 2.00 (2 prompts x 32 tokens)\n"
        "memory        backbone 200.0, river 60.0, scratch 7.0, shared 54.0, KV 1.5 MiB"
    )


@pytest.mark.parametrize(
    ("problems", "graded", "words"),
    [
        (164, 5, "% of 5 samples (5 of 164 problems attempted)"),
        (164, 2, "% of 2 graded of 5 samples (5 of 164 problems attempted)"),
        (5, 5, "% of 5 samples\n"),
        (None, 5, "% of 5 samples\n"),
    ],
)
def test_a_part_of_the_problems_is_said(problems: int | None, graded: int, words: str) -> None:
    accuracy = {"value": 0.2, "low": 0.036, "high": 0.624, "graded": graded, "extra": {}}
    text = terminal_summary(summary(accuracy=accuracy, problems=problems))
    assert words in text.replace("\n              ", " ")


def test_the_noise_floor_of_the_engine_stands_beside_the_other() -> None:
    floors = fidelity(engine_noise_floor={"agreement": 0.9961, "excess_nll": -0.0002})
    text = terminal_summary(summary(fidelity=floors))
    assert (
        "fidelity      agreement 90.0 % (noise floor 98.7, engines 99.6), excess NLL\n"
        "              0.0500 (0.0001, -0.0002); 320 tokens of 5 samples\n"
    ) in text


NOTHING: dict[str, Any] = {
    "samples": 0,
    "accuracy": NOT_GRADED,
    "cut_share": None,
    "exit_depth": {"mean": None, "layers": 30, "histogram": [0] * 31},
    "prefill_depth": {"mean": None},
    "time": {
        "decode_ms_per_token": None,
        "prefill_ms": {"median": None, "p90": None},
        "decode_steps": 0,
        "tokens_timed": 0,
        "tokens_kept": 0,
    },
    "fidelity": None,
    "speedup": {"decode": {"matched": None}},
    "memory": None,
}


def test_summary_of_an_empty_run_has_words_for_what_is_missing() -> None:
    text = terminal_summary(summary(**NOTHING))
    assert "accuracy      n/a (0 of 0 samples graded)" in text
    assert "exit depth    no decode steps; prefill mean n/a" in text
    assert "fidelity      not run" in text
    assert "speedup       not run" in text
    assert "KV n/a MiB" in text
    assert "nan" not in text.lower() and "None" not in text


@pytest.mark.parametrize(
    "changes",
    [
        NOTHING,
        {"arm": "an arm with a name " * 9, "label": "A task" * 20},
        {
            "samples": 100_000,
            "accuracy": {
                **NOT_GRADED,
                "value": 1.0,
                "low": 0.5,
                "high": 1.0,
                "graded": 99_999,
                "extra": {"strict": 1.0, "flexible": 1.0, "another mark of the grader": 1.0},
            },
            "fidelity": fidelity(
                excess_nll=123.4567,
                tokens=123_456_789,
                equal_answers={"value": None, "reason": "too many texts were cut " * 9},
            ),
            "speedup": matched(222.22, bound_speedup=111.11, flags=["a long flag " * 12]),
            "exit_depth": {"mean": 80.0, "layers": 125, "histogram": [123_456_789] * 126},
            "memory": {f"{k}_bytes": 2**50 for k in ("backbone", "river", "shared", "kv")},
        },
    ],
)
def test_summary_fits_a_terminal(changes: dict[str, Any]) -> None:
    lines = terminal_summary(summary(**changes)).splitlines()
    assert len(lines) < 20
    assert max(map(len, lines)) <= 80


def test_speedup_above_its_bound_is_marked() -> None:
    marked = matched(2.5, flags=["reference below par"])
    assert "! reference below par" in terminal_summary(summary(speedup=marked))
    assert "below par" not in terminal_summary(summary(speedup=matched(1.9)))


def test_ungraded_run_does_not_look_like_a_wrong_one() -> None:
    text = terminal_summary(summary(accuracy=NOT_GRADED))
    assert "accuracy      not run (0 of 5 samples graded)" in text


def test_no_exit_is_not_compared_with_itself() -> None:
    text = terminal_summary(summary(method="no_exit", fidelity=None))
    assert "fidelity      n/a (this is the run that others are compared with)" in text


@pytest.mark.parametrize(
    ("counts", "bars", "axis"),
    [
        # Eighths of the highest column, rounded up: 4/8, none, 1/8, 8/8.
        ([4, 0, 1, 8], "│▄ ▁█│", " 0  3"),
        # One step in a thousand still shows.
        ([1000, 1, 0, 0, 0, 0, 0, 0], "│█▁      │", " 0  3   7"),
        ([0, 0], "│  │", " 01"),
        ([5], "│█│", " 0"),
    ],
)
def test_histogram_by_hand(counts: list[int], bars: str, axis: str) -> None:
    assert histogram_lines(counts) == [bars, axis]


def test_deep_model_is_binned_to_forty_columns() -> None:
    # 81 depths, three to a column: 27 columns. Depths 0, 1, 2 add up to half of depth 80.
    counts = [1, 1, 1, *[0] * 77, 6]
    bars, axis = histogram_lines(counts)
    assert bars == "│▄" + " " * 25 + "█│"
    # Depth 40 falls into column 13, depth 80 into column 26; the frame is before column 0.
    assert axis == " 0" + " " * 12 + "40" + " " * 11 + "80  3 depths a column"


@pytest.mark.parametrize("layers", range(1, 130))
def test_histogram_axis_never_exceeds_forty_columns(layers: int) -> None:
    bars, axis = histogram_lines([1] * (layers + 1))
    assert len(bars) - 2 <= 40
    assert axis.startswith(" 0")
    assert axis[len(bars) - 2 :].startswith(str(layers))
