"""The fastest run at no_exit's accuracy, on cases worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from table2_runs import found, river, save, speeds

from river_llm.analysis.equal_accuracy import EqualAccuracy, equal_accuracy
from river_llm.analysis.table2_frames import equal_frame
from river_llm.analysis.table2_rows import Block, blocks

# Without a changed verdict 400 pairs prove z^2 / (400 + z^2) = 3.8415 / 403.8415 = 0.951 points.
# One lost and none gained: Tango's lower end is -1.4 points.
SAME = [True] * 200 + [False] * 200
ONE_LOST = [False] + [True] * 199 + [False] * 200
TEN_GAINED = [True] * 210 + [False] * 190


def block_of(root: Path, *runs: tuple[str, list[bool], float | None, dict[str, Any]]) -> Block:
    """no_exit with 200 of 400 right, and River runs: identity, verdicts, speedup, settings."""
    save(root, "00", "no_exit", SAME, depth=30.0)
    for identity, verdicts, speed, settings in runs:
        depth = settings.pop("depth", 3.0)
        save(
            root, identity, "river", verdicts, settings=settings, depth=depth, speedup=speeds(speed)
        )
    (block,) = blocks(found(root), {})
    return block


def entry_of(block: Block, line: str, margin: float) -> EqualAccuracy:
    (entry,) = [one for one in equal_accuracy(block, margin) if one.line == line]
    return entry


def test_the_fastest_run_within_the_margin_is_taken(tmp_path: Path) -> None:
    block = block_of(
        tmp_path,
        ("01", SAME, 1.3, river(0.9)),
        ("02", SAME, 1.6, river(0.8)),
        ("03", ONE_LOST, 2.0, river(0.5)),
        ("04", SAME, None, river(0.7)),
        ("05", SAME, 3.0, river(0.99) | {"depth": 30.0}),  # no_exit by another name
        ("06", ONE_LOST, 1.9, river(0.5, "backbone")),
    )
    sequence = entry_of(block, "river, prefill sequence", 1.0)
    assert sequence.fastest is not None and sequence.fastest.name.endswith("tau=0.8")
    assert (sequence.points, sequence.judged, sequence.pairs) == (5, 4, 400)
    assert sequence.provable == pytest.approx(0.9512, abs=1e-4)
    assert entry_of(block, "river, prefill backbone", 1.0).fastest is None
    wider = entry_of(block, "river, prefill sequence", 1.5)
    assert wider.fastest is not None and wider.fastest.name.endswith("tau=0.5")


def test_more_right_answers_prove_what_equal_ones_do_not(tmp_path: Path) -> None:
    block = block_of(tmp_path, ("01", SAME, 1.5, river(0.5)), ("02", TEN_GAINED, 1.4, river(0.7)))
    entry = entry_of(block, "river, prefill sequence", 0.5)
    assert entry.provable is not None and entry.provable > 0.5
    assert entry.fastest is not None and entry.fastest.name.endswith("tau=0.7")


def cells(block: Block, margin: float) -> dict[str, str]:
    (row,) = equal_frame([block], margin).to_dict("records")
    return row


def test_too_few_samples_are_said_with_the_number_that_is_needed(tmp_path: Path) -> None:
    row = cells(block_of(tmp_path, ("01", SAME, 1.5, river(0.5))), 0.5)
    # 3.8415 * 199 = 764.45
    assert row["Fastest within the margin"] == "n too small (needs 765)"
    assert (row["Pairs"], row["Smallest provable margin"]) == ("400", "1.0")
    assert row["Speedup [95%]"] == row["To no_exit, points [95%]"] == "n/a"


def test_none_is_said_where_the_sample_would_do(tmp_path: Path) -> None:
    row = cells(block_of(tmp_path, ("01", ONE_LOST, 1.5, river(0.5))), 1.0)
    assert row["Fastest within the margin"] == "none"


def test_the_point_is_shown(tmp_path: Path) -> None:
    row = cells(block_of(tmp_path, ("01", ONE_LOST, 1.5, river(0.5))), 2.0)
    assert row["Fastest within the margin"] == "tau=0.5"
    assert row["To no_exit, points [95%]"].startswith("-0.2 [-1.4, ")
    assert (row["Mean depth"], row["Speedup [95%]"]) == ("3.0 / 30", "1.50 [1.40, 1.60]")


def test_without_no_exit_nothing_is_judged(tmp_path: Path) -> None:
    save(tmp_path, "01", "river", SAME, settings=river(0.5))
    (block,) = blocks(found(tmp_path), {})
    row = cells(block, 1.0)
    assert row["Fastest within the margin"] == row["Smallest provable margin"] == "not run"


def test_a_method_at_full_depth_alone_is_not_judged(tmp_path: Path) -> None:
    row = cells(block_of(tmp_path, ("01", SAME, 1.0, river(0.99) | {"depth": 30.0})), 2.0)
    assert row["Fastest within the margin"] == "no run below full depth"
